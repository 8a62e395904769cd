"""`Select`: which components a vector of scores chooses, as sets of any number of vectors at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.effects import Components
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of

By = Literal["absolute", "highest", "lowest"]

RANKS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute": lambda scores: scores.abs(),
    "highest": lambda scores: scores,
    "lowest": lambda scores: -scores,
}
"""What a component is ranked by: the size of its score, or the score with its sign."""


@dataclass(frozen=True)
class Select:
    """How a circuit follows from scores.

    Args:
        size: the so many components of the highest rank; None takes the fewest edges whose circuit links the embedding
            to the logits, without those on no such path (the minimal connected circuit).
        by: a name of `RANKS`.
        prune: leave out edges that lie on no path from the embedding to the logits.

    Raises:
        BadInput: another rank, a size below 1.
    """

    size: int | None = None
    by: By = "absolute"
    prune: bool = False

    def __post_init__(self) -> None:
        one_of("by", self.by, RANKS)
        if self.size is not None:
            count("size", self.size)

    @property
    def named(self) -> str:
        """The size as text."""
        return "minimal" if self.size is None else str(self.size)

    def sets(self, scores: Tensor, components: Components) -> Tensor:
        """The chosen components.

        Args:
            scores: `[sample, component]`; of equal ones the first are taken.
            components: what the columns are.

        Returns:
            `[sample, component]` of booleans.

        Raises:
            BadInput: a size that leaves nothing out, or paths where there are no edges of a graph.
        """
        if self.size is not None and self.size >= len(components):
            raise BadInput(
                f"a circuit of {self.size}",
                f"there are {len(components)} components, so it leaves nothing out and every sample agrees",
                f"choose fewer than {len(components)}",
            )
        if (self.size is None or self.prune) and (components.graph is None or not components.edges):
            raise BadInput("a connected circuit", "these are no edges of a graph", "score edges, or give a size")
        rank = RANKS[self.by](scores)
        if self.size is not None:
            chosen = largest(rank, self.size)
        else:
            order = rank.argsort(dim=1, descending=True, stable=True)
            chosen = torch.zeros_like(order, dtype=torch.bool)
            for row, ranked in zip(chosen, order):
                row[ranked[: _fewest(ranked, components)]] = True
        if self.size is None or self.prune:
            chosen = torch.stack([_circuit(row, components).pruned().edges[components.where] for row in chosen])
        return chosen


def largest(rank: Tensor, size: int) -> Tensor:
    """The so many largest of each row, of equal ones the first; without sorting, which would cost ten times as much.

    Args:
        rank: `[sample, component]`. size: up to the number of components.

    Returns:
        `[sample, component]` of booleans.
    """
    least = rank.topk(size, dim=1, sorted=False).values.amin(1, keepdim=True)
    above, level = rank > least, rank == least
    missing = size - above.sum(1, keepdim=True)
    return above | (level & (level.cumsum(1) <= missing))


def _circuit(chosen: Tensor, components: Components) -> Circuit:
    assert components.graph is not None
    return Circuit(components.graph, components.placed(chosen))


def _fewest(ranked: Tensor, components: Components) -> int:
    """How many of the first edges link the embedding to the logits; by bisection, as more edges never cut a link."""
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        chosen = torch.zeros(len(ranked), dtype=torch.bool)
        chosen[ranked[:middle]] = True
        low, high = (low, middle) if _circuit(chosen, components).connected else (middle, high)
    if high == len(ranked) and not _circuit(torch.ones(len(ranked), dtype=torch.bool), components).connected:
        raise BadInput("the minimal circuit", "not even all scored edges link input and logits", "score more edges")
    return high
