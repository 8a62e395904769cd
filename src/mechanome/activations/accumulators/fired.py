"""When each unit was last active, and how often: what tells dead units from rare ones."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator, same_shape
from mechanome.activations.accumulators.rows import entries
from mechanome.core.errors import BadInput, TooFewRows

NEVER = -1
"""The clock of a unit that was never active."""


class Fired(Accumulator):
    """Counts of rows above 0, and the clock of the last one; exact. The clock counts rows of the whole stream."""

    fields = ("clock", "_counts", "_last")

    def __init__(self) -> None:
        self.rows = self.clock = 0
        self._counts = self._last = np.zeros(0, dtype=np.int64)

    def update(self, x: Any, start: int) -> Self:
        """Take in rows ``[..., unit]`` or sparse codes.

        Args:
            start: the clock of the first of these rows; the next rows follow it.

        Raises:
            BadInput: a clock below 0. ShapeMismatch: another number of units. NotFinite: NaN or infinity.
        """
        if start < 0:
            raise BadInput("start", f"the clock cannot be {start}", "count rows from 0")
        found = entries(x)
        found = found.where(found.value > 0)
        batch = self._empty()
        batch.rows, batch.clock = found.rows, start + found.rows
        batch._counts, batch._last = found.sums(), np.full(found.width, NEVER)
        np.maximum.at(batch._last, found.unit, start + found.row)
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        same_shape("fired", self._counts, other._counts)
        self._counts = self._counts + other._counts
        self._last = np.maximum(self._last, other._last)
        self.rows, self.clock = self.rows + other.rows, max(self.clock, other.clock)

    @property
    def counts(self) -> Tensor:
        """Rows on which each unit was above 0, int64 ``[unit]``."""
        return torch.from_numpy(self._counts.copy())

    @property
    def last(self) -> Tensor:
        """The clock of each unit's last such row, int64 ``[unit]``; -1 for never."""
        return torch.from_numpy(self._last.copy())

    @property
    def frequency(self) -> Tensor:
        """Share of the rows seen on which each unit was above 0, float64 ``[unit]``.

        Raises:
            TooFewRows: no row.
        """
        if not self.rows:
            raise TooFewRows("fired", "no row has been seen", "update it with rows first")
        return self.counts.double() / self.rows

    def dead(self, window: int) -> Tensor:
        """Units that were not active on the last ``window`` ticks of the clock, bool ``[unit]``.

        Raises:
            BadInput: a window without ticks.
        """
        if window < 1:
            raise BadInput("window", f"{window} rows", "look back at least one row")
        return self.last < self.clock - window
