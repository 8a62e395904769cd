"""The rows that excite each unit most: a bounded list per unit, the same whatever order the rows came in."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator
from mechanome.activations.accumulators.rows import entries, rows_of
from mechanome.core.errors import BadInput, ShapeMismatch

NOBODY = -1
"""The id where a unit has fewer examples than places."""


class TopExamples(Accumulator):
    """The ``k`` rows of largest value per unit; only values above 0 count. Of equal values the smaller id wins.

    Where rows come in groups (the tokens of a text), each group holds at most one place, with its best row, so that one
    text cannot fill a unit's list.

    Args:
        k: places per unit.

    Raises:
        BadInput: no place.
    """

    settings = ("k",)
    fields = ("width", "_unit", "_value", "_id", "_group")

    def __init__(self, k: int = 20) -> None:
        if k < 1:
            raise BadInput("k", f"{k} places", "keep at least one example a unit")
        self.k, self.rows, self.width = k, 0, 0
        self._unit = self._id = self._group = np.zeros(0, dtype=np.int64)
        self._value = np.zeros(0)

    def update(self, x: Any, ids: Any, groups: Any = None) -> Self:
        """Take in rows ``[row, unit]`` (dense or sparse codes).

        Args:
            ids: int64 ``[row]`` from 0 on, by which a row is found again.
            groups: int64 ``[row]``; without them every id is a group of its own.

        Raises:
            ShapeMismatch: not one id a row, or another number of units. BadInput: ids below 0. NotFinite: NaN.
        """
        found = entries(x)
        id_ = rows_of(ids, found.rows, "ids")
        group = id_ if groups is None else rows_of(groups, found.rows, "groups")
        if found.rows and id_.min() < 0:
            raise BadInput("ids", f"{id_.min()} is below 0", "count rows from 0")
        if self.rows and found.width != self.width:
            raise ShapeMismatch("top examples", f"{found.width} units after {self.width}", "keep one a site")
        found = found.where(found.value > (self._bar()[found.unit] if self.rows else 0.0))
        batch = self._empty()
        batch.rows, batch.width = len(id_), found.width
        batch._keep(found.unit, found.value, id_[found.row], group[found.row])
        return self.merge(batch)

    def _bar(self) -> np.ndarray:
        """What a value must pass to matter, ``[unit]``: just below the last place if all are taken, else 0."""
        full = np.bincount(self._unit, minlength=self.width) == self.k
        least = np.full(self.width, np.inf)
        np.minimum.at(least, self._unit, self._value)
        return np.where(full, np.nextafter(least, -np.inf), 0.0).clip(0.0)

    def _combine(self, other: Self) -> None:
        if other.width != self.width:
            raise ShapeMismatch("top examples", f"{other.width} units after {self.width}", "keep one a site")
        pairs = zip(
            (self._unit, self._value, self._id, self._group), (other._unit, other._value, other._id, other._group)
        )
        self._keep(*(np.concatenate(pair) for pair in pairs))
        self.rows += other.rows

    def _keep(self, unit: np.ndarray, value: np.ndarray, id_: np.ndarray, group: np.ndarray) -> None:
        """Keep the best of each group, then the best ``k`` groups of each unit."""
        order = np.lexsort((id_, -value, group, unit))
        unit, value, id_, group = unit[order], value[order], id_[order], group[order]
        best = np.ones(len(unit), dtype=bool)
        best[1:] = (unit[1:] != unit[:-1]) | (group[1:] != group[:-1])
        unit, value, id_, group = unit[best], value[best], id_[best], group[best]
        order = np.lexsort((group, id_, -value, unit))
        unit, value, id_, group = unit[order], value[order], id_[order], group[order]
        first = np.searchsorted(unit, unit)
        kept = np.arange(len(unit)) - first < self.k
        self._unit, self._value, self._id, self._group = unit[kept], value[kept], id_[kept], group[kept]

    @property
    def values(self) -> Tensor:
        """``[unit, place]``, float64, best first; 0 where a place is empty."""
        return self._table(self._value, 0.0)

    @property
    def ids(self) -> Tensor:
        """``[unit, place]``, int64; -1 where a place is empty."""
        return self._table(self._id, NOBODY)

    @property
    def groups(self) -> Tensor:
        """``[unit, place]``, int64; -1 where a place is empty (see :attr:`ids`)."""
        return self._table(self._group, NOBODY)

    def _table(self, column: np.ndarray, empty: float | int) -> Tensor:
        table = np.full((self.width, self.k), empty, dtype=column.dtype)
        place = np.arange(len(self._unit)) - np.searchsorted(self._unit, self._unit)
        table[self._unit, place] = column
        return torch.from_numpy(table)
