"""Counts over bins that grow with the value, exact to the bit: a bin is the exponent and leading digits of a float.

Each octave (1 to 2, 2 to 4 ...) has ``2 ** bits`` bins of equal width. Which bin a value lies in is read from its
float64 form, without a logarithm that could round; counts are whole numbers, so sums of them do not depend on order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mechanome.core.errors import CorruptFile

_MANTISSA = 52


def bins_of(values: np.ndarray, bits: int) -> np.ndarray:
    """The bin of each positive float64, int64."""
    return np.ascontiguousarray(values).view(np.int64) >> (_MANTISSA - bits)


def edges_of(bins: np.ndarray, bits: int) -> np.ndarray:
    """The lower edge of each bin (and the upper edge of the one before), float64."""
    return (np.asarray(bins, dtype=np.int64) << (_MANTISSA - bits)).view(np.float64)


class LogCounts:
    """Counts ``[unit, bin]`` over a window of bins that widens as values come.

    Args:
        bits: ``2 ** bits`` bins an octave.
        width: how many units.

    Attributes:
        first: the bin of the first column. counts: int64 ``[unit, bin]``.
    """

    def __init__(self, bits: int, width: int) -> None:
        self.bits, self.first = bits, 0
        self.counts = np.zeros((width, 0), dtype=np.int64)

    def add(self, unit: np.ndarray, values: np.ndarray) -> None:
        """Count positive values ``[entry]`` of units ``[entry]``."""
        if not len(values):
            return
        bins = bins_of(values, self.bits)
        self._reach(int(bins.min()), int(bins.max()))
        width, window = self.counts.shape
        place = unit * window + (bins - self.first)
        self.counts += np.bincount(place, minlength=width * window).reshape(width, window)

    def merge(self, other: LogCounts) -> None:
        """Add the counts of other values."""
        if other.counts.shape[1]:
            self._reach(other.first, other.first + other.counts.shape[1] - 1)
            start = other.first - self.first
            self.counts[:, start : start + other.counts.shape[1]] += other.counts

    @property
    def edges(self) -> np.ndarray:
        """``[bin + 1]``."""
        return edges_of(np.arange(self.first, self.first + self.counts.shape[1] + 1), self.bits)

    def state_dict(self) -> dict[str, Any]:
        """As plain values and arrays."""
        return {"first": self.first, "counts": self.counts.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the counts of :meth:`state_dict`.

        Raises:
            CorruptFile: it is none.
        """
        if set(state) != {"first", "counts"}:
            raise CorruptFile("counts", f"they hold {sorted(state)}", "use a whole state")
        self.first, self.counts = state["first"], state["counts"].copy()

    def _reach(self, least: int, most: int) -> None:
        """Widen the window to hold these bins."""
        width, window = self.counts.shape
        if not window:
            self.first, self.counts = least, np.zeros((width, most - least + 1), dtype=np.int64)
            return
        before, after = max(0, self.first - least), max(0, most - (self.first + window - 1))
        if before or after:
            self.counts = np.pad(self.counts, ((0, 0), (before, after)))
            self.first -= before
