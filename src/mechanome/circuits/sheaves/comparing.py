"""How much circuits share: IoU of all pairs, and what is left of the intersection as circuits are added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import and_, or_

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.metrics import iou
from mechanome.core import BadInput


@dataclass(frozen=True)
class Shared:
    """What the first circuits have in common.

    Args:
        circuits: how many.
        edges: that all of them have.
        mutual: these over the edges that any has; None where none has any.
    """

    circuits: int
    edges: int
    mutual: float | None


def iou_matrix(circuits: Sequence[Circuit]) -> Tensor:
    """Shared over all edges of every pair, `[circuit, circuit]` float64; NaN for two without edges.

    Circuits should be pruned: edges that lead nowhere differ by chance and make circuits look apart.

    Raises:
        BadInput: circuits of different graphs.
    """
    found = torch.empty(len(circuits), len(circuits), dtype=torch.float64)
    for i, a in enumerate(circuits):
        for j, b in enumerate(circuits):
            value = iou(a, b).value
            found[i, j] = float("nan") if value is None else value
    return found


def mean_iou(circuits: Sequence[Circuit]) -> float:
    """Mean IoU over pairs of different circuits; NaN where a pair has no edges.

    Raises:
        BadInput: fewer than two circuits, or circuits of different graphs.
    """
    if len(circuits) < 2:
        raise BadInput(f"the mean IoU of {len(circuits)} circuits", "there is no pair", "give two or more")
    matrix = iou_matrix(circuits)
    return float(torch.stack([matrix[i, j] for i, j in combinations(range(len(circuits)), 2)]).mean())


def shared_edges(circuits: Sequence[Circuit]) -> tuple[Shared, ...]:
    """What the first one, two, ... circuits have in common; the number of edges never rises.

    Raises:
        BadInput: circuits of different graphs.
    """
    found = []
    for n in range(1, len(circuits) + 1):
        every, any_ = len(reduce(and_, circuits[:n])), len(reduce(or_, circuits[:n]))
        found.append(Shared(n, every, every / any_ if any_ else None))
    return tuple(found)
