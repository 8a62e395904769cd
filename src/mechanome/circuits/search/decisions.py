"""Decisions of ACDC: which edges are decided in which order, and what was decided.

Edges are taken from the outputs backward. An edge whose target no longer leads to the logits is idle: without it
nothing changes, so it goes without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.core import Table
from mechanome.engine.asked import seeded_generator


def _backward(group: list[int], generator: torch.Generator) -> list[int]:
    return group[::-1]


def _shuffled(group: list[int], generator: torch.Generator) -> list[int]:
    return [group[i] for i in torch.randperm(len(group), generator=generator).tolist()]


ORDERS: dict[str, Callable[[list[int], torch.Generator], list[int]]] = {"backward": _backward, "random": _shuffled}
"""How the targets that read at one place, and the sources of a target, are ordered."""


class Edge(NamedTuple):
    """An edge to be decided.

    Args:
        source, target: of the graph. known: how many sources have written before its target reads.
    """

    source: int
    target: int
    known: int


def edges_in_order(graph: Graph, edges: Tensor, order: str, seed: int) -> list[Edge]:
    """The edges of a circuit from the outputs backward.

    Args:
        graph: the graph.
        edges: `[source, target]` of booleans.
        order: a name of `ORDERS`: "backward" (targets, and sources of a target, last one first), or "random" among the
            targets of one kind and layer and among the sources of a target.
        seed: of a random order.
    """
    generator = seeded_generator(seed)
    found = []
    for group in reversed(graph.readers):
        for target in ORDERS[order](list(range(group.first, group.first + group.count)), generator):
            sources = ORDERS[order](edges[:, target].nonzero()[:, 0].tolist(), generator)
            found += [Edge(source, target, group.after) for source in sources]
    return found


class Decision(NamedTuple):
    """What became of an edge.

    Args:
        edge: which.
        change: of the objective without it; None for an idle edge, which was not run.
        kept: whether it stays.
    """

    edge: Edge
    change: float | None
    kept: bool


@dataclass
class Remaining:
    """The circuit that remains while edges are decided.

    Attributes:
        edges: `[source, target]` of booleans; replaced, never changed in place.
        value: its objective.
        serves: the sources computed from what each target reads.
    """

    edges: Tensor
    value: float
    serves: Sequence[Tensor]

    @classmethod
    def of(cls, graph: Graph, edges: Tensor, value: float) -> Remaining:
        """The circuit before anything is decided."""
        return cls(edges, value, [row.nonzero()[:, 0] for row in graph.feeds])

    def leads_on(self, target: int) -> bool:
        """Whether the edges into a target can matter, once all edges behind it have been decided."""
        return target == len(self.serves) - 1 or bool(self.edges[self.serves[target]].any())

    def without(self, edge: Edge) -> Tensor:
        """Its edges but one."""
        found = self.edges.clone()
        found[edge.source, edge.target] = False
        return found


@dataclass(frozen=True, eq=False)
class Decisions:
    """How ACDC came to its circuit.

    Args:
        graph: the graph.
        made: every decision, in order.
        threshold: an edge went where the objective changed by less.
        objective: which.
        circuits: how many circuits were run. rounds: in how many batches.
        alone: how many of them alone, for certainty: decisions close to the threshold, and checks of rounding.
        guesses: decisions that were predicted and could be compared. right: of these, how many came out so.
        rounding: by how much the objective of a circuit may differ between a run alone and one among others; an
            estimate from circuits run both ways. 0 where every circuit was run alone.
    """

    graph: Graph
    made: tuple[Decision, ...] = field(repr=False)
    threshold: float
    objective: str
    circuits: int
    rounds: int
    alone: int = 0
    guesses: int = 0
    right: int = 0
    rounding: float = 0.0

    @property
    def acceptance(self) -> float | None:
        """Share of guesses that were right; None where nothing was guessed."""
        return self.right / self.guesses if self.guesses else None

    @property
    def run(self) -> int:
        """Decisions that needed a run: all but those on idle edges."""
        return sum(decision.change is not None for decision in self.made)

    def table(self, k: int | None = 20) -> Table:
        """The decisions in order, `k` of them, None for all."""
        rows = [
            (self.graph.name(d.edge.source, d.edge.target), d.change, "kept" if d.kept else "removed")
            for d in self.made[:k]
        ]
        return Table(["edge", f"change of {self.objective} without it", "decision"], rows, repr(self))

    def __repr__(self) -> str:
        kept = sum(decision.kept for decision in self.made)
        text = f"{len(self.made)} edges decided at {self.threshold:g}, {kept} kept; {self.circuits} circuits run"
        text += f" in {self.rounds} batches"
        return text if self.acceptance is None else f"{text}, {self.acceptance:.1%} of guesses right"

    def _repr_html_(self) -> str:
        return self.table().html()
