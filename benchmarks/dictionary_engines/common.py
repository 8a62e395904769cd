"""What the workers of the dictionary benchmark share: activations, one start for all, and one definition of FVU.

A request holds `width` (latents), `k`, `batch` (rows a step), `steps` and `lr`. Rows come in the order of the file, so
every engine sees the same batches; all start from the same directions with tied weights, no encoder bias, and the mean
of the first batch as decoder bias.

This file runs in the environments of the peers: torch, numpy and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

HELD = 2048
"""Rows at the end of the file that nothing is trained on."""


@dataclass(frozen=True)
class Data:
    """Activations.

    Attributes:
        rows: `[row, d]`, scaled to a mean norm of sqrt(d), as all engines are used with.
        raw_held: the held-out rows as the model computes them, `[HELD, d]`.
    """

    rows: Tensor
    raw_held: Tensor

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Data:
        """From the settings of a worker: `activations` is a `.npy` file."""
        torch.set_num_threads(settings["threads"])
        rows = torch.from_numpy(np.load(settings["activations"]))
        return cls(rows * (rows.shape[1] ** 0.5 / rows.norm(dim=1).mean()), rows[-HELD:].clone())

    def wide(self, width: int) -> Tensor:
        """Rows of another width: the first columns, or columns again under random signs."""
        d = self.rows.shape[1]
        if width <= d:
            return self.rows[:, :width].contiguous()
        signs = torch.randint(0, 2, (width,), generator=torch.Generator().manual_seed(0)) * 2 - 1
        return self.rows[:, torch.arange(width) % d] * signs


@dataclass(frozen=True)
class Request:
    """One training: rows to train on and to hold out, and where it starts."""

    train: Tensor
    held: Tensor
    directions: Tensor
    k: int
    batch: int
    steps: int
    lr: float

    @classmethod
    def of(cls, data: Data, args: Mapping[str, Any]) -> Request:
        """From a request."""
        rows = data.wide(args.get("d", data.rows.shape[1]))
        start = directions(args["width"], rows.shape[1], args.get("seed", 0))
        train, held = rows[:-HELD], rows[-HELD:]
        needed = args["steps"] * args["batch"]
        if needed > len(train):
            raise ValueError(f"{needed} rows asked for, {len(train)} are there")
        return cls(train[:needed], held, start, args["k"], args["batch"], args["steps"], args["lr"])

    def batches(self) -> Iterator[Tensor]:
        """The rows of each step, `[batch, d]`."""
        return iter(self.train.split(self.batch))

    @property
    def mean(self) -> Tensor:
        """Where decoder biases start, `[d]`."""
        return self.train[: self.batch].mean(0)

    def fvu(self, reconstruct: Callable[[Tensor], Tensor]) -> float:
        """Of the held rows."""
        return fvu(self.held, reconstruct)


def directions(width: int, d: int, seed: int) -> Tensor:
    """Where a dictionary starts, `[latent, d]`, rows of norm 1."""
    drawn = torch.randn(width, d, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm(dim=1, keepdim=True)


def fvu(rows: Tensor, reconstruct: Callable[[Tensor], Tensor]) -> float:
    """What share of the rows' variance is not explained; float64, about the global mean."""
    with torch.no_grad():
        missed = (rows - reconstruct(rows)).double().square().sum()
    return float(missed / (rows.double() - rows.double().mean(0)).square().sum())
