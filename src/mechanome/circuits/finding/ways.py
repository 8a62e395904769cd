"""Every way to find a circuit, as one table: estimates that are verified, exact effects, searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mechanome.circuits.attribution import relp_rules
from mechanome.circuits.circuit import Circuit
from mechanome.circuits.graph import Graph
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import METHODS, scores
from mechanome.circuits.screening import VERIFIED, Screened, screen
from mechanome.circuits.search import SEARCHES, search
from mechanome.tasks import Task

if TYPE_CHECKING:
    from mechanome.circuits.finding.settings import Settings


@dataclass(frozen=True, eq=False)
class Ranked:
    """What a way gives: scores of everything, a circuit of its own, or both.

    Args:
        scores: what circuits of any size are chosen by, or what ranked the edges of a search's own; None without any.
        screened: estimates beside exact effects, where there are both.
        own: the circuit that a search settled on.
        notes: what a reader must know.
    """

    scores: Scores | None
    screened: Screened | None = None
    own: Circuit | None = None
    notes: tuple[str, ...] = field(default=())


Find = Callable[[Graph, Task, "Settings", bool], Ranked]
"""From a graph, examples, settings, and whether to be quiet."""


@dataclass(frozen=True)
class Way:
    """One way.

    Args:
        find: does it.
        says: what it is, in one clause.
        levels: what it can choose.
        limits: settings that say where it stops; a search needs one of them, scores are cut at any size.
        screens: whether it is an estimate whose strongest edges are measured.
        searches: whether it gives a circuit of its own, and no curve.
    """

    find: Find
    says: str
    levels: tuple[str, ...] = ("edge", "node")
    limits: tuple[str, ...] = ("size",)
    screens: bool = False
    searches: bool = False


RELP = "relp"
"""The way of paper 20: `eap` under backward rules that hold norms, attention and activations linear."""


def _screened(graph: Graph, data: Task, asked: Settings, quiet: bool) -> Ranked:
    relp = asked.method == RELP
    found = screen(
        graph,
        data,
        by="eap" if relp else asked.method,
        verify=_verified(graph, asked),
        rules=relp_rules(graph.opened()) if relp else (),
        level=asked.level,  # type: ignore[arg-type]
        intervention=asked.intervention,
        per_input=asked.stability or asked.certify,
        budget=asked.budget,
        quiet=quiet,
    )
    found = replace(found, estimate=replace(found.estimate, method=asked.method))
    return Ranked(found.scores, found, notes=found.scores.notes)


def _verified(graph: Graph, asked: Settings) -> int | None:
    """How many are measured exactly: units are many, so that not every source is."""
    if asked.verify is not None or asked.units is None or asked.level == "edge":
        return asked.verify
    return min(VERIFIED, len(graph.sources))


def _exact(graph: Graph, data: Task, asked: Settings, quiet: bool) -> Ranked:
    found = scores(
        graph,
        data,
        method="exact",
        level=asked.level,  # type: ignore[arg-type]
        intervention=asked.intervention,
        per_input=asked.stability or asked.certify,
        budget=asked.budget,
        quiet=quiet,
    )
    return Ranked(found, notes=found.notes)


def _searched(graph: Graph, data: Task, asked: Settings, quiet: bool) -> Ranked:
    found = search(
        graph,
        data,
        method=asked.method,
        size=asked.size,
        threshold=asked.threshold,
        intervention=asked.intervention,
        budget=asked.budget,
        seed=asked.seed,
        quiet=quiet,
    )
    runs = (f"{found.evaluations:,} circuits were run to find this one",) if found.evaluations else ()
    return Ranked(found.scores, None, found.circuit, (*found.notes, *runs))


WAYS: dict[str, Way] = {
    **{
        name: Way(_screened if method.estimate else _exact, method.definition, screens=method.estimate)
        for name, method in METHODS.items()
    },
    RELP: Way(_screened, "one gradient with norms, attention and activations held linear (RelP)", screens=True),
    **{name: Way(_searched, way.definition, ("edge",), way.limits, searches=True) for name, way in SEARCHES.items()},
}
"""Every way by name."""
