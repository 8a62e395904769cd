"""What keeps learned masks sparse: a size they must have, or a price for each edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mechanome.circuits.search.mask_training import Moment

_WARM = 0.6
"""Share of the training in which the target falls to the size asked for."""


@dataclass(frozen=True)
class Price:
    """Each edge costs something: an edge that improves the objective by less is not worth it.

    Args:
        each: in units of the objective.
    """

    each: float

    def __call__(self, moment: Moment) -> Tensor:
        return self.each * moment.open


class TargetSize(nn.Module):
    """The masks must have a size in expectation, by a Lagrangian with two multipliers per circuit.

    The multipliers climb as long as `log(expected edges / target)` is not 0 (Wang et al. 2020; edge pruning, Bhaskar et
    al. 2024, does so with shares in place of logarithms, which small circuits do not feel). The target falls
    geometrically from all edges to the size.

    Args:
        size: how many edges. total: how many may be open. circuits: how many circuits.
        scale: a cost that counts, such as that of the empty circuit: multipliers are in these units, so that the units
            of the objective do not matter.
    """

    def __init__(self, size: int, total: int, circuits: int = 1, scale: float = 1.0) -> None:
        super().__init__()
        self.size, self.total, self.scale = size, total, scale
        self.linear = nn.Parameter(torch.zeros(circuits))
        self.square = nn.Parameter(torch.zeros(circuits))

    def target(self, progress: float) -> float:
        """The size that is asked for so far."""
        return float(self.total * (self.size / self.total) ** min(1.0, progress / _WARM))

    def forward(self, moment: Moment) -> Tensor:
        """What the excess costs, `[circuit]`."""
        excess = (moment.open / self.target(moment.progress)).log()
        return self.scale * (self.linear * excess + self.square * excess.square())
