"""The measurement of paper 20: circuits found on some nouns, judged on others; then intervals from what was stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.circuits.neurons import (
    Fill,
    NodeCircuit,
    NodeRuns,
    Nodes,
    NodeScores,
    attribute,
    evaluate,
    label_auroc,
    node_edges,
    nodes_needed,
    ratio,
)
from mechanome.core import Interval, bootstrap
from mechanome.engine import Model
from mechanome.studies.context import Context
from mechanome.studies.papers.neuron_circuits import BASELINES, BASES, COMPARED, KINDS, SCALES, Settings, pictures
from mechanome.studies.papers.neuron_circuits.facts import measure_facts
from mechanome.studies.papers.neuron_circuits.prompts import Agreement, split
from mechanome.studies.study import Effect, Measured

_RESAMPLES = 2_000
_NUMBER = 0.9
"""From this AUROC on (or below 1 minus it) a node tells the subject's number."""


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        circuits: per kind and seed: method to runs, the nouns, and what was found about the top nodes.
        bases: per seed, base to runs of the simple template.
        integrated: per kind and seed that had them, runs of integrated gradients.
        facts: as `measure_facts` returns them. edges: the strongest among the first seed's top nodes.
    """

    circuits: Mapping[tuple[str, int], Mapping[str, Any]] = field(repr=False)
    bases: Sequence[Mapping[str, Any]] = field(repr=False)
    integrated: Mapping[tuple[str, int], Mapping[str, Any]] = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)
    edges: Sequence[Sequence[Any]] = field(default=(), repr=False)


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    stored = _stored(context)
    size = context.settings
    effects = {**_circuits(stored, size), **_sparser(stored, size), **_compared(stored, size), **_facts(stored.facts)}
    remarks = (f"Cities whose state the model knows: {', '.join(stored.facts['cities'])}.",)
    return Measured(effects, pictures.sections(stored, size), remarks)


def _stored(context: Context[Settings]) -> Stored:
    """Run the model. Each part is small and survives a kill."""
    size, model = context.settings, context.model("decoder")
    cells = [(kind, seed) for kind in KINDS for seed in context.seeds]
    found = context.each("circuits", cells, lambda at: _found(model, at, size))
    bases = context.each("bases", context.seeds, lambda seed: _bases(model, seed, size))
    some = [at for at in cells if at[1] in context.seeds[: size.integrated]]
    integrated = context.each("integrated gradients", some, lambda at: _integrated(model, at, size))
    facts = context.part("facts", lambda: measure_facts(model, size))
    edges = context.part("edges", lambda: _edges(model, context.seeds[0], size))
    return Stored(dict(zip(cells, found)), bases, dict(zip(some, integrated)), facts, edges)


def _data(model: Model, at: tuple[str, int], size: Settings) -> tuple[Agreement, Agreement]:
    train, test = (Agreement.of(model, at[0], nouns) for nouns in split(model, at[1], size.train, size.test))
    return train, test


def _scored(nodes: Nodes, data: Agreement, method: str = "relp", **more: Any) -> NodeScores:
    return attribute(nodes, data.batch, data.metric, data.other, method=method, quiet=True, **more)


def _judged(circuits: Sequence[NodeCircuit], fill: Fill, test: Agreement) -> dict[str, Any]:
    return _plain(evaluate(circuits, test.batch, test.metric, fill, quiet=True))


def _plain(runs: NodeRuns) -> dict[str, Any]:
    return {"sizes": runs.sizes, "values": runs.values, "without": runs.without, "clean": runs.clean,
            "empty": runs.empty}  # fmt: skip


def _found(model: Model, at: tuple[str, int], size: Settings) -> dict[str, Any]:
    """Circuits by RelP and by the plain gradient, and random ones."""
    train, test = _data(model, at, size)
    nodes = Nodes.of(model, train.batch)
    fill = Fill.means(nodes, train.batch)
    own = _scored(nodes, train, per_input=True)
    assert own.each is not None
    halves = [
        NodeScores(nodes, own.each[rows].mean(0), "relp", own.metric[rows]).top(size.top) for rows in train.halves()
    ]
    plain = _scored(nodes, train, "gradient")
    top = own.top(size.top)
    # By its attribution to the plural form: the metric, of the form that agrees, turns its sign with the subject.
    told = label_auroc(own.each[:, top.kept] * (2.0 * train.plural - 1)[:, None], train.plural)
    return {
        "relp": _judged([own.top(n) for n in size.sizes], fill, test),
        "gradient": _judged([plain.top(n) for n in size.compared], fill, test),
        "random": _judged([NodeCircuit.random(nodes, size.random, at[1])], fill, test),
        "nouns": list(test.nouns),
        "overlap": halves[0].shared(halves[1]),
        "number": float(((told - 0.5).abs() >= _NUMBER - 0.5).double().mean()),
        "layers": torch.stack([p.sum(-1) for p in nodes.split(top.kept)]),
        "nodes": len(nodes),
    }


def _bases(model: Model, seed: int, size: Settings) -> dict[str, Any]:
    """Circuits of other parts, by RelP, on the simple template."""
    train, test = _data(model, ("simple", seed), size)
    found = {}
    for base in BASES:
        nodes = Nodes.of(model, train.batch, base)
        scores, fill = _scored(nodes, train), Fill.means(nodes, train.batch)
        sizes = [n for n in size.base_sizes if n < len(nodes)] + [len(nodes)]
        found[base] = _judged([scores.top(n) for n in sizes], fill, test)
    return found


def _integrated(model: Model, at: tuple[str, int], size: Settings) -> dict[str, Any]:
    train, test = _data(model, at, size)
    nodes = Nodes.of(model, train.batch)
    scores = _scored(nodes, train, "ig", steps=size.steps)
    return _judged([scores.top(n) for n in size.compared], Fill.means(nodes, train.batch), test)


def _edges(model: Model, seed: int, size: Settings) -> list[list[Any]]:
    """The strongest direct edges among the top nodes of the simple template."""
    train, _ = _data(model, ("simple", seed), size)
    top = _scored(Nodes.of(model, train.batch), train).top(size.wired)
    few = train.take(range(min(4, train.batch.rows)))
    found = node_edges(top, few.batch, few.metric, quiet=True)
    return [list(row) for row in found.table(15).rows]


# Intervals -----------------------------------------------------------------------------------------------------------


def _rows(runs: Mapping[str, Any], what: str, n: int) -> Tensor:
    """`[row, (circuit, model, empty)]` of the circuit of some size."""
    return torch.stack([runs[what][runs["sizes"].index(n)], runs["clean"], runs["empty"]], 1).double()


def _over(cells: Sequence[Mapping[str, Any]], method: str, what: str, n: int) -> Interval:
    rows = torch.cat([_rows(cell[method], what, n) for cell in cells])
    return bootstrap(rows, ratio, resamples=_RESAMPLES, groups=_nouns(cells))


def _nouns(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    return [noun for cell in cells for noun in cell["nouns"]]


def _of(stored: Stored, kind: str) -> list[Mapping[str, Any]]:
    return [cell for at, cell in stored.circuits.items() if at[0] == kind]


def _circuits(stored: Stored, size: Settings) -> dict[str, Effect]:
    effects, note = {}, "resampled over nouns"
    for kind in KINDS:
        cells = _of(stored, kind)
        effects[f"faithful-{kind}"] = Effect(_over(cells, "relp", "values", size.top), note)
        effects[f"complete-{kind}"] = Effect(_over(cells, "relp", "without", size.top), note)
        effects[f"random-{kind}"] = Effect(_over(cells, "random", "values", size.random), note)
        effects[f"random-without-{kind}"] = Effect(_over(cells, "random", "without", size.random), note)
        for n in size.compared:
            if n != size.top:
                effects[f"faithful-{kind}-few"] = Effect(_over(cells, "relp", "values", n), note)
        off = torch.cat([_rows(cell["relp"], "values", size.top) for cell in cells])
        effects[f"off-{kind}"] = Effect(bootstrap(off, _off, resamples=_RESAMPLES, groups=_nouns(cells)), note)
        effects[f"logit-difference-{kind}"] = Effect(
            bootstrap(torch.cat([cell["relp"]["clean"] for cell in cells]), groups=_nouns(cells)), note
        )
    each = list(stored.circuits.values())
    effects["overlap"] = Effect(_mean([cell["overlap"] for cell in each]), f"over {len(each)} pairs of kind and seed")
    effects["number"] = Effect(_mean([cell["number"] for cell in each]), f"over {len(each)} pairs of kind and seed")
    return effects


def _off(rows: np.ndarray) -> float:
    return abs(1 - ratio(rows))


def _mean(values: Sequence[float]) -> Interval | None:
    return bootstrap(values) if len(values) > 1 else None


def _sparser(stored: Stored, size: Settings) -> dict[str, Effect]:
    """How many nodes carry half of the simple template, in each base, and the ratio that is claimed."""
    cells = _of(stored, "simple")
    curves = {"mlp_act": [cell["relp"] for cell in cells]} | {b: [found[b] for found in stored.bases] for b in BASES}
    rows = {base: torch.cat([_curve(runs) for runs in found]) for base, found in curves.items()}
    sizes = {base: list(found[0]["sizes"]) for base, found in curves.items()}
    effects = {}
    for base in curves:
        effects[f"needed-{base.replace('_', '-')}"] = Effect(
            bootstrap(rows[base], partial(_needed, sizes=sizes[base]), resamples=_RESAMPLES, groups=_nouns(cells)),
            f"of {sizes[base][-1] if base in BASES else cells[0]['nodes']} nodes; resampled over nouns",
        )
    both, own = torch.cat([rows["mlp_out"], rows["mlp_act"]], 1), rows["mlp_out"].shape[1]

    def times(x: np.ndarray) -> float:
        return _needed(x[:, :own], sizes["mlp_out"]) / _needed(x[:, own:], sizes["mlp_act"])

    effects["sparser"] = Effect(
        bootstrap(both, times, resamples=_RESAMPLES, groups=_nouns(cells)), "on the simple template, over nouns"
    )
    return effects


def _curve(runs: Mapping[str, Any]) -> Tensor:
    return torch.cat([runs["values"], runs["clean"][None], runs["empty"][None]]).T.double()


def _needed(rows: np.ndarray, sizes: Sequence[int]) -> float:
    faithful = [ratio(rows[:, [i, -2, -1]]) for i in range(len(sizes))]
    return nodes_needed(sizes, faithful, 0.5)


def _compared(stored: Stored, size: Settings) -> dict[str, Effect]:
    effects: dict[str, Effect] = {}
    for kind in KINDS:
        own = {at: cell for at, cell in stored.circuits.items() if at[0] == kind}
        against = {
            "gradient": {at: cell["gradient"] for at, cell in own.items()},
            "ig": {at: runs for at, runs in stored.integrated.items() if at[0] == kind},
        }
        for method in BASELINES:
            cells = [own[at] for at in against[method]]
            for label, n in zip(COMPARED, size.compared):
                if not cells:
                    missing = Effect(None, "no seed has them at this tier")
                    effects |= dict.fromkeys((f"over-{method}-{kind}-{label}", f"{method}-{kind}-{label}"), missing)
                    continue
                pairs = [
                    torch.cat([_rows(own[at]["relp"], "values", n), _rows(runs, "values", n)[:, :1]], 1)
                    for at, runs in against[method].items()
                ]
                rows, note = torch.cat(pairs), f"paired, over nouns, {len(cells)} seed{'s' * (len(cells) > 1)}"
                effects[f"over-{method}-{kind}-{label}"] = Effect(
                    bootstrap(rows, _difference, resamples=_RESAMPLES, groups=_nouns(cells)), note
                )
                effects[f"{method}-{kind}-{label}"] = Effect(
                    bootstrap(rows[:, [3, 1, 2]], ratio, resamples=_RESAMPLES, groups=_nouns(cells)), note
                )
    return effects


def _difference(rows: np.ndarray) -> float:
    """Faithfulness of RelP's circuit minus the other's, rows `[row, (RelP, model, empty, other)]`."""
    return ratio(rows[:, :3]) - ratio(rows[:, [3, 1, 2]])


def _facts(found: Mapping[str, Any]) -> dict[str, Effect]:
    clean, scaled = found["clean"].double(), found["scaled"].double()
    drop = 1 - scaled[:, SCALES.index(0.0)] / clean
    pairs = [(d, p) for d, donor in enumerate(found["answers"].tolist())
             for p, own in enumerate(found["answers"].tolist()) if own != donor]  # fmt: skip
    at = tuple(torch.tensor(pairs).T)
    donors = [d for d, _ in pairs]

    def rise(name: str) -> Tensor:
        return (found[name].double()[at] / found["before"].double()[at]).log()

    now = (found["likeliest"][at] == found["answers"][at[0]]).double()
    cities, note = f"over {len(clean)} cities", f"{len(pairs)} pairs, resampled over donors"
    return {
        "removed": Effect(bootstrap(drop), cities),
        "removed-random": Effect(bootstrap(1 - found["random"].double() / clean), cities),
        "moved": Effect(bootstrap((rise("moved") > 0).double(), groups=donors), note),
        "moved-random": Effect(bootstrap((rise("moved-random") > 0).double(), groups=donors), note),
        "moved-nats": Effect(bootstrap(rise("moved"), groups=donors), note),
        "moved-nats-random": Effect(bootstrap(rise("moved-random"), groups=donors), note),
        "moved-likeliest": Effect(bootstrap(now, groups=donors), note),
        "probability": Effect(bootstrap(clean), cities),
        "doubled": Effect(bootstrap(scaled[:, SCALES.index(2.0)]), cities),
    }
