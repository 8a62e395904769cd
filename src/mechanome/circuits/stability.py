"""How stable circuits are: the same method on other inputs, again and again, compared.

A circuit is an estimate from a sample (paper 40, Meloux et al. 2026). `bootstrap_circuits` shows what other samples
would have chosen; `stability_report` is the report card of any method over circuit sizes, with the level that random
sets of the same size would reach and intervals over inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.effects import Components, Effects
from mechanome.circuits.resampling import Aggregate, Draw, Resamples
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.selecting import By, Select
from mechanome.circuits.similarity import chance_level, jaccard, kendall, weighted_jaccard
from mechanome.circuits.stability_card import Point, Spread, StabilityReport
from mechanome.circuits.variation import split_half, variation
from mechanome.core import BadInput, Interval, Table, track
from mechanome.engine.asked import count

Finder = Callable[[Tensor], Tensor | Scores | Circuit]
"""A method: from the inputs of a sample, `rows [n]`, to scores of all components, or to a circuit."""
Measure = Callable[[Tensor], Mapping[str, Sequence[float]]]
"""From circuits, `[circuit, source(, target)]` of booleans, to numbers of each by name, such as "faithfulness"."""
Size = int | Literal["minimal"]

_COSTLY_PAIRS = 200
"""Pairs whose whole score vectors are compared."""


@dataclass(frozen=True, eq=False)
class CircuitSamples:
    """The circuits that resamples of the inputs lead to.

    Args:
        components: what was chosen from.
        resamples: the inputs of each.
        chosen: `[sample, component]` of booleans.
        estimates: scores of each sample, `[sample, component]`; None for a method that returns circuits.
    """

    components: Components
    resamples: Resamples
    chosen: Tensor = field(repr=False)
    estimates: Tensor | None = field(default=None, repr=False)

    @property
    def sets(self) -> Tensor:
        """The chosen components where they belong, `[sample, source(, target)]` of booleans."""
        return self.components.placed(self.chosen)

    @cached_property
    def sources(self) -> Tensor | None:
        """Which sources send along a chosen edge, `[sample, source]` of booleans; None for circuits of nodes."""
        return self.sets.any(2) if self.components.edges else None

    @property
    def inclusion(self) -> Tensor:
        """Share of samples that choose each component, `[source(, target)]` float64."""
        return self.components.placed(self.chosen.double().mean(0))

    def circuits(self) -> list[Circuit]:
        """Each sample's circuit.

        Raises:
            BadInput: scores without a graph.
        """
        graph = self.components.graph
        if graph is None:
            raise BadInput("these circuits", "their scores came without a graph", "give a Scores")
        return [Circuit(graph, s) if self.components.edges else Circuit.of_nodes(graph, s) for s in self.sets]

    def jaccard(self) -> Tensor:
        """Jaccard index of each compared pair of samples, `[pair]`."""
        return jaccard(self.chosen, self.resamples.pairs)

    def point(self, named: str, level: float = 0.95, quality: Mapping[str, Spread] | None = None) -> Point:
        """The report of this circuit size."""
        again, size = self.resamples, float(self.chosen.double().sum(1).mean())
        some = again.some_pairs(_COSTLY_PAIRS)
        weighted = None
        if self.estimates is not None:
            weighted = _bounded(again.over_pairs(weighted_jaccard(self.estimates * self.chosen, some), some, level))
        sources, node_chance, nodes = self.sources, None, None
        if sources is not None:
            nodes = _bounded(again.over_pairs(jaccard(sources, again.pairs), None, level))
            node_chance = chance_level(float(sources.double().sum(1).mean()), sources.shape[1])
        return Point(
            named,
            size,
            _bounded(again.over_pairs(self.jaccard(), None, level)),
            chance_level(size, len(self.components)),
            nodes,
            node_chance,
            weighted,
            self.inclusion,
            dict(quality or {}),
        )

    def table(self, k: int | None = 20) -> Table:
        """The components that most samples choose."""
        share = self.chosen.double().mean(0)
        order = share.argsort(descending=True, stable=True)[:k].tolist()
        rows = [(self.components.name(i), float(share[i])) for i in order if share[i] > 0]
        return Table(["component", "share of samples"], rows, repr(self))

    def __repr__(self) -> str:
        size = float(self.chosen.double().sum(1).mean())
        return f"CircuitSamples({len(self.chosen)} samples of {self.resamples.n} inputs, {size:.4g} components each)"

    def _repr_html_(self) -> str:
        return self.table().html()


def bootstrap_circuits(
    scores: Scores | Tensor | Effects,
    n: int | None,
    select: Select | int,
    *,
    aggregate: Aggregate = "mean",
    samples: int = 200,
    draw: Draw = "bootstrap",
    seed: int = 0,
) -> CircuitSamples:
    """The circuits that other samples of inputs would have led to.

    Args:
        scores: per input: a `Scores` with `each`, or a tensor `[input, node]` or `[input, source, target]`.
        n: inputs of a sample; None for as many as there are (a third of them for fresh samples).
        select: how a circuit follows from scores; a number is a size.
        aggregate: how scores of inputs become one: "mean", "median", or "absolute" (mean of their sizes).
        samples: how many resamples.
        draw: "bootstrap" (with replacement) or "fresh" (pairs of samples without a shared input).
        seed: of the draw.

    Raises:
        BadInput: a size that leaves nothing out, or a minimal circuit of nodes. TooFewRows: too few inputs.
    """
    effects = Effects.of(scores)
    again = Resamples.of(effects.inputs, n, samples, draw, seed)
    estimates = again.estimates(effects.values, aggregate)
    rule = select if isinstance(select, Select) else Select(select)
    return CircuitSamples(effects.components, again, rule.sets(estimates, effects.components), estimates)


def stability_report(
    source: Scores | Tensor | Effects | Finder,
    n: int | None = None,
    *,
    inputs: int | None = None,
    sizes: Iterable[Size] | None = None,
    by: By = "absolute",
    prune: bool = False,
    aggregate: Aggregate = "mean",
    samples: int = 200,
    draw: Draw = "bootstrap",
    seed: int = 0,
    measure: Measure | None = None,
    measured: int = 20,
    level: float = 0.95,
    quiet: bool = False,
) -> StabilityReport:
    """The report card of a circuit method: how alike its circuits are when it is given other inputs.

    Args:
        source: scores per input, as `bootstrap_circuits` takes them; or any method, as a function from the inputs of a
            sample (`rows [n]`) to scores `[source(, target)]`, a `Scores` or a `Circuit`. The method is called once a
            sample.
        n: inputs of a sample; None for as many as there are (a third for fresh samples).
        inputs: how many there are; needed for a method only.
        sizes: circuit sizes in components, and "minimal" for the smallest connected circuit. None takes round numbers
            up to half of all. A method that returns circuits has its own size.
        by, prune: what is ranked, and whether dangling edges go; see `Select`.
        aggregate, samples, draw, seed: as in `bootstrap_circuits`.
        measure: what circuits do, such as their faithfulness or error: from circuits `[circuit, source(, target)]` of
            booleans to numbers by name. Equal circuits are measured once.
        measured: at each size, the circuits of so many samples are measured.
        level: nominal coverage of the intervals, which are over inputs.
        quiet: no progress bar.

    Returns:
        a `StabilityReport`: intervals at every size, Kendall's tau of the scores, and, of scores per input, what a
        single component's effect does from input to input.

    Raises:
        BadInput: a method without `inputs`, sizes that leave nothing out, results of several kinds.
        TooFewRows: too few inputs or samples.
    """
    effects: Effects | None = None
    if callable(source):
        if inputs is None:
            raise BadInput("a method", "nothing says how many inputs it can be given", "give inputs=")
        again = Resamples.of(inputs, n, samples, draw, seed)
        components, estimates, chosen = _found(source, again, quiet)
    else:
        effects = Effects.of(source)
        again = Resamples.of(effects.inputs, n, samples, draw, seed)
        components, chosen = effects.components, None
        estimates = again.estimates(effects.values, aggregate)
    if chosen is not None:
        stacks = {"own": CircuitSamples(components, again, chosen)}
    else:
        assert estimates is not None
        rules = [Select(None if s == "minimal" else count("size", s), by, prune) for s in _sizes(sizes, components)]
        stacks = {r.named: CircuitSamples(components, again, r.sets(estimates, components), estimates) for r in rules}
    points = []
    for named, stack in track(list(stacks.items()), "comparing circuits", quiet=quiet):
        quality = None if measure is None else _quality(stack, measure, min(measured, len(again.rows)), level)
        points.append(stack.point(named, level, quality))
    some = again.some_pairs(_COSTLY_PAIRS)
    taus = None if estimates is None else kendall(estimates, some)
    settled = taus is not None and bool(taus.isfinite().all())
    return StabilityReport(
        components,
        again.n,
        again.inputs,
        len(again.rows),
        draw,
        None if effects is None else aggregate,
        tuple(points),
        again.over_pairs(taus, some, level) if settled and taus is not None else None,
        None if effects is None else variation(effects),
        None if effects is None or effects.inputs < 4 else split_half(effects, _checked_size(points, components)),
        _notes(again, stacks, taus is None or settled),
    )


def _bounded(at: Interval) -> Interval:
    """The interval of a share: no end outside 0 to 1."""
    return replace(at, lo=max(0.0, at.lo), hi=min(1.0, at.hi))


def _found(method: Finder, again: Resamples, quiet: bool) -> tuple[Components, Tensor | None, Tensor | None]:
    """Run a method on every sample: its components, and scores or circuits `[sample, component]`."""
    found = [method(rows) for rows in track(again.rows, "running the method", quiet=quiet)]
    first = found[0]
    if not isinstance(first, (Tensor, Scores, Circuit)):
        kind = type(first).__name__
        raise BadInput("this method", f"it returned {kind}", "return a Scores, a Circuit, or a tensor of scores")
    if any(type(f) is not type(first) for f in found):
        raise BadInput("this method", "it returned results of several kinds", "return scores, or circuits, always")
    if isinstance(first, Circuit):
        components = Components(first.graph.mask, first.graph)
        return components, None, torch.stack([c.edges[components.where] for c in found if isinstance(c, Circuit)])
    if isinstance(first, Scores):
        components = Components(first.known, first.graph, tuple(first.names()))
        values = [s.values[components.where] for s in found if isinstance(s, Scores)]
    else:
        components = Components(torch.ones(first.shape, dtype=torch.bool))
        values = [t.flatten() for t in found if isinstance(t, Tensor)]
    stacked = Effects(torch.stack(values).detach().cpu(), components)
    return components, stacked.values, None


def _sizes(sizes: Iterable[Size] | None, components: Components) -> list[Size]:
    if sizes is not None:
        found = list(dict.fromkeys(sizes))
        if not found:
            raise BadInput("sizes", "there are none", "give circuit sizes such as (10, 30)")
        return found
    round_numbers = [m * 10**p for p in range(8) for m in (1, 2, 5) if m * 10**p <= len(components) // 2]
    if not round_numbers:
        raise BadInput(f"{len(components)} component", "no circuit leaves any out", "score more components")
    return list(round_numbers[-6:])


def _quality(stack: CircuitSamples, measure: Measure, measured: int, level: float) -> dict[str, Spread]:
    """What circuits do, over the first samples."""
    sets, back = stack.sets[:measured].flatten(1).unique(dim=0, return_inverse=True)
    results = measure(sets.reshape(len(sets), *stack.components.where.shape))
    which = torch.arange(measured)
    found = {}
    for name, values in results.items():
        each = torch.as_tensor(values, dtype=torch.float64)
        if each.shape != (len(sets),):
            raise BadInput(
                f"measure: '{name}'", f"{len(each)} numbers for {len(sets)} circuits", "return one a circuit"
            )
        found[name] = Spread.of(each[back], stack.resamples.over_samples(each[back], which, level))
    return found


def _checked_size(points: Sequence[Point], components: Components) -> int:
    """The circuit size at which single effects are checked: the one in the middle."""
    return max(1, min(round(points[len(points) // 2].size), len(components) - 1))


def _notes(again: Resamples, stacks: Mapping[str, CircuitSamples], settled: bool) -> tuple[str, ...]:
    notes = [] if settled else ["Kendall's tau is not defined: the scores of some samples are all equal."]
    if again.draw == "bootstrap" and again.n == 1:
        notes.append("Samples of one input: pairs that drew the same one agree exactly; fresh samples do not.")
    empty = [named for named, stack in stacks.items() if bool((~stack.chosen.any(1)).any())]
    if empty:
        notes.append(f"Some circuits are empty (size {', '.join(empty)}); two empty ones count as alike.")
    return tuple(notes)
