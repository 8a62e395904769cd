"""What the workers of the circuit benchmark share: the model, pairs of inputs, and one matrix for the edges of a GPT-2.

Sources are the embedding, then of every layer its heads and its MLP; targets are of every layer the queries, the keys
and the values of its heads and the input of its MLP, then the logits. A score is `M(patched) - M(clean)`, `M` the
logit of the answer minus the logit of the foil at the last token, averaged over pairs.

This file runs in the environments of the peers: torch, transformers and numpy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Kind = Literal["q", "k", "v", "mlp", "logits"]
_OF_HEADS = ("q", "k", "v")


@dataclass(frozen=True)
class Pairs:
    """The inputs of a request as tensors, `[pair, pos]`, and what the metric compares."""

    clean: Tensor
    corrupted: Tensor
    answer: int
    foil: int

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Pairs:
        return cls(torch.tensor(args["clean"]), torch.tensor(args["corrupted"]), args["answer"], args["foil"])

    def metric(self, logits: Tensor) -> Tensor:
        """From logits at the last token, `[..., vocab]`."""
        return logits[..., self.answer] - logits[..., self.foil]


@dataclass(frozen=True)
class Layout:
    """Where the edges of a model of so many layers and heads stand in the matrix `[source, target]`."""

    layers: int
    heads: int

    @property
    def shape(self) -> tuple[int, int]:
        return 1 + self.layers * (self.heads + 1), 1 + self.layers * (3 * self.heads + 1)

    def source(self, layer: int | None, head: int | None = None) -> int:
        """The embedding (no layer), a head, or an MLP (no head)."""
        if layer is None:
            return 0
        return 1 + layer * (self.heads + 1) + (self.heads if head is None else head)

    def target(self, kind: Kind, layer: int = 0, head: int = 0) -> int:
        if kind == "logits":
            return self.shape[1] - 1
        place = 3 * self.heads if kind == "mlp" else _OF_HEADS.index(kind) * self.heads + head
        return layer * (3 * self.heads + 1) + place

    def targets(self) -> Iterator[tuple[Kind, int, int]]:
        """Kind, layer and head of every target, in order."""
        for layer in range(self.layers):
            for kind in _OF_HEADS:
                for head in range(self.heads):
                    yield kind, layer, head
            yield "mlp", layer, 0
        yield "logits", self.layers - 1, 0

    def after(self, kind: Kind, layer: int) -> int:
        """How many sources write before a target reads: the first so many."""
        return self.shape[0] if kind == "logits" else self.source(layer, 0) + (self.heads if kind == "mlp" else 0)

    def edges(self) -> np.ndarray:
        """All edges, `[edge, 2]`: source and target."""
        before = [self.after(kind, layer) for kind, layer, _ in self.targets()]
        return np.argwhere(np.arange(self.shape[0])[:, None] < np.array(before)[None])

    def matrix(self) -> Tensor:
        """Nothing measured yet: NaN where there are edges, 0 elsewhere."""
        found = torch.zeros(self.shape)
        found[tuple(torch.tensor(self.edges()).T)] = float("nan")
        return found


def start(settings: Mapping[str, Any]) -> None:
    """Threads as asked; gradients stay on, as scores need them."""
    torch.set_num_threads(settings["threads"])


def alphas(steps: int) -> list[float]:
    """The ends and `steps - 1` points between them: where masks stand in integrated mask gradients."""
    return [k / steps for k in range(steps + 1)]
