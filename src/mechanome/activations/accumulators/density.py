"""How often, and how strongly, each unit is active: firing frequency and a histogram over logarithmic bins."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator
from mechanome.activations.accumulators.log_counts import LogCounts
from mechanome.activations.accumulators.rows import entries
from mechanome.core.errors import BadInput, ShapeMismatch, TooFewRows


class Density(Accumulator):
    """Counts of values above 0, per unit and bin; exact.

    Args:
        bits: an octave (1 to 2, 2 to 4 ...) has ``2 ** bits`` bins; 0 to 10.

    Raises:
        BadInput: other bits.
    """

    settings = ("bits",)
    parts = ("_counts",)

    def __init__(self, bits: int = 1) -> None:
        if not 0 <= bits <= 10:
            raise BadInput("bits", f"{bits} is not 0 to 10", "use 1 for two bins an octave")
        self.bits, self.rows = bits, 0
        self._counts = LogCounts(bits, 0)

    def update(self, x: Any) -> Self:
        """Take in rows ``[..., unit]`` or sparse codes.

        Raises:
            NotFinite: NaN or infinity. ShapeMismatch: another number of units than before.
        """
        found = entries(x)
        found = found.where(found.value > 0)
        batch = self._empty()
        batch.rows, batch._counts = found.rows, LogCounts(self.bits, found.width)
        batch._counts.add(found.unit, found.value)
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        mine, theirs = len(self._counts.counts), len(other._counts.counts)
        if mine != theirs:
            raise ShapeMismatch("density", f"{theirs} units after {mine}", "keep one accumulator a site")
        self._counts.merge(other._counts)
        self.rows += other.rows

    @property
    def fired(self) -> Tensor:
        """Rows on which each unit was above 0, int64 ``[unit]``."""
        return torch.from_numpy(self._counts.counts.sum(1))

    @property
    def frequency(self) -> Tensor:
        """Share of rows on which each unit was above 0, float64 ``[unit]``.

        Raises:
            TooFewRows: no row.
        """
        if not self.rows:
            raise TooFewRows("density", "no row has been seen", "update it with rows first")
        return self.fired.double() / self.rows

    @property
    def counts(self) -> Tensor:
        """Rows per unit and bin, int64 ``[unit, bin]``; bin b holds ``edges[b] <= value < edges[b + 1]``."""
        return torch.from_numpy(self._counts.counts.copy())

    @property
    def edges(self) -> Tensor:
        """Edges of the bins, float64 ``[bin + 1]``, from the first bin that holds a value to the last."""
        empty = not self._counts.counts.shape[1]
        return torch.from_numpy(np.zeros(0) if empty else self._counts.edges)
