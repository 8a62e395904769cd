"""Screen, then verify: every edge by an estimate, the strongest again by running the model.

A gradient ranks seventy thousand edges in the time of a few passes, and is wrong about some. So the strongest are
measured exactly, both numbers are kept, and how well they agree is a number, too: the rank correlation, how many signs
and how many orders change. Where the exact effect is known, it is what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.score_matrix import Level, Scores
from mechanome.circuits.scoring import METHODS, scores
from mechanome.circuits.selecting import RANKS, By, largest
from mechanome.circuits.similarity import kendall
from mechanome.core import BadInput, Interval, NotFinite, Table, TooFewRows, notice, spearman
from mechanome.engine.asked import count, one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric
from mechanome.engine.plain import whole

if TYPE_CHECKING:
    from mechanome.tasks import Task

VERIFIED = 100
"""Edges that are measured exactly where no number is given."""


@dataclass(frozen=True, eq=False)
class Screened:
    """Estimates of all edges (or sources), and exact effects of the strongest.

    Args:
        estimate: of everything.
        exact: measured effects, NaN where nothing was measured; None where nothing was.
    """

    estimate: Scores = field(repr=False)
    exact: Scores | None = field(repr=False)

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.estimate.graph

    @property
    def verified(self) -> Tensor:
        """What was measured exactly, booleans of the shape of the scores."""
        return torch.zeros_like(self.estimate.known) if self.exact is None else self.exact.known

    @cached_property
    def scores(self) -> Scores:
        """What circuits are chosen by: the exact effect where it is known, else the estimate."""
        if self.exact is None:
            return self.estimate
        known, n = self.verified, int(self.verified.sum())
        each = None
        if self.estimate.each is not None and self.exact.each is not None:
            each = torch.where(known, self.exact.each, self.estimate.each)
        every = int(self.estimate.known.sum())
        rest = ", the others estimates" if n < every else ""
        note = f"{n:,} of {every:,} {self.estimate.level}s are exact effects{rest}"
        return replace(
            self.estimate,
            values=torch.where(known, self.exact.values, self.estimate.values),
            each=each,
            estimate=n < int(self.estimate.known.sum()),
            notes=(*self.estimate.notes, note),
        )

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Estimates and exact effects of what was measured, `[edge]` each."""
        known = self.verified
        exact = self.estimate.values if self.exact is None else self.exact.values
        return self.estimate.values[known], exact[known]

    @cached_property
    def agreement(self) -> Interval | None:
        """Spearman's rank correlation of estimate and exact effect, signs included, over what was measured.

        The interval is a bootstrap over edges. Only the strongest were measured, which lowers a correlation. None where
        it is not defined: fewer than two edges, or numbers that are all equal.
        """
        try:
            return spearman(*(x.double() for x in self.pairs()))
        except (TooFewRows, NotFinite):
            return None

    @property
    def signs_changed(self) -> int:
        """How many of those measured have another sign than was estimated."""
        estimate, exact = self.pairs()
        return int((estimate * exact < 0).sum())

    @property
    def reordered(self) -> float | None:
        """The share of pairs of those measured that change places when ranked by size.

        `(1 - tau) / 2` of Kendall's tau. None where fewer than two were measured, or all are of one size.
        """
        if int(self.verified.sum()) < 2:
            return None
        tau = float(kendall(torch.stack(self.pairs()).abs(), torch.tensor([[0, 1]])))
        return None if tau != tau else (1 - tau) / 2

    def circuit(self, size: int, by: By = "absolute") -> Circuit:
        """The edges of the highest rank (or all edges between the sources of the highest rank), without dangling ones.

        Args:
            size: edges, or sources, before those are left out that lie on no path from the embedding to the logits.
            by: a name of `mechanome.circuits.selecting.RANKS`.

        Raises:
            BadInput: more than there are.
        """
        return top(self.scores, size, by).pruned()

    def table(self, k: int | None = 20) -> Table:
        """The strongest by `scores`, with both numbers; no exact one where it was not measured."""
        known, level = self.estimate.known, self.estimate.level
        places, strength = known.nonzero(), self.scores.values[known].abs()
        rows = []
        for n in strength.argsort(descending=True, stable=True)[:k].tolist():
            at = tuple(places[n].tolist())
            ends = self.graph.sources[at[0]], *((self.graph.targets[at[1]],) if level == "edge" else ())
            estimate = float(self.estimate.values[at])
            exact = float(self.exact.values[at]) if self.exact is not None and bool(self.verified[at]) else None
            changed = exact is not None and estimate * exact < 0
            rows.append((*ends, estimate, exact, "another sign" if changed else ""))
        ends_named = ["source", "target"] if level == "edge" else ["source"]
        return Table([*ends_named, "estimate", "exact", "remark"], rows, repr(self))

    def __repr__(self) -> str:
        n, verified = int(self.estimate.known.sum()), int(self.verified.sum())
        agree = "" if self.agreement is None else f", rank correlation {self.agreement.estimate:.2f}"
        return f"{n} {self.estimate.level}s by {self.estimate.method}, {verified} of them measured exactly{agree}"

    def _repr_html_(self) -> str:
        return self.table().html()


def screen(
    graph: Graph,
    data: Task | Sequence[Any],
    metric: Metric | None = None,
    *,
    by: str = "eap-ig",
    verify: int | None = None,
    level: Level = "edge",
    intervention: str | Intervention = "patch",
    per_input: bool = False,
    budget: Budget = None,
    quiet: bool = False,
    **settings: Any,
) -> Screened:
    """Rank everything by an estimate, and measure the strongest exactly.

    Args:
        graph, data, metric, intervention, per_input, budget: as in `scores`.
        by: the estimate, a name of `METHODS`.
        verify: how many are measured; 0 for none. None for `VERIFIED` edges, or all where there are fewer, and for all
            sources, which are few unless MLPs are cut into units.
        level: "edge" or "node".
        quiet: no progress bar, and no word on what measuring costs.
        settings: `steps` and `quadrature` of `scores`.

    Raises:
        BadInput: a method that estimates nothing, or more edges than there are; and as `scores`.
    """
    one_of("by", by, [name for name, method in METHODS.items() if method.estimate], "it is no estimate")
    wanted = _wanted(graph, level, verify)
    shared: dict[str, Any] = {"intervention": intervention, "per_input": per_input, "budget": budget, "quiet": quiet}
    estimate = scores(graph, data, metric, method=by, level=level, **shared, **settings)
    if not wanted:
        return Screened(estimate, None)
    chosen, examples = top(estimate, wanted), len(estimate.clean)
    if not quiet:
        things, work = _cost_of(level, chosen, wanted, examples)
        notice(f"measuring {wanted:,} {things} exactly: {work} forward passes of one example; fewer with verify=")
    return Screened(estimate, scores(graph, data, metric, method="exact", level=level, only=chosen, **shared))


def top(found: Scores, size: int, by: By = "absolute") -> Circuit:
    """The circuit of the highest ranks: edges, or all edges between sources.

    Args:
        found: scores. size: how many edges or sources. by: what is ranked, a name of `RANKS`.

    Raises:
        BadInput: more than there are.
    """
    size, known, rank = count("size", size), found.known, RANKS[one_of("by", by, RANKS)]
    if size > int(known.sum()):
        raise BadInput(f"a circuit of {size} {found.level}s", f"there are {int(known.sum())}", "choose a smaller size")
    chosen = torch.zeros_like(known)
    chosen[known] = largest(rank(found.values[known])[None], size)[0]
    return Circuit(found.graph, chosen) if found.level == "edge" else Circuit.of_nodes(found.graph, chosen)


def cost(edges: Circuit, examples: int) -> float:
    """About how many forward passes of one example it takes to measure edges: blocks before a target are not run again.

    Args:
        edges: what is measured. examples: on how many.
    """
    layers = len(edges.graph.layers)
    each = edges.edges.sum(0).tolist()
    work = 0.0
    for group in edges.graph.readers:
        left = 0 if group.layer is None else layers - group.layer
        work += sum(each[group.nodes]) * left / layers
    return work * examples


def _cost_of(level: Level, chosen: Circuit, wanted: int, examples: int) -> tuple[str, str]:
    if level == "node":
        return "sources", f"at most {wanted * examples:,}"
    return "edges", f"about the work of {cost(chosen, examples):,.0f}"


def _wanted(graph: Graph, level: Level, verify: int | None) -> int:
    things, every = ("edges", graph.n_edges) if level == "edge" else ("sources", len(graph.sources))
    if verify is None:
        return min(VERIFIED, every) if level == "edge" else every
    found = whole(verify)
    if found is None or not 0 <= found <= every:
        raise BadInput(f"verify={verify!r}", f"the graph has {every} {things}", "give how many, or 0 for none")
    return found
