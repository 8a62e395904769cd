"""`discover`: from a task to a circuit, how good it is on examples it has not seen, and how far to trust it."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from mechanome.circuits.certification import Certificate, certify
from mechanome.circuits.circuit import Circuit
from mechanome.circuits.finding.attention import Look, looks
from mechanome.circuits.finding.carriers import Carriers, carriers, strongest
from mechanome.circuits.finding.certifiable import check_certifiable
from mechanome.circuits.finding.examples import Halves, halves, opened_task
from mechanome.circuits.finding.measuring import Measures, check_sizes, keeps, measured, misses, total
from mechanome.circuits.finding.settings import Settings
from mechanome.circuits.finding.unit_graph import check_room, graph_of
from mechanome.circuits.finding.ways import WAYS, Ranked
from mechanome.circuits.graph import Graph
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import accuracy, circuit_error, completeness, divergence, faithfulness, iou, ndf
from mechanome.circuits.screening import top
from mechanome.circuits.selecting import Select
from mechanome.circuits.stability import stability_report
from mechanome.circuits.stability_card import StabilityReport
from mechanome.core import stage, versions
from mechanome.engine import Model, load
from mechanome.tasks import Task

SAMPLES = {"scores": 200, "search": 20}
"""Resamples of a report card: of scores, which are kept per example, and of a search, which is run again for each."""
_LARGEST = 0.2
"""Share of the graph beyond which the report card looks at no circuit: larger ones are alike by size alone."""
_MEASURES = {
    "faithfulness": faithfulness,
    "NDF": ndf,
    "KL (nats)": divergence,
    "accuracy": accuracy,
    "circuit error": circuit_error,
}


@dataclass(frozen=True, eq=False)
class Discovery:
    """A circuit for a task, and how far to trust it; it prints as a page.

    Args:
        settings: what was asked.
        graph: whose circuit.
        halves: the examples.
        ranked: what the method gave.
        measures: the circuit, and what it does on both halves.
        stability: the report card, where it was asked for.
        certificate: of the circuit's size, over the examples it was found on, where it was asked for.
        carriers: its strongest units, measured on held-out examples, where MLPs were cut into units.
        looks: where heads of the circuit look most, by source.
        notes: what a reader must know.
        seconds: wall time by stage.
        versions: of the programs.
    """

    settings: Settings
    graph: Graph
    halves: Halves
    ranked: Ranked = field(repr=False)
    measures: Measures = field(repr=False)
    stability: StabilityReport | None = None
    certificate: Certificate | None = None
    carriers: Carriers | None = None
    looks: dict[str, Look] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict, repr=False)
    versions: dict[str, str] = field(default_factory=versions, repr=False)

    @property
    def model(self) -> Model:
        """The model."""
        return self.graph.opened()

    @property
    def circuit(self) -> Circuit:
        """The circuit, without edges that lie on no path."""
        return self.measures.chosen.circuit

    @cached_property
    def faithfulness(self) -> Measured:
        """Of the circuit, on the held-out examples."""
        return self.measures.held_out.faithfulness

    @property
    def heads(self) -> list[str]:
        """The heads that send along its edges."""
        used = self.circuit.used.tolist()
        groups = [g for g in self.graph.writers if g.kind == "head"]
        return [self.graph.sources[i] for g in groups for i in range(g.first, g.first + g.count) if used[i]]

    @cached_property
    def verdict(self) -> str:
        """What the interval on held-out examples says about the share of the effect that is needed.

        "faithful": all of it is at least that; "not faithful": none of it; "undecided": some; "no effect": the two
        inputs do not differ, so there is nothing to keep.
        """
        if self.faithfulness.value is None:
            return "no effect"
        return "faithful" if keeps(self.faithfulness) else "not faithful" if misses(self.faithfulness) else "undecided"

    @cached_property
    def properties(self) -> dict[str, tuple[Measured, Measured]]:
        """Every measure of the circuit by name: on the examples it was found on, and on the held-out ones."""
        sides = self.measures.finding.own, self.measures.held_out.own
        return {name: (of(sides[0])[0], of(sides[1])[0]) for name, of in _MEASURES.items()}

    @cached_property
    def without(self) -> dict[str, Measured]:
        """What is left without the circuit, on the held-out examples."""
        left = self.measures.complement
        return {"faithfulness of the rest": completeness(left)[0], "accuracy of the rest": accuracy(left)[0]}

    @cached_property
    def overlap(self) -> Measured | None:
        """How much the circuit shares with the one of its size that the estimate alone would have chosen.

        None where nothing was measured exactly, or where no edge of either lies on a path.
        """
        s = self.ranked.screened
        if s is None or s.exact is None:
            return None
        shared = iou(self.circuit, top(s.estimate, self.measures.chosen.size).pruned())
        return None if shared.value is None else shared

    def record(self) -> dict[str, Any]:
        """Everything as plain data."""
        from mechanome.circuits.finding.record import record

        return record(self)

    def html(self, replay: str = "") -> str:
        """The report page."""
        from mechanome.circuits.page import document

        return document(self, replay).html()

    def _repr_html_(self) -> str:
        from mechanome.circuits.page import document

        return document(self).framed()

    def __rich__(self) -> Any:
        from mechanome.circuits.finding.terminal import page

        return page(self)

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __repr__(self) -> str:
        return f"Discovery({self.halves.finding.name}, {self.circuit!r}: {self.verdict})"


def discover(task: str | Task, model: str | Model, *, quiet: bool = False, **settings: Any) -> Discovery:
    """Find a circuit for a task, and measure it on examples it was not found on.

    Args:
        task: a name of `mechanome.tasks.TASKS`, a `.jsonl` file of examples with counterfactuals, or a `Task`.
        model: an opened model, or what `mechanome.load` opens.
        quiet: no progress, and no notes.
        settings: `method`, `level`, `units`, `size`, `threshold`, `sizes`, `metric`, `intervention`, `examples`,
            `seed`, `stability`, `certify`, `verify`, `budget`, as in `mechanome.circuits.finding.settings.Settings`.

    Raises:
        BadInput, UnknownName: settings that cannot be, or a size beyond the graph. NotServed: a model without such a
        graph, or without units. TooFewRows: too few examples are left. BudgetTooSmall, NotFinite: as `scores`.
    """
    asked = Settings(**settings)
    seconds: dict[str, float] = {}
    with _timed(seconds, "model", "opening the model", quiet):
        opened = load(model)
    graph = graph_of(opened, asked.units)
    check_sizes(asked, graph)
    check_room(graph, asked)
    with _timed(seconds, "examples", "choosing examples", quiet):
        given = opened_task(task, opened, asked.seed)
        given = given if asked.metric is None else replace(given, metric=asked.metric)
        chosen = halves(opened, given, asked.examples, asked.seed, budget=asked.budget)
    if asked.certify:
        fix = "ask for more examples, or give more that the model does right"
        check_certifiable(len(chosen.finding), total(graph, asked.level), fix)
    with _timed(seconds, "method", f"finding a circuit by {asked.method}", quiet):
        ranked = WAYS[asked.method].find(graph, chosen.finding, asked, quiet)
    with _timed(seconds, "measuring", "measuring circuits", quiet):
        measures = measured(ranked, chosen, asked, quiet)
    card = None
    if asked.stability:
        with _timed(seconds, "stability", "resampling examples", quiet):
            card = _stability(graph, ranked, chosen.finding, asked, measures.chosen.size, quiet)
    proof = None
    if asked.certify:
        with _timed(seconds, "certificate", "certifying", quiet):
            assert ranked.scores is not None
            proof = certify(Select(measures.chosen.size), ranked.scores, seed=asked.seed, quiet=True)
    carried = None
    if asked.units is not None:
        with _timed(seconds, "units", f"measuring {asked.units} on held-out examples", quiet):
            carried = _carriers(ranked, measures, chosen, asked, proof, quiet)
    with _timed(seconds, "attention", "reading attention", quiet):
        seen = looks(graph, chosen.finding, measures.chosen.circuit.nodes, budget=asked.budget)
    notes = (*(opened.source.notes if opened.source else ()), *ranked.notes)
    kept = tuple(dict.fromkeys(notes))
    return Discovery(asked, graph, chosen, ranked, measures, card, proof, carried, seen, kept, seconds)


@contextmanager
def _timed(seconds: dict[str, float], name: str, what: str, quiet: bool) -> Iterator[None]:
    start = time.monotonic()
    with stage(what, quiet):
        yield
    seconds[name] = time.monotonic() - start


def _carriers(
    ranked: Ranked, measures: Measures, halves: Halves, asked: Settings, proof: Certificate | None, quiet: bool
) -> Carriers:
    """The strongest units of the circuit, on the examples that it was not found on."""
    circuit, found = measures.chosen.circuit, ranked.scores
    assert asked.units is not None and found is not None
    graph, nodes = circuit.graph, found.level == "node"
    values = found.values if nodes else torch.where(circuit.edges, found.values, 0.0).sum(1)
    sources = strongest(graph, circuit.used, values)
    carried = carriers(
        graph,
        asked.units,
        sources,
        values,
        halves.held_out,
        halves.held_out.encode(graph.opened()),
        among=int((circuit.used & graph.kinds("unit")).sum()),
        ranked_by=asked.method,
        intervention=asked.intervention,
        seed=asked.seed,
        budget=asked.budget,
        quiet=quiet,
    )
    return carried if proof is None or not nodes else carried.certified(proof, sources)


def _stability(
    graph: Graph, ranked: Ranked, examples: Task, asked: Settings, size: int, quiet: bool
) -> StabilityReport:
    """The report card of the method over the examples that the circuit was found on."""
    shared: dict[str, Any] = {"seed": asked.seed, "quiet": quiet}
    if ranked.own is None:
        assert ranked.scores is not None
        n = total(graph, asked.level)
        sizes = sorted({size, *(int(s * n) for s in asked.sizes if 1 <= int(s * n) <= _LARGEST * n)})
        return stability_report(ranked.scores, sizes=sizes, samples=SAMPLES["scores"], **shared)

    def again(rows: Tensor) -> Circuit:
        drawn = replace(examples, examples=tuple(examples[i] for i in rows.tolist()))
        found = WAYS[asked.method].find(graph, drawn, asked, True).own
        assert found is not None
        return found

    return stability_report(again, inputs=len(examples), samples=SAMPLES["search"], **shared)
