"""Quantiles of each unit in one pass: an estimate whose error is stated, and the same in any order of rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator, same_shape
from mechanome.activations.accumulators.log_counts import LogCounts
from mechanome.activations.accumulators.rows import dense
from mechanome.core.errors import BadInput, TooFewRows


class Quantiles(Accumulator):
    """A sketch of each unit's distribution; the smallest and the largest value are exact.

    A quantile is an *estimate* of the value at that place in sorted order (the lower one where the place lies between
    two), wrong by at most :attr:`relative_error` of that value.

    Args:
        bits: the relative error is ``2 ** -(bits + 1)``; 1 to 10. Memory is ``2 ** bits`` counts per unit for each
            octave that values span.

    Raises:
        BadInput: other bits.
    """

    settings = ("bits",)
    fields = ("_zeros", "_least", "_most")
    parts = ("_above", "_below")

    def __init__(self, bits: int = 6) -> None:
        if not 1 <= bits <= 10:
            raise BadInput("bits", f"{bits} is not 1 to 10", "use 6 for an error below 0.8 %")
        self.bits, self.rows = bits, 0
        self._above, self._below = LogCounts(bits, 0), LogCounts(bits, 0)
        self._zeros = np.zeros(0, dtype=np.int64)
        self._least = self._most = np.zeros(0)

    def update(self, x: Any) -> Self:
        """Take in rows ``[..., unit]``, or ``[row]`` for one unit.

        Raises:
            NotFinite: NaN or infinity. ShapeMismatch: another number of units than before.
        """
        data = dense(x)
        batch = self._empty()
        batch.rows, width = data.shape
        if batch.rows:
            batch._least, batch._most = data.min(0), data.max(0)
            batch._zeros = (data == 0).sum(0)
            batch._above, batch._below = LogCounts(self.bits, width), LogCounts(self.bits, width)
            for side, sign in ((batch._above, 1), (batch._below, -1)):
                row, unit = np.nonzero(sign * data > 0)
                side.add(unit, sign * data[row, unit])
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        same_shape("quantiles", self._zeros, other._zeros)
        self._above.merge(other._above)
        self._below.merge(other._below)
        self._zeros = self._zeros + other._zeros
        self._least, self._most = np.minimum(self._least, other._least), np.maximum(self._most, other._most)
        self.rows += other.rows

    @property
    def relative_error(self) -> float:
        """The most that an estimate can be wrong, relative to the value it estimates."""
        return float(2.0 ** -(self.bits + 1))

    def estimate(self, q: float) -> Tensor:
        """The estimated quantile of every unit, float64 ``[unit]``.

        Args:
            q: 0 (the smallest value, exact) to 1 (the largest, exact).

        Raises:
            BadInput: q outside 0 to 1. TooFewRows: no row.
        """
        if not 0 <= q <= 1:
            raise BadInput("q", f"{q} is not between 0 and 1", "use 0.5 for the median")
        if not self.rows:
            raise TooFewRows("quantiles", "no row has been seen", "update it with rows first")
        if q in (0, 1):
            return torch.from_numpy((self._most if q else self._least).copy())
        middles = [_middles(self._below)[::-1] * -1.0, np.zeros(1), _middles(self._above)]
        counts = [self._below.counts[:, ::-1], self._zeros[:, None], self._above.counts]
        reached = np.cumsum(np.concatenate(counts, axis=1), axis=1) > int(q * (self.rows - 1))
        found = np.concatenate(middles)[reached.argmax(1)]
        return torch.from_numpy(np.clip(found, self._least, self._most))


def _middles(side: LogCounts) -> np.ndarray:
    """The middle of each bin; half a bin is at most ``2 ** -(bits + 1)`` of any value in it."""
    edges = side.edges if side.counts.shape[1] else np.zeros(1)
    return (edges[:-1] + edges[1:]) / 2
