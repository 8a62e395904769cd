"""Covariance and correlation of every unit with every outcome, streamed."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator, same_shape
from mechanome.activations.accumulators.moments import Moments
from mechanome.activations.accumulators.rows import Sparse, dense, entries, finite
from mechanome.core.errors import ShapeMismatch, TooFewRows


class Correlation(Accumulator):
    """Units ``x [row, unit]`` (dense or sparse codes) against outcomes ``y [row, outcome]`` (dense).

    Without y, units are taken against each other. Sums are kept around both means; for sparse codes only the entries
    are touched, because outcomes without their mean need no mean of x to be taken off.
    """

    fields = ("_joint",)
    parts = ("_x", "_y")

    def __init__(self) -> None:
        self.rows = 0
        self._x, self._y = Moments(), Moments()
        self._joint = np.zeros((0, 0))

    def update(self, x: Any, y: Any = None) -> Self:
        """Take in rows and their outcomes; an outcome ``[row]`` counts as ``[row, 1]``.

        Raises:
            NotFinite: NaN or infinity. ShapeMismatch: other numbers of rows, units or outcomes than before; sparse
                codes without outcomes.
        """
        if y is None and isinstance(x, Sparse):
            raise ShapeMismatch("outcomes", "sparse codes have none", "give y; see CoActivation for codes themselves")
        outcome = dense(x if y is None else y, "y")
        batch = self._empty()
        batch._y.update(outcome)
        centered = outcome - batch._y._mean if len(outcome) else outcome
        if isinstance(x, Sparse):
            found = entries(x)
            rows, left = found.rows, csr_array((found.value, (found.unit, found.row)), (found.width, found.rows))
            batch._x.update(x)
        else:
            data = dense(x)
            batch._x.update(data)
            rows, left = len(data), (data - batch._x._mean).T if len(data) else data.T
        if rows != len(outcome):
            raise ShapeMismatch("outcomes", f"{len(outcome)} for {rows} rows", "give one a row")
        if rows:
            batch.rows, batch._joint = rows, finite(left @ centered, "correlation")
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        same_shape("correlation", self._joint, other._joint)
        rows = self.rows + other.rows
        apart = np.outer(other._x._mean - self._x._mean, other._y._mean - self._y._mean)
        self._joint = self._joint + other._joint + apart * (self.rows * (other.rows / rows))
        self._x.merge(other._x)
        self._y.merge(other._y)
        self.rows = rows

    @property
    def covariance(self) -> Tensor:
        """``[unit, outcome]``, float64 (divided by n).

        Raises:
            TooFewRows: no row.
        """
        if not self.rows:
            raise TooFewRows("correlation", "no row has been seen", "update it with rows first")
        return torch.from_numpy(self._joint / self.rows)

    @property
    def correlation(self) -> Tensor:
        """Pearson's, ``[unit, outcome]``, float64; NaN where a side never varied.

        Raises:
            TooFewRows: fewer than two rows.
        """
        if self.rows < 2:
            raise TooFewRows("correlation", f"{self.rows} rows have been seen", "update it with two rows or more")
        with np.errstate(invalid="ignore", divide="ignore"):
            # One root after the other: the product of two small spreads could vanish.
            found = self._joint / np.sqrt(self._x._spread)[:, None] / np.sqrt(self._y._spread)[None, :]
        varied = (self._x._spread > 0)[:, None] & (self._y._spread > 0)[None, :]
        return torch.from_numpy(np.where(varied, np.clip(found, -1.0, 1.0), np.nan))

    @property
    def x(self) -> Moments:
        """Moments of the units."""
        return self._x.copy()

    @property
    def y(self) -> Moments:
        """Moments of the outcomes."""
        return self._y.copy()
