"""Other tools' explained variance, to compare with their published numbers; never used to judge.

All of them depend on something that they should not depend on: the mean, the scale, or the size of batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.dictionaries.metrics.measure import Measure, measure

_NAMES = ("rows", "batches", "error", "square", "cells", "by_row", "by_batch")


@dataclass
class LegacySums:
    """What the definitions of `fvu.zero`, `fvu.tokenmean`, `fvu.batchmean` and `fvu.saebench-0.6` need."""

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_NAMES, 0.0))

    def update(self, x: Tensor, made: Tensor) -> None:
        """Add one batch, `[row, d]` each; which rows are in one batch matters, as it did there."""
        x, made = x.detach().to("cpu", torch.float64), made.detach().to("cpu", torch.float64)
        error, scatter = (x - made).square().sum(1), (x - x.mean(0)).square().sum(1)
        added = {
            "rows": len(x),
            "batches": 1,
            "error": float(error.sum()),
            "square": float(x.square().sum()),
            "cells": x.numel(),
            "by_row": float((error / scatter).sum()),
            "by_batch": float(error.sum() / scatter.sum()),
        }
        self.sums = {name: value + added[name] for name, value in self.sums.items()}

    def measures(self) -> Iterator[Measure]:
        """The four numbers, without intervals."""
        s, n = self.sums, int(self.sums["rows"])
        if not n:
            return
        error, square = s["error"] / n, s["square"] / n
        yield measure("fvu.zero", error / square if square else None, n)
        yield measure("fvu.tokenmean", s["by_row"] / n, n)
        yield measure("fvu.batchmean", s["by_batch"] / s["batches"], n)
        under = square - (s["square"] / s["cells"]) ** 2
        yield measure("fvu.saebench-0.6", error / under if under else None, n)
