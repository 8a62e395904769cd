"""Which units are active on the same rows: exact counts of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from mechanome.activations.accumulators.accumulator import Accumulator, same_shape
from mechanome.activations.accumulators.rows import entries
from mechanome.core.errors import BadInput, BudgetTooSmall

MOST_UNITS = 16_384
"""Counts of all pairs of so many units take 2 GiB; more must be chosen among."""


class CoActivation(Accumulator):
    """Counts of rows on which two units are both above 0.

    Args:
        units: the units to count, in this order; None counts all.

    Raises:
        BadInput: a unit named twice.
    """

    settings = ("units",)
    fields = ("_counts",)

    def __init__(self, units: Sequence[int] | None = None) -> None:
        self.units = None if units is None else tuple(int(unit) for unit in units)
        if self.units is not None and (len(set(self.units)) < len(self.units) or min(self.units, default=0) < 0):
            raise BadInput("units", "one is named twice, or below 0", "name each unit once")
        self.rows = 0
        self._counts = np.zeros((0, 0), dtype=np.int64)

    def update(self, x: Any) -> Self:
        """Take in rows ``[..., unit]`` or sparse codes.

        Raises:
            BudgetTooSmall: more units than pairs of them can be held. BadInput: a chosen unit that x does not have.
            ShapeMismatch: another number of units than before. NotFinite: NaN or infinity.
        """
        found = entries(x)
        chosen = range(found.width) if self.units is None else self.units
        if len(chosen) > MOST_UNITS:
            why = f"pairs of {len(chosen)} units take {len(chosen) ** 2 * 8 / 2**30:.1f} GiB"
            raise BudgetTooSmall("co-activation", why, f"name up to {MOST_UNITS} units")
        if max(chosen, default=-1) >= found.width:
            raise BadInput("units", f"{max(chosen)} of {found.width}", f"name units 0 to {found.width - 1}")
        place = np.full(found.width, -1)
        place[list(chosen)] = np.arange(len(chosen))
        found = found.where((found.value > 0) & (place[found.unit] >= 0))
        ones = np.ones(len(found.unit), dtype=np.int64)
        active = csr_array((ones, (found.row, place[found.unit])), shape=(found.rows, len(chosen)))
        batch = self._empty()
        batch.rows, batch._counts = found.rows, (active.T @ active).toarray()
        return self.merge(batch)

    def _combine(self, other: Self) -> None:
        same_shape("co-activation", self._counts, other._counts)
        self._counts += other._counts
        self.rows += other.rows

    @property
    def counts(self) -> Tensor:
        """Rows on which both are active, int64 ``[unit, unit]``; the diagonal counts each unit alone."""
        return torch.from_numpy(self._counts.copy())

    @property
    def jaccard(self) -> Tensor:
        """Rows on which both are active over rows on which either is, float64 ``[unit, unit]``; NaN for 0 of 0."""
        both = self.counts.double()
        own = both.diagonal()
        return both / (own[:, None] + own[None, :] - both)

    @property
    def lift(self) -> Tensor:
        """How many times more often both are active than if they were independent, ``[unit, unit]``; NaN for 0 of 0."""
        both = self.counts.double()
        own = both.diagonal()
        return both * self.rows / (own[:, None] * own[None, :])
