"""Mean and variance of each unit, from dense rows or sparse codes (Chan's pairwise update)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator, same_shape
from mechanome.activations.accumulators.rows import Sparse, dense, entries, finite
from mechanome.core.errors import TooFewRows


class Moments(Accumulator):
    """First and second moments, and extremes. Sums are kept around the mean, so a large mean costs no digits."""

    fields = ("_mean", "_spread", "_least", "_most")

    def __init__(self) -> None:
        self.rows = 0
        self._mean = self._spread = self._least = self._most = np.zeros(0)

    def update(self, x: Any) -> Self:
        """Take in rows ``[..., unit]`` or sparse codes.

        Raises:
            NotFinite: NaN, infinity, or squares beyond float64. ShapeMismatch: another number of units than before.
        """
        batch = self._empty()
        batch.rows, batch._mean, batch._spread, batch._least, batch._most = _of(x)
        batch._settle()
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        same_shape("moments", self._mean, other._mean)
        rows = self.rows + other.rows
        apart = other._mean - self._mean
        self._mean = self._mean + apart * (other.rows / rows)
        self._spread = self._spread + other._spread + apart**2 * (self.rows * (other.rows / rows))
        self._least, self._most = np.minimum(self._least, other._least), np.maximum(self._most, other._most)
        self.rows = rows
        self._settle()

    def _settle(self) -> None:
        """A unit that never varied has exactly its value as mean and no spread, whatever rounding says."""
        still = self._least == self._most
        self._mean, self._spread = np.where(still, self._least, self._mean), np.where(still, 0.0, self._spread)

    @property
    def mean(self) -> Tensor:
        """``[unit]``, float64."""
        return torch.from_numpy(self._some()._mean.copy())

    @property
    def variance(self) -> Tensor:
        """Mean squared deviation from the mean, ``[unit]``, float64 (divided by n)."""
        return torch.from_numpy(self._some()._spread / self.rows)

    @property
    def std(self) -> Tensor:
        """Root of :attr:`variance`."""
        return self.variance.sqrt()

    @property
    def second(self) -> Tensor:
        """Mean square, ``[unit]``, float64."""
        return self.variance + self.mean**2

    @property
    def least(self) -> Tensor:
        """Smallest value, ``[unit]``."""
        return torch.from_numpy(self._some()._least.copy())

    @property
    def most(self) -> Tensor:
        """Largest value, ``[unit]``."""
        return torch.from_numpy(self._some()._most.copy())

    def _some(self) -> Self:
        if not self.rows:
            raise TooFewRows("moments", "no row has been seen", "update it with rows first")
        return self


_NONE = np.zeros(0)


def _of(x: Any) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, mean, sum of squared deviations, least and most of one batch."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not isinstance(x, Sparse):
            data = dense(x)
            if not len(data):
                return 0, _NONE, _NONE, _NONE, _NONE
            mean = data.mean(0)
            spread = ((data - mean) ** 2).sum(0)
            return len(data), mean, finite(spread, "moments"), data.min(0), data.max(0)
        found = entries(x)
        if not found.rows:
            return 0, _NONE, _NONE, _NONE, _NONE
        mean = found.sums(found.value) / found.rows
        zeros = found.rows - found.sums()
        spread = found.sums((found.value - mean[found.unit]) ** 2) + zeros * mean**2
        least, most = (np.where(zeros > 0, 0.0, end) for end in (np.inf, -np.inf))
        np.minimum.at(least, found.unit, found.value)
        np.maximum.at(most, found.unit, found.value)
        return found.rows, mean, finite(spread, "moments"), least, most
