"""Circuits of rising size on both halves of the examples, and the one that is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.execution import Executed, execute
from mechanome.circuits.finding.examples import Halves
from mechanome.circuits.finding.settings import Settings
from mechanome.circuits.finding.ways import Ranked
from mechanome.circuits.graph import Graph
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import SizeCurve, faithfulness, size_curve
from mechanome.circuits.screening import top
from mechanome.core import BadInput
from mechanome.tasks import Task

ENOUGH = 0.8
"""The share of the total effect that a circuit must keep."""


@dataclass(frozen=True, eq=False)
class Step:
    """A circuit of some size.

    Args:
        share: of all edges (of circuits of sources: the share of edges between them).
        size: edges or sources chosen, before those on no path were left out.
        circuit: without them.
    """

    share: float
    size: int
    circuit: Circuit


@dataclass(frozen=True, eq=False)
class Half:
    """What circuits do on one half of the examples.

    Args:
        own: the chosen circuit, run.
        curve: faithfulness over size; None for a way that gives one circuit only.
    """

    own: Executed = field(repr=False)
    curve: SizeCurve | None = field(repr=False)

    @property
    def faithfulness(self) -> Measured:
        """Of the chosen circuit."""
        return faithfulness(self.own)[0]


@dataclass(frozen=True, eq=False)
class Measures:
    """The chosen circuit, measured.

    Args:
        chosen: the circuit.
        finding, held_out: what it does on the examples that it was found on, and on others.
        complement: what all other edges do on the held-out examples.
    """

    chosen: Step
    finding: Half
    held_out: Half
    complement: Executed = field(repr=False)


def measured(ranked: Ranked, halves: Halves, asked: Settings, quiet: bool = False) -> Measures:
    """Run circuits of rising size on the half that finds, choose, and run them on the other half.

    Without a size, the circuit is the smallest one whose whole interval of faithfulness on the finding half is at least
    `ENOUGH`; where there is none, the largest one that leaves anything out.
    """
    curve = _steps(ranked, asked)
    fixed = _fixed(ranked, asked)
    steps = [*curve, fixed] if fixed is not None else curve
    first = _run([s.circuit for s in steps], halves.finding, asked, quiet)
    place = len(curve) if fixed is not None else _first_enough(curve, faithfulness(first))
    chosen = steps[place]
    then = _run([*(s.circuit for s in curve), chosen.circuit, ~chosen.circuit], halves.held_out, asked, quiet)
    return Measures(
        chosen,
        _half(first, curve, place),
        _half(then, curve, len(curve)),
        _only(then, [len(curve) + 1]),
    )


def total(graph: Graph, level: str) -> int:
    """How many edges or sources there are."""
    return graph.n_edges if level == "edge" else len(graph.sources)


def check_sizes(asked: Settings, graph: Graph) -> None:
    """Refuse numbers beyond the graph, before anything is measured.

    Raises:
        BadInput: a circuit that leaves nothing out, or more edges to verify than there are.
    """
    n = total(graph, asked.level)
    things = "edges" if asked.level == "edge" else "sources"
    for name, value, most in (("size", asked.size, n - 1), ("verify", asked.verify, n)):
        if value is not None and value > most:
            raise BadInput(f"{name} {value:,}", f"the graph has {n:,} {things}", f"give at most {most:,}")


def _steps(ranked: Ranked, asked: Settings) -> list[Step]:
    """Circuits of the sizes of the curve; none for a search, which has one circuit."""
    if ranked.own is not None:
        return []
    assert ranked.scores is not None
    graph = ranked.scores.graph
    found: dict[float, Step] = {}
    for share in asked.sizes:
        size = max(1, int(share * total(graph, asked.level)))
        circuit = top(ranked.scores, size).pruned()
        at = share if asked.level == "edge" else circuit.share
        found.setdefault(at, Step(at, size, circuit))
    return [found[at] for at in sorted(found)]


def _fixed(ranked: Ranked, asked: Settings) -> Step | None:
    """The circuit that does not depend on the curve: that of a search, or of a size that was given."""
    if ranked.own is not None:
        return Step(ranked.own.share, len(ranked.own), ranked.own)
    if asked.size is None:
        return None
    assert ranked.scores is not None
    circuit = top(ranked.scores, asked.size).pruned()
    return Step(circuit.share, asked.size, circuit)


def _first_enough(curve: Sequence[Step], faithful: Sequence[Measured]) -> int:
    partial = [i for i, step in enumerate(curve) if len(step.circuit) < step.circuit.graph.n_edges]
    enough = [i for i in partial if keeps(faithful[i])]
    return enough[0] if enough else partial[-1] if partial else 0


def keeps(found: Measured, needed: float = ENOUGH) -> bool:
    """Whether the whole interval is at least what is needed."""
    return found.value is not None and (found.value if found.interval is None else found.interval.lo) >= needed


def misses(found: Measured, needed: float = ENOUGH) -> bool:
    """Whether no part of the interval is as much as is needed."""
    return found.value is not None and (found.value if found.interval is None else found.interval.hi) < needed


def _run(circuits: Sequence[Circuit], examples: Task, asked: Settings, quiet: bool) -> Executed:
    return execute(circuits, examples, intervention=asked.intervention, budget=asked.budget, quiet=quiet)


def _half(found: Executed, curve: Sequence[Step], own: int) -> Half:
    n = len(curve)
    sizes = [step.share for step in curve]
    return Half(_only(found, [own]), size_curve(_only(found, list(range(n))), sizes) if n > 1 else None)


def _only(found: Executed, which: list[int]) -> Executed:
    """Some of the circuits that were run."""
    return replace(
        found,
        circuits=tuple(found.circuits[i] for i in which),
        values=found.values[which],
        divergence=found.divergence[which],
        agrees=found.agrees[which],
        methods=tuple(found.methods[i] for i in which),
    )
