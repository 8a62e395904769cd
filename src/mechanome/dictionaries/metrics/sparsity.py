"""How often latents are active: L0 over rows, density over latents, dead ones. Counts, so everything is exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators import Accumulator
from mechanome.core import ShapeMismatch, TooFewRows
from mechanome.dictionaries.metrics.measure import Measure, measure

if TYPE_CHECKING:
    from mechanome.dictionaries.codes import SparseCodes

_QUANTILES = {"l0_p5.v1": 0.05, "l0_p50.v1": 0.5, "l0_p95.v1": 0.95}
_DENSE = 0.1


class FiringCounts(Accumulator):
    """On how many rows each latent is not 0, and how many rows have how many such latents; a mergeable accumulator.

    Args:
        width: number of latents.
    """

    settings = ("width",)
    fields = ("_active", "_l0")

    def __init__(self, width: int) -> None:
        self.width, self.rows = width, 0
        self._active = np.zeros(width, dtype=np.int64)
        self._l0 = np.zeros(width + 1, dtype=np.int64)

    def update(self, codes: SparseCodes) -> Self:
        """Add the codes of some rows.

        Raises:
            ShapeMismatch: codes of another width.
        """
        if codes.width != self.width:
            raise ShapeMismatch("codes", f"{codes.width} latents for {self.width}", "count one dictionary at a time")
        self.rows += codes.rows
        self._active = self._active + codes.counts().cpu().numpy()
        self._l0 = self._l0 + np.bincount(codes.l0().cpu().numpy(), minlength=self.width + 1)
        return self

    def _combine(self, other: Self) -> None:
        self.rows += other.rows
        self._active, self._l0 = self._active + other._active, self._l0 + other._l0

    @property
    def active(self) -> Tensor:
        """On how many rows each latent is not 0, `[latent]` int64."""
        return torch.from_numpy(self._active.copy())

    @property
    def l0(self) -> Tensor:
        """How many rows have 0, 1, 2 ... active latents, `[latent + 1]` int64."""
        return torch.from_numpy(self._l0.copy())

    @property
    def density(self) -> Tensor:
        """Per latent, the share of rows on which it is active, `[latent]` float64.

        Raises:
            TooFewRows: nothing was counted.
        """
        if not self.rows:
            raise TooFewRows("a density", "there are no rows", "give at least one batch")
        return self.active.double() / self.rows

    @property
    def dead(self) -> Tensor:
        """Which latents were never active, `[latent]` of booleans; on few rows rare ones count as dead."""
        return self.active == 0

    def l0_quantile(self, share: float) -> int:
        """The smallest number of active latents that at least this share of rows does not exceed."""
        reached = self.l0.cumsum(0).double() >= share * self.rows
        return int(reached.nonzero()[0])

    def histogram(self, per_decade: int = 4) -> list[tuple[float, float, int]]:
        """Latents by density: lower end, upper end and number, in equal steps of log10; dead ones have none."""
        alive = self.density[~self.dead]
        if not len(alive):
            return []
        steps = torch.floor(alive.log10() * per_decade + 1e-9).long()
        numbers = torch.bincount(steps - steps.min())
        first = int(steps.min())
        ends = [(10 ** ((first + i) / per_decade), 10 ** ((first + i + 1) / per_decade)) for i in range(len(numbers))]
        return [(low, high, int(n)) for (low, high), n in zip(ends, numbers)]


def sparsity_measures(found: FiringCounts) -> Iterator[Measure]:
    """Quantiles of L0, dead and dense share, median density.

    Raises:
        TooFewRows: nothing was counted.
    """
    density = found.density
    for name, at in _QUANTILES.items():
        yield measure(name, float(found.l0_quantile(at)), found.rows)
    yield measure("dead.v1", float(found.dead.double().mean()), found.rows)
    yield measure("density_p50.v1", float(density.quantile(0.5, interpolation="lower")), found.rows)
    yield measure("dense.v1", float((density > _DENSE).double().mean()), found.rows)


def l0(codes: SparseCodes) -> float:
    """Mean number of active latents per row (`l0.v1`)."""
    return float(codes.l0().double().mean())


def density(codes: SparseCodes) -> Tensor:
    """Share of rows on which each latent is active, `[latent]` float64."""
    counts = FiringCounts(codes.width)
    counts.update(codes)
    return counts.density


def dead(codes: SparseCodes) -> float:
    """Share of latents that are active on no row (`dead.v1`)."""
    return float((density(codes) == 0).double().mean())
