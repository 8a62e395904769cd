"""How near a dictionary comes to its activations: sums over rows, in float64, that add up in any order.

`ReconstructionSums` is all that the metrics need: per unit, the squared error, the sum of x and of its squared distance
from a fixed origin, cosines, lengths, active latents. A unit is a document (label `seq`), because tokens of one text
are not independent; documents share a fixed number of bins, so memory does not grow with the data. From the sums follow
values that do not depend on the size of batches, and intervals that draw whole units.

The origin is the mean of the first batch: squared distances are then as small as the data allow, and nothing cancels
where activations lie far from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators import Accumulator
from mechanome.core import BadInput, NotFinite, ShapeMismatch, TooFewRows
from mechanome.dictionaries.metrics.measure import Measure, measure, ratio_interval

BINS = 512
"""Units are kept in so many bins."""

_QUANTITIES = ("rows", "error", "spread", "cosine", "length", "length_out", "l0")
"""Kept per bin; `spread` is the squared distance of x from the origin."""


class ReconstructionSums(Accumulator):
    """Sums over rows, per bin of units; a mergeable accumulator.

    Args:
        width: of the activations.
    """

    settings = ("width",)
    fields = ("_origin", "_sums", "_shifts")

    def __init__(self, width: int) -> None:
        self.width, self.rows = width, 0
        self._origin = np.zeros(width)
        self._sums = np.zeros((BINS, len(_QUANTITIES)))
        self._shifts = np.zeros((BINS, width))

    def update(self, x: Tensor, made: Tensor, units: Tensor | None = None, l0: Tensor | None = None) -> Self:
        """Add rows.

        Args:
            x: activations `[row, d]`. made: what the dictionary makes of them `[row, d]`.
            units: `[row]` of integers, rows with the same one belong together; None takes every row for itself.
            l0: `[row]`, numbers of active latents; None counts 0.

        Raises:
            ShapeMismatch: shapes that do not fit. NotFinite: NaN or infinity in one of them.
        """
        if x.shape != made.shape or x.dim() != 2 or x.shape[1] != self.width:
            shapes = f"activations {list(x.shape)}, reconstructions {list(made.shape)}"
            raise ShapeMismatch(shapes, f"both must be [row, {self.width}]", "check the site and the dictionary")
        if not len(x):
            return self
        x, made = _finite(x, "activations"), _finite(made, "reconstructions")
        origin = torch.from_numpy(self._origin) if self.rows else x.mean(0)
        shifted, lengths, lengths_out = x - origin, x.norm(dim=1), made.norm(dim=1)
        active = torch.zeros(len(x)) if l0 is None else l0
        quantities = (
            torch.ones(len(x)),
            (x - made).square().sum(1),
            shifted.square().sum(1),
            (x * made).sum(1) / (lengths * lengths_out).clamp_min(torch.finfo(torch.float64).tiny),
            lengths,
            lengths_out,
            active,
        )
        table = torch.stack([q.to("cpu", torch.float64) for q in quantities], dim=1)
        own = torch.arange(self.rows, self.rows + len(x)) if units is None else units.to("cpu", torch.int64)
        bins = own % BINS
        self._origin = origin.numpy()
        torch.from_numpy(self._sums).index_add_(0, bins, table)
        torch.from_numpy(self._shifts).index_add_(0, bins, shifted)
        self.rows += len(x)
        return self

    def _combine(self, other: Self) -> None:
        moved = other._origin - self._origin
        added, rows = other._sums.copy(), other._sums[:, :1]
        added[:, _QUANTITIES.index("spread")] += 2 * (other._shifts @ moved) + rows[:, 0] * (moved @ moved)
        self._sums = self._sums + added
        self._shifts = self._shifts + other._shifts + rows * moved
        self.rows += other.rows

    def units(self) -> dict[str, np.ndarray]:
        """Per unit that holds rows, every quantity; `scatter` is the squared distance from the mean of all rows.

        Raises:
            TooFewRows: nothing was seen.
        """
        if not self.rows:
            raise TooFewRows("a reconstruction", "there are no rows", "give at least one batch")
        seen = self._sums[:, 0] > 0
        sums, shifts = self._sums[seen], self._shifts[seen]
        mean = shifts.sum(0) / self.rows
        found = {name: sums[:, i] for i, name in enumerate(_QUANTITIES)}
        scatter = found["spread"] - 2 * (shifts @ mean) + found["rows"] * (mean @ mean)
        return found | {"scatter": scatter.clip(0.0)}  # rounding may leave a constant a little below 0


@dataclass(frozen=True)
class _Ratio:
    """A metric that is a ratio of two sums, and perhaps a function of it."""

    name: str
    over: str
    under: str
    of: Callable[[float], float] = float


_METRICS = (
    _Ratio("fvu.v1", "error", "scatter"),
    _Ratio("mse.v1", "error", "cells"),
    _Ratio("log2_mse.v1", "error", "cells", lambda v: float(np.log2(v)) if v > 0 else float("nan")),
    _Ratio("cosine.v1", "cosine", "rows"),
    _Ratio("norm_ratio.v1", "length_out", "length"),
    _Ratio("l0.v1", "l0", "rows"),
)


def reconstruction_measures(found: ReconstructionSums, seed: int = 0) -> Iterator[Measure]:
    """FVU, MSE and its log2, cosine, norm ratio and L0 of sums; intervals hold the mean of x fixed.

    Raises:
        TooFewRows: nothing was seen.
    """
    units = found.units()
    units["cells"] = units["rows"] * found.width
    for metric in _METRICS:
        yield _measured(metric, units, found.rows, seed)


def _measured(metric: _Ratio, units: Mapping[str, np.ndarray], rows: int, seed: int) -> Measure:
    pairs = np.stack([units[metric.over], units[metric.under]], axis=1)

    def ratio(totals: np.ndarray) -> float:
        return metric.of(totals[0] / totals[1]) if totals[1] > 0 else float("nan")

    value = ratio(pairs.sum(0))
    interval = ratio_interval(pairs, ratio, seed) if np.isfinite(value) else None
    return measure(metric.name, value, rows, interval)


def _finite(x: Tensor, what: str) -> Tensor:
    x = x.detach().to("cpu", torch.float64)
    broken = ~torch.isfinite(x).all(1)
    if bool(broken.any()):
        why = f"row {int(broken.nonzero()[0])} of a batch holds NaN or infinity"
        raise NotFinite(what, why, "check how they were computed")
    return x


def _one(x: Tensor, made: Tensor) -> dict[str, float]:
    if not isinstance(x, Tensor) or not isinstance(made, Tensor):
        raise BadInput("activations", "they are no tensors", "give x and its reconstruction, [row, d]")
    found = ReconstructionSums(x.shape[-1])
    found.update(x.reshape(-1, x.shape[-1]), made.reshape(-1, made.shape[-1]))
    return {name: float(values.sum()) for name, values in found.units().items()}


def fvu(x: Tensor, made: Tensor) -> float:
    """Share of the variance of x `[..., d]` that its reconstruction misses (`fvu.v1`); NaN for a constant x.

    Raises:
        ShapeMismatch, NotFinite, TooFewRows: as `ReconstructionSums`.
    """
    sums = _one(x, made)
    return sums["error"] / sums["scatter"] if sums["scatter"] > 0 else float("nan")


def cosine(x: Tensor, made: Tensor) -> float:
    """Mean cosine between x `[..., d]` and its reconstruction (`cosine.v1`)."""
    sums = _one(x, made)
    return sums["cosine"] / sums["rows"]


def norm_ratio(x: Tensor, made: Tensor) -> float:
    """Length of reconstructions over length of x `[..., d]` (`norm_ratio.v1`); NaN where all x are 0."""
    sums = _one(x, made)
    return sums["length_out"] / sums["length"] if sums["length"] > 0 else float("nan")
