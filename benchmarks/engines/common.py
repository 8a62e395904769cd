"""What the workers of the engine benchmark share: the model, and requests as tensors.

A request for a sweep holds `clean` and `corrupted` (token ids, the first of them the start token), `answer` and
`foil` (token ids), `way` (how the engine goes about it), and optionally `layers` and `positions`: a sweep over those
only, the rest of the grid being NaN. Every sweep returns the metric itself, the logit of the answer minus the logit
of the foil at the last token, with clean values patched into the corrupted run.

This file runs in the environments of the peers: torch, transformers and numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CONFIG = {"layers": "num_hidden_layers", "heads": "num_attention_heads"}


def start(settings: Mapping[str, Any]) -> None:
    """Threads as asked, and no autograd: nothing here takes a gradient."""
    torch.set_num_threads(settings["threads"])
    torch.set_grad_enabled(False)


def load(settings: Mapping[str, Any]) -> Any:
    """The model as Transformers opens it (SDPA attention, float32); its first `layers`, or other `heads`, if asked."""
    from transformers import AutoModelForCausalLM

    changed = {name: settings[key] for key, name in _CONFIG.items() if settings.get(key) is not None}
    return AutoModelForCausalLM.from_pretrained(settings["folder"], dtype=torch.float32, **changed).eval()


def tokenizer(settings: Mapping[str, Any]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(settings["folder"])


@dataclass(frozen=True)
class Sweep:
    """A sweep's request as tensors; `clean` and `corrupted` are `[1, pos]`."""

    clean: Tensor
    corrupted: Tensor
    answer: int
    foil: int
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    shape: tuple[int, int]

    @classmethod
    def of(cls, args: Mapping[str, Any], layers: int, heads: int | None = None) -> Sweep:
        """From a request.

        Args:
            layers: of the model.
            heads: of the model, for a sweep over heads; its grid is `[layer, head]`, else `[layer, pos]`.
        """
        clean, corrupted = torch.tensor([args["clean"]]), torch.tensor([args["corrupted"]])
        width = clean.shape[1] if heads is None else heads
        chosen = args.get("layers"), args.get("positions")
        every = tuple(range(layers)), tuple(range(width))
        rows, columns = (tuple(a) if a is not None else tuple(b) for a, b in zip(chosen, every))
        return cls(clean, corrupted, args["answer"], args["foil"], rows, columns, (layers, width))

    @property
    def whole(self) -> bool:
        """Whether every cell of the grid is asked for."""
        return len(self.layers) * len(self.positions) == self.shape[0] * self.shape[1]

    def metric(self, logits: Tensor) -> Tensor:
        """From logits at the last token, `[..., vocab]`."""
        return logits[..., self.answer] - logits[..., self.foil]

    def grid(self, values: Tensor) -> dict[str, Tensor]:
        """Values of the cells asked for, layer by layer, at their places; NaN elsewhere."""
        full = torch.full(self.shape, float("nan"))
        full[torch.tensor(self.layers)[:, None], torch.tensor(self.positions)] = values.reshape(
            len(self.layers), len(self.positions)
        )
        return {"metric": full}


def by_layer(sweep: Sweep, values: Callable[[int], Tensor]) -> dict[str, Tensor]:
    """A grid whose rows come one layer at a time: `values(layer) -> [column]`."""
    return sweep.grid(torch.stack([values(layer) for layer in sweep.layers]))


def sample(captured: Mapping[str, Sequence[Tensor]], stride: int) -> dict[str, Tensor]:
    """Captures to compare: per point `[layer, batch, pos, feature]`, every `stride`-th position, heads side by side."""
    return {
        name: torch.stack([x[:, ::stride].flatten(start_dim=2) for x in layers]) for name, layers in captured.items()
    }


POINTS = ("resid_pre", "resid_mid", "resid_post", "z", "mlp_act")
