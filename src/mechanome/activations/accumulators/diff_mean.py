"""The difference of two classes' means: the plainest direction, and what many methods start from."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator
from mechanome.activations.accumulators.moments import Moments
from mechanome.activations.accumulators.rows import dense, rows_of
from mechanome.core.errors import BadInput, TooFewRows


class DiffMean(Accumulator):
    """Rows ``x [row, unit]`` with a class ``y [row]`` of 0 or 1."""

    parts = ("_zero", "_one")

    def __init__(self) -> None:
        self.rows = 0
        self._zero, self._one = Moments(), Moments()

    def update(self, x: Any, y: Any) -> Self:
        """Take in rows and their classes.

        Raises:
            BadInput: a class that is not 0, 1, False or True. ShapeMismatch: not one class a row, or other units than
                before. NotFinite: NaN or infinity.
        """
        data = dense(x)
        label = rows_of(y, len(data), "y")
        if not np.isin(label, (0, 1)).all():
            raise BadInput("y", f"classes {sorted(set(label.tolist()))[:5]}", "give 0 or 1 for each row")
        batch = self._empty()
        batch.rows = len(data)
        batch._zero.update(data[label == 0])
        batch._one.update(data[label == 1])
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        self._zero.merge(other._zero)
        self._one.merge(other._one)
        self.rows += other.rows

    @property
    def counts(self) -> tuple[int, int]:
        """Rows of class 0 and of class 1."""
        return self._zero.rows, self._one.rows

    @property
    def classes(self) -> tuple[Moments, Moments]:
        """Moments of class 0 and of class 1."""
        return self._zero.copy(), self._one.copy()

    @property
    def difference(self) -> Tensor:
        """Mean of class 1 less mean of class 0, ``[unit]``, float64.

        Raises:
            TooFewRows: a class without rows.
        """
        zero, one = self._both(1)
        return one.mean - zero.mean

    @property
    def effect(self) -> Tensor:
        """The difference in pooled standard deviations (Cohen's d), ``[unit]``, float64; NaN where nothing varied.

        Raises:
            TooFewRows: a class with fewer than two rows.
        """
        zero, one = self._both(2)
        pooled = (zero.variance * zero.rows + one.variance * one.rows) / (zero.rows + one.rows - 2)
        return torch.where(pooled > 0, (one.mean - zero.mean) / pooled.sqrt(), torch.nan)

    def _both(self, least: int) -> tuple[Moments, Moments]:
        if min(self.counts) < least:
            why = f"{self.counts[0]} rows of class 0 and {self.counts[1]} of class 1"
            raise TooFewRows("difference of means", why, f"give each class {least} or more")
        return self._zero, self._one
