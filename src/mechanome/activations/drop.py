"""Which rows are left out: an explicit policy, kept with the data.

The first token, and in many models a few others, carry a norm tens of times that of any other row (attention sinks).
They say nothing of the text and would take over the loss of whatever is trained on the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.sequences import Sequences
from mechanome.core.errors import BadInput
from mechanome.engine.plain import integers, number


@dataclass(frozen=True)
class Drop:
    """What is left out.

    Args:
        bos: the first token of a sequence where it is the one that `bos=` names.
        sinks: rows whose norm, at any of the sites, is above `max_norm_multiple` times the site's median norm. The
            median is taken once, over the first tokens of the data, and kept with the data.
        max_norm_multiple: see there.
        positions: positions in a sequence to leave out, whatever stands there.

    Raises:
        BadInput: a multiple that is not above 1 or not finite, or a position that is no whole number from 0.
    """

    bos: bool = True
    sinks: bool = True
    max_norm_multiple: float = 10.0
    positions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", integers(self.positions, "positions", "give 0, 1, ..."))
        object.__setattr__(self, "max_norm_multiple", number(self.max_norm_multiple, "max_norm_multiple", "give 10"))
        if not 1 < self.max_norm_multiple < math.inf:
            raise BadInput(
                f"max_norm_multiple={self.max_norm_multiple}",
                "it would drop most rows, or none",
                "give e.g. 10; sinks=False drops none",
            )
        if any(p < 0 for p in self.positions):
            raise BadInput(f"positions={self.positions}", "they count from the start of a sequence", "give 0, 1, ...")

    @classmethod
    def of(cls, drop: Any) -> Drop:
        """A policy that was asked for; None stands for the default one.

        Raises:
            BadInput: it is none.
        """
        if drop is not None and not isinstance(drop, Drop):
            raise BadInput(f"drop={drop!r}", "it is no policy", "give Drop(...), or Drop.nothing() to keep every row")
        return cls() if drop is None else drop

    @classmethod
    def nothing(cls) -> Drop:
        """Keep every row."""
        return cls(bos=False, sinks=False)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "positions": list(self.positions)}

    def by_place(self, data: Sequences, seq: np.ndarray, pos: np.ndarray) -> np.ndarray:
        """Which rows stay as far as their place decides, boolean `[row]`."""
        keep = ~np.isin(pos, self.positions)
        if self.bos and data.first is not None:
            keep &= (pos > 0) | (data.ids[data.offsets[seq]] != data.first)
        return keep

    def by_norm(self, values: Mapping[str, Tensor], medians: Mapping[str, float]) -> Tensor:
        """Which rows stay as far as their norms decide, boolean `[row]`."""
        keep = torch.ones(len(next(iter(values.values()))), dtype=torch.bool)
        if self.sinks:
            for site, x in values.items():
                keep &= (x.float().norm(dim=1) <= self.max_norm_multiple * medians[site]).cpu()
        return keep
