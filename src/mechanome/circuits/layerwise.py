"""`SelectEach`: the same share of every layer, so that no layer of a network is left without a path.

Scores of different layers are on different scales, and a network whose layer keeps nothing computes nothing. Choosing
within each layer is how circuits of channels are made (paper 26).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.effects import Components
from mechanome.circuits.selecting import RANKS, By, largest
from mechanome.core import BadInput, ShapeMismatch
from mechanome.engine.asked import one_of


@dataclass(frozen=True, eq=False)
class SelectEach:
    """The highest-ranked share of every group of components.

    Args:
        share: of each group, above 0 and up to 1; at least one component, rounded to the nearest number.
        groups: a number for each component, such as its layer, `[component]`.
        by: a name of `RANKS`.

    Raises:
        BadInput: a share outside 0 to 1, or another rank. ShapeMismatch: groups of another shape.
    """

    share: float
    groups: Tensor = field(repr=False)
    by: By = "highest"

    def __post_init__(self) -> None:
        one_of("by", self.by, RANKS)
        if not 0 < self.share <= 1:
            raise BadInput(f"a share of {self.share!r}", "it is not above 0 and up to 1", "use 0.2 for a fifth")
        if self.groups.dim() != 1 or self.groups.is_floating_point():
            raise ShapeMismatch(
                f"groups of {self.groups.dtype} {list(self.groups.shape)}", "each component has one", "give integers"
            )

    def sets(self, scores: Tensor, components: Components) -> Tensor:
        """The chosen components.

        Args:
            scores: `[sample, component]`; of equal ones the first are taken. components: what the columns are.

        Returns:
            `[sample, component]` of booleans.

        Raises:
            ShapeMismatch: groups of other components.
        """
        if len(self.groups) != len(components):
            why = f"there are {len(components)} components"
            raise ShapeMismatch(f"{len(self.groups)} groups", why, "give one for each component")
        rank = RANKS[self.by](scores)
        chosen = torch.zeros(rank.shape, dtype=torch.bool)
        for group in self.groups.unique():
            members = (self.groups == group).nonzero()[:, 0]
            size = max(1, round(self.share * len(members)))
            chosen[:, members] = largest(rank[:, members], size)
        return chosen
