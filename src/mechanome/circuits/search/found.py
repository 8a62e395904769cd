"""`Found`: a circuit, how it was found, and what a reader must know of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import ROOTED
from mechanome.circuits.live_edges import live_edges
from mechanome.circuits.score_matrix import Scores
from mechanome.core import Table


class History(Protocol):
    """What happened on the way: `Decisions` of ACDC, `Training` of masks."""

    def table(self, k: int | None = 20) -> Table:
        """The steps, one a row."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Args:
        circuit: the circuit.
        method: a name of `mechanome.circuits.SEARCHES`; the gate, where masks were trained without it.
        scores: what ranked or predicted edges; None where nothing did.
        evaluations: how many circuits were run on the way, each on all examples of its batch; scores are not counted.
        notes: what a reader must know.
        history: what happened on the way, where there is more to tell: decisions of ACDC, training of masks.
    """

    circuit: Circuit
    method: str
    scores: Scores | None = field(default=None, repr=False)
    evaluations: int = 0
    notes: tuple[str, ...] = ()
    history: History | None = field(default=None, repr=False)

    def table(self, k: int | None = 20) -> Table:
        """The edges of the circuit, the largest scores first where there are any; `k` of them, None for all."""
        return replace(self.circuit.table(self.scores, k), title="; ".join([repr(self), *self.notes]))

    def __repr__(self) -> str:
        runs = f", {self.evaluations} circuits run" if self.evaluations else ""
        return f"{self.circuit!r}, found by {self.method}{runs}"

    def _repr_html_(self) -> str:
        return self.table().html()


def trimmed(graph: Graph, edges: Tensor, intervention: str, prune: bool) -> tuple[Circuit, tuple[str, ...]]:
    """Chosen edges as a circuit, and a note on those that were left out because they can change nothing.

    Args:
        graph: the graph.
        edges: chosen, `[source, target]` of booleans.
        intervention: what other edges carry. A source that nothing clean reaches has just its patched value where that
            comes from a run of the model; elsewhere only edges from which no path leads to the logits are idle.
        prune: whether to leave idle edges out.
    """
    if not prune:
        return Circuit(graph, edges), ()
    live = live_edges(graph, edges[None], intervention in ROOTED)[0]
    idle = int((edges & ~live).sum())
    return Circuit(graph, live), (f"{idle} chosen edges change nothing and were left out",) if idle else ()


def empty_edges(graph: Graph) -> Tensor:
    """No edge, `[source, target]` of booleans."""
    return torch.zeros(graph.shape, dtype=torch.bool)
