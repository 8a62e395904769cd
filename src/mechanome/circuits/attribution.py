"""Scores from gradients: attribution patching, EAP, EAP-IG on inputs and on activations, clean-corrupted.

| method | gradients are taken | source |
|---|---|---|
| `eap` | on the clean input; of sources this is attribution patching | Syed et al. 2023; Nanda 2023 |
| `eap-ig` | between both inputs, at embeddings on a straight line | Hanna et al. 2024 |
| `eap-ig-activations` | on the clean input, each group of sources between its two values | Hanna et al. 2024 |
| `clean-corrupted` | on both inputs, averaged | Hanna et al. 2024 |

All are estimates of the exact effect. What a source contributes to all its edges is what it contributes as a node, by
the chain rule; every call compares the two, so a model whose parts are not what the graph says is refused.

Quadrature says which points `alpha` of the line from the other input (0) to the clean one (1) are averaged: `midpoint`
`(k + 1/2) / m`; `left` `k / m` as EAP-IG's published code does for inputs, with the corrupted end and never the clean
one; `right` `(k + 1) / m` as it does for activations.

Backward rules (`mechanome.engine.rules`) make the network linear where gradients are taken; with those that
`relp_rules` names, `eap` is RelP (Jafari et al. 2025; of neurons, arXiv 2601.22594).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.interventions import Intervention, Means
from mechanome.circuits.products import EdgeSums, Pass
from mechanome.circuits.samples import Sample, sample
from mechanome.circuits.wiring import Wiring, Writes
from mechanome.core import BadInput, NotFinite, NotServed
from mechanome.engine import Batch, Edit, Gradients, Model, Site
from mechanome.engine.asked import count
from mechanome.engine.metrics import Metric

QUADRATURES: dict[str, Callable[[int], list[float]]] = {
    "midpoint": lambda m: [(k + 0.5) / m for k in range(m)],
    "left": lambda m: [k / m for k in range(m)],
    "right": lambda m: [(k + 1) / m for k in range(m)],
}

_MOST_STEPS = 10_000
"""The rounding of float32 drowns what the sum is still off by long before; a small model takes minutes an example."""


def steps_of(value: Any) -> int:
    """A number of steps of integrated gradients.

    Raises:
        BadInput: no positive whole number, or more than can be of use.
    """
    steps = count("steps", value)
    if steps > _MOST_STEPS:
        why = "each is a forward and a backward pass of every example, and so many make no score more exact"
        raise BadInput(f"steps={steps}", why, f"give at most {_MOST_STEPS}; 5 to 100 are usual")
    return steps


def relp_rules(model: Model) -> tuple[str, ...]:
    """The backward rules that make `eap` of a model RelP: all but the gate's where its MLPs have none."""
    gated = any(site.point == "mlp_gate" for site in model.sites)
    return ("detach_norm", "detach_pattern", "linear_act", *(("half_gate",) if gated else ()))


Points = Sequence[tuple[float, float]]
"""Points of the line and their weights."""

_TOKENS_AT_ONCE = 128
"""Steps share a pass up to so many tokens: beyond, it gets no faster and only larger."""
_AGREE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 5e-2}


@dataclass(frozen=True)
class Found:
    """Scores of one sample.

    Args:
        edges: `[example, source, target]`, None where only sources were asked for; one example unless `per_input`.
        nodes: `[example, source]`.
        sample: the examples.
    """

    edges: Tensor | None
    nodes: Tensor
    sample: Sample


@dataclass(frozen=True)
class Ask:
    """Examples to score, and how.

    Args:
        wiring: of the graph.
        metric: what is explained.
        clean, other: inputs and counterfactuals. rows: their numbers among all examples.
        intervention: what a patched source carries; `means`: the means, where it takes them.
        edges: whether edges are wanted, or only sources.
        per_input: keep examples apart.
        rules: of the backward pass, names of `mechanome.engine.rules.RULES`.
    """

    wiring: Wiring
    metric: Metric
    clean: Batch
    other: Batch | None
    rows: Sequence[int]
    intervention: Intervention
    means: Means | None
    edges: bool
    per_input: bool
    rules: tuple[str, ...] = ()

    def sums(self, found: Sample, changes: Sequence[Tensor | None]) -> EdgeSums | None:
        """What adds up scores of edges, where they are wanted."""
        linear = "detach_norm" in self.rules
        return EdgeSums(found, changes, self.per_input, linear) if self.edges else None

    def sampled(self, gradients: Gradients | None = None) -> Sample:
        """The examples, with the clean run taken from a differentiated pass where there is one."""
        known = None if gradients is None else (gradients.run, gradients.metric.float().cpu())
        return sample(self.wiring, self.metric, self.clean, self.other, self.rows, self.intervention, self.means, known)

    def differentiate(self, sites: Sequence[Site], edits: Sequence[Edit] = (), copies: int = 1) -> Gradients:
        """Gradients of the metric on the clean inputs, repeated `copies` times, under edits."""
        numbers = torch.tensor(list(self.rows)).repeat(copies)
        batch = self.clean if copies == 1 else self.clean.take(list(range(self.clean.rows)) * copies)
        model = self.wiring.model
        return model.grad(
            lambda logits, rows: self.metric(logits, numbers.to(rows.device)[rows]),
            batch,
            sites,
            edits=edits,
            rules=self.rules,
        )


def on_inputs(ask: Ask, points: Points) -> Found:
    """Average gradients over points of the line between embeddings."""
    wiring = ask.wiring
    sites = [*wiring.sites, *(_reader_sites(wiring) if ask.edges else ())]
    if [alpha for alpha, _ in points] == [1.0]:
        gradients = ask.differentiate(sites)
        found = ask.sampled(gradients)
        passes = _passes(found, gradients, points)
    else:
        found = ask.sampled()
        passes = _along(ask, found, wiring.writes[0], points, sites)
    sums = ask.sums(found, found.changes)
    slopes: dict[Site, Tensor] = {}
    for each in passes:
        if sums is not None:
            sums.add(each)
        for site in wiring.sites:
            gradient = each.gradients[site] * each.weight
            slopes[site] = slopes[site] + gradient if site in slopes else gradient
    nodes = _sources(found, {w: slopes[w.site] for w in wiring.writes}, ask.per_input)
    return _checked(Found(None if sums is None else sums.finish(), nodes, found))


def on_activations(ask: Ask, points: Points) -> Found:
    """Average gradients over points of the line between both values of each group of sources, group by group."""
    wiring, found = ask.wiring, ask.sampled()
    edges: Tensor | None = None
    nodes: Tensor | None = None
    for writes in wiring.writes:
        sites = [writes.site, *(_reader_sites(wiring, writes) if ask.edges else ())]
        alone = [c if w is writes else None for w, c in zip(wiring.writes, found.changes)]
        sums = ask.sums(found, alone)
        slope: Tensor | None = None
        for each in _along(ask, found, writes, points, sites):
            if sums is not None:
                sums.add(each)
            gradient = each.gradients[writes.site] * each.weight
            slope = gradient if slope is None else slope + gradient
        assert slope is not None
        own = _sources(found, {writes: slope}, ask.per_input)
        nodes = own if nodes is None else nodes + own
        if sums is not None:
            edges = sums.finish() if edges is None else edges + sums.finish()
    assert nodes is not None
    return _checked(Found(edges, nodes, found))


def _reader_sites(wiring: Wiring, after: Writes | None = None) -> list[Site]:
    """Sites of targets and of norms on the way, those behind a group of sources if one is given."""
    start = 0 if after is None else wiring.events.index(after)
    found: list[Site | None] = [] if after is None else [after.into]
    for event in wiring.events[start:]:
        found += [event.into] if isinstance(event, Writes) else [event.site, getattr(event, "stream", None)]
    return list(dict.fromkeys(site for site in found if site is not None))


def _along(ask: Ask, found: Sample, writes: Writes, points: Points, sites: Sequence[Site]) -> Iterator[Pass]:
    """Passes with one group of sources on the line between its two values, as many at once as pay."""
    place = ask.wiring.writes.index(writes)
    clean, patched = found.clean[place], found.patched[place]
    bunch = max(1, _TOKENS_AT_ONCE // max(1, clean.shape[0] * clean.shape[1]))
    for first in range(0, len(points), bunch):
        some = points[first : first + bunch]
        # Other sources at the same site stay as they are.
        values = [
            torch.cat([v] * len(some)) if w.site == writes.site else v for w, v in zip(ask.wiring.writes, found.clean)
        ]
        values[place] = torch.cat([patched + alpha * (clean - patched) for alpha, _ in some])
        edits = ask.wiring.edits(values, writes.site)
        # Nothing of a bunch may be held while the next one runs: its values and gradients are the largest there are.
        yield from _passes(found, ask.differentiate(sites, edits, len(some)), some)


def _passes(found: Sample, gradients: Gradients, points: Points) -> Iterator[Pass]:
    """The parts of a differentiated pass over copies of the examples, one per point."""
    wiring, n = found.wiring, found.batch.rows
    valued = {*wiring.streams, *(reads.site for reads in wiring.reads if reads.norm is not None)}
    sloped = {w.site for w in wiring.writes} | {reads.site for reads in wiring.reads}
    for copy, (_, weight) in enumerate(points):
        rows = slice(copy * n, (copy + 1) * n)
        values = {s: found.flat(v[rows]) for s, v in gradients.run.captured.items() if s in valued}
        yield Pass(weight, values, {s: found.flat(g[rows]) for s, g in gradients.sites.items() if s in sloped})


def _sources(found: Sample, slopes: dict[Writes, Tensor], per_input: bool) -> Tensor:
    """First-order effects of sources, from the gradients at their sites, `[example, source]`; 0 for the others."""
    nodes = torch.zeros(found.batch.rows, len(found.wiring.graph.sources), dtype=found.wiring.dtype)
    for writes, change in zip(found.wiring.writes, found.changes):
        if writes in slopes:
            each = (writes.cut.slopes(slopes[writes]) * change).sum(-1).cpu()
            nodes[:, writes.group.nodes].index_add_(0, found.examples.cpu(), each)
    return nodes if per_input else nodes.sum(0, keepdim=True)


def _checked(found: Found) -> Found:
    """Refuse what is not finite, and edges that do not sum to their source."""
    model = found.sample.wiring.model
    for value in (found.nodes, *(() if found.edges is None else (found.edges,))):
        if not bool(torch.isfinite(value).all()):
            raise NotFinite(f"scores of {model.name}", "some are NaN or infinite", "load it in float32")
    if found.edges is None:
        return found
    apart = (found.edges.sum(2).cpu() - found.nodes).abs().max()
    scale = max(float(found.nodes.abs().max()), float(found.edges.abs().max()), 1e-30)
    if float(apart) > _AGREE.get(model.dtype, 0.2) * scale:
        raise NotServed(
            f"edge scores of {model.name}",
            f"the edges of a source do not sum to what it does as a node (off by {float(apart) / scale:.1e}), "
            "so its parts are not what the graph says",
            "score nodes with level='node'",
        )
    return found
