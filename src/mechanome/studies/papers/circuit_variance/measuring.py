"""The measurement of paper 40: effects of heads on real prompts, a small model scored in 16 ways, and known scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits import Graph, scores
from mechanome.circuits.effects import Effects
from mechanome.circuits.selecting import Select
from mechanome.circuits.similarity import jaccard
from mechanome.circuits.stability import stability_report
from mechanome.circuits.stability_card import StabilityReport
from mechanome.circuits.variance import Decomposition, variance_decomposition
from mechanome.core import Interval, bootstrap
from mechanome.studies.context import Context
from mechanome.studies.papers.circuit_variance import QUALITY, Settings, heads, pictures, synthetic, trained
from mechanome.studies.papers.circuit_variance.prompts import TEMPLATES, agreement, agreement_task, other_task
from mechanome.studies.study import Effect, Measured
from mechanome.tasks import Task

_INPUTS = (1, 2, 4, 8, 16, 24)
"""Inputs of a sample, where the curve is measured."""


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        exact, eap: per template, effects of heads `[input, head]`; heads: their names.
        accuracy: prompts and counterfactuals done right, and asked.
        other: the second task: its name, effects and accuracies; no effects where none was done well enough.
        trained: per seed, as `trained.measured` returns them.
        known: per level of variation and repetition, as `synthetic.known` returns them.
    """

    exact: Mapping[str, Tensor] = field(repr=False)
    eap: Mapping[str, Tensor] = field(repr=False)
    heads: Sequence[str] = field(repr=False)
    accuracy: tuple[int, int]
    other: Mapping[str, Any] = field(repr=False)
    trained: Sequence[Mapping[str, Any]] = field(repr=False)
    known: Sequence[Mapping[str, float]] = field(repr=False)


@dataclass(frozen=True)
class Small:
    """The small model of one seed, summed up.

    Args:
        reports: of every way to score, its report card. across: sizes to the Jaccard index across ways.
        split: where the variance comes from. pearson: of EAP and EAP-IG with exact effects.
    """

    reports: Mapping[str, StabilityReport]
    across: Mapping[int, float]
    split: Decomposition
    pearson: Mapping[str, float]


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    size, stored = context.settings, _stored(context)
    small = [_small(found["scores"], size) for found in stored.trained]
    curves: dict[str, list[float]] = {}
    effects = {
        **_heads(stored, size, curves),
        **_second(stored.other, size),
        **_trained(stored.trained, small, size),
        **_known(stored.known),
    }
    right, asked = stored.accuracy
    tried = ", ".join(f"{name} {share:.2f}" for name, share in stored.other["accuracy"].items())
    remarks = (
        f"Agreement: {right} of {asked} prompts done right; {len(stored.exact['near'])} pairs of nouns used.",
        f"Accuracy on other tasks: {tried}; used: {stored.other['name'] or 'none'}.",
    )
    return Measured(effects, pictures.sections(stored, small, curves, size), remarks)


def _stored(context: Context[Settings]) -> Stored:
    """Run the models. Each part is small and survives a kill."""
    size = context.settings
    model = context.model("decoder")
    graph = Graph.of(model)
    where = torch.tensor(
        [i for group in graph.writers if group.kind == "head" for i in range(*group.nodes.indices(10**9))]
    )
    drawn = context.each("prompts", context.seeds, lambda s: agreement(model, s, size.inputs, size.candidates))
    rows = {seed: found["rows"] for seed, found in zip(context.seeds, drawn)}
    found: dict[str, list[dict[str, Tensor]]] = {}
    for name in TEMPLATES:
        found[name] = context.each(
            f"heads, {name},",
            context.seeds,
            lambda seed: _effects(graph, agreement_task(name, rows[seed]), where, size.base),  # noqa: B023
        )
    other = context.part("another task", lambda: _other(graph, context, where))
    small = context.each(
        "small model",
        context.seeds,
        lambda s: trained.measured(s, size.steps, size.prompts, size.sizes, size.bootstraps),
    )
    repeats = [(cv, 1000 * seed + i) for cv in synthetic.LEVELS for seed in context.seeds for i in range(size.repeats)]
    known = context.part("known scores", lambda: [synthetic.known(cv, s, size.samples) for cv, s in repeats])
    stacked = {
        kind: {name: torch.cat([part[kind] for part in parts]) for name, parts in found.items()}
        for kind in ("exact", "eap")
    }
    counts = sum(d["right"] for d in drawn), sum(d["asked"] for d in drawn)
    names = [graph.sources[i] for i in where.tolist()]
    return Stored(stacked["exact"], stacked["eap"], names, counts, other, small, known)


def _effects(graph: Graph, task: Task, where: Tensor, base: str) -> dict[str, Tensor]:
    """Exact and first-order effects of every head, `[input, head]`."""
    named = {"exact": base, "eap": "eap"}
    made = {k: scores(graph, task, method=m, level="node", per_input=True, quiet=True).each for k, m in named.items()}
    return {kind: each[:, where] for kind, each in made.items() if each is not None}


def _other(graph: Graph, context: Context[Settings], where: Tensor) -> dict[str, Any]:
    """The second task's effects, if the model does one well enough."""
    size = context.settings
    found = other_task(graph.opened(), context.seeds[0], size.others, size.enough, size.candidates)
    task = found["task"]
    effects = {} if task is None else _effects(graph, task, where, size.base)
    return {"accuracy": found["accuracy"], "name": "" if task is None else task.name, "effects": effects}


# A. Heads of a language model ------------------------------------------------------------------------------------


def _heads(stored: Stored, size: Settings, curves: dict[str, list[float]]) -> dict[str, Effect]:
    exact, eap = stored.exact["near"], stored.eap["near"]
    inputs = len(exact)
    sizes = [n for n in _INPUTS if n <= inputs]
    few, many = size.few, size.many
    trend, curve = heads.rising(exact, few, sizes, size.samples)
    for scored, x in (("exact", exact), ("EAP", eap)):
        for k in (few, many):
            same = curve if (scored, k) == ("exact", few) else heads.rising(x, k, sizes, size.samples)[1]
            curves[f"{scored}, top {k}"] = same
    note = f"{inputs} inputs, jackknife after {size.samples} bootstrap samples"
    effects = {
        "top-cv": Effect(heads.median_cv(exact, size.top), "resampled over inputs, heads chosen anew each time"),
        "single-jaccard": Effect(heads.single_inputs(exact, few), "all pairs of inputs, jackknife over inputs"),
        "bootstrap-rises": Effect(trend, f"n = {', '.join(map(str, sizes))}: {_listed(curve)}; {note}"),
        "sign-consistency": Effect(heads.sign_consistency(exact, size.top)),
        "eap-top-cv": Effect(heads.median_cv(eap, size.top)),
        "eap-single-jaccard": Effect(heads.single_inputs(eap, few)),
        "eap-pearson": Effect(_pearson_over(exact, eap), "over heads, of means; resampled over inputs"),
    }
    for n in (4, 8, 16):
        found = heads.Resampled(inputs, min(n, inputs), size.samples)
        if n == 16:
            effects["bootstrap-jaccard"] = Effect(found.mean(found.each(exact, few)), note)
            effects["bootstrap-jaccard-many"] = Effect(found.mean(found.each(exact, many)), note)
        else:
            apart = found.each(eap, many) - found.each(exact, many)
            effects[f"eap-amplifies-{n}"] = Effect(found.mean(apart), f"the same samples for both; {note}")
    for named, k in (("", few), ("-many", many)):
        across, difference = heads.across_templates(stored.exact, k, size.samples)
        effects[f"paraphrase-jaccard{named}"] = Effect(across)
        effects[f"paraphrase-lower{named}"] = Effect(difference, f"three templates; {note}")
    for name in ("behind", "that-clause"):
        effects[f"top-cv-{name}"] = Effect(heads.median_cv(stored.exact[name], size.top))
    return effects


def _second(other: Mapping[str, Any], size: Settings) -> dict[str, Effect]:
    """The first claims' numbers on another task."""
    ids = ("other-top-cv", "other-single-jaccard", "other-bootstrap-jaccard")
    if not other["effects"]:
        return dict.fromkeys(ids, Effect(None, f"no other task is done with accuracy above {size.enough}"))
    exact = other["effects"]["exact"]
    found = heads.Resampled(len(exact), len(exact), size.samples)
    values = (
        heads.median_cv(exact, size.top),
        heads.single_inputs(exact, size.few),
        found.mean(found.each(exact, size.few)),
    )
    return {i: Effect(value, f"{other['name']}, {len(exact)} inputs") for i, value in zip(ids, values)}


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.2f}" for v in values)


def _pearson_over(a: Tensor, b: Tensor) -> Interval:
    return bootstrap(
        torch.stack([a, b], 1), lambda rows: float(torch.tensor(rows.mean(0)).corrcoef()[0, 1]), resamples=2000
    )


# B. A small model, every way to score ----------------------------------------------------------------------------


def _small(found: Mapping[str, Tensor], size: Settings) -> Small:
    reports = {
        name: stability_report(each, sizes=size.sizes, samples=size.bootstraps, quiet=True)
        for name, each in found.items()
    }
    means = torch.stack([each.double().mean(0) for each in found.values()])
    pairs = torch.tensor(list(combinations(range(len(means)), 2)))
    components = Effects.of(means).components
    across = {k: float(jaccard(Select(k).sets(means, components), pairs).mean()) for k in size.sizes}
    exact = found["exact patch"]
    split = variance_decomposition(exact, found, sizes=size.sizes, samples=size.samples)
    pearson = {name: split.approximations[f"{name} patch"].pearson for name in ("eap", "eap-ig")}
    return Small(reports, across, split, pearson)


def _trained(stored: Sequence[Mapping[str, Any]], small: Sequence[Small], size: Settings) -> dict[str, Effect]:
    seeds = f"resampled over {len(small)} models, each trained from its own seed"

    def over(values: Sequence[float], note: str = seeds) -> Effect:
        return Effect(bootstrap(values) if len(values) > 1 else None, note if len(values) > 1 else "a single model")

    k = size.circuit
    within = [sum(report.at(k).jaccard.estimate for report in one.reports.values()) / len(one.reports) for one in small]
    across = [one.across[k] for one in small]
    splits = [one.split for one in small]
    return {
        "hyperparameters-lower": over([a - w for a, w in zip(across, within)]),
        "ig-agrees-better": over([one.pearson["eap-ig"] - one.pearson["eap"] for one in small]),
        "parts-sum": over([split.explained for split in splits]),
        "small-accuracy": over([float(found["accuracy"]) for found in stored]),
        "small-bootstrap": over(within),
        "small-hyperparameters": over(across),
        "small-chance": over([one.reports["exact patch"].at(k).chance for one in small]),
        "small-pearson-eap": over([one.pearson["eap"] for one in small]),
        "small-pearson-eap-ig": over([one.pearson["eap-ig"] for one in small]),
        "share-sampling": over([split.anova["sampling"] for split in splits]),
        "share-method": over([split.anova["method"] for split in splits]),
        "share-interaction": over([split.anova["interaction"] for split in splits]),
        **{
            f"small-{name.lower()}{end}": over([float(found["quality"][str(k)][name][i]) for found in stored])
            for name in QUALITY
            for i, end in enumerate(("", "-sd"))
        },
        "cut-rest": over([next(s.rest for s in split.structural if s.size == k) for split in splits]),
    }


# C. Scores whose answer is known ---------------------------------------------------------------------------------


def _known(known: Sequence[Mapping[str, float]]) -> dict[str, Effect]:
    note = f"{len(known)} sets of known scores, resampled"

    def apart(kind: str) -> Effect:
        return Effect(bootstrap([found[kind] - found["predicted"] for found in known]), note)

    return {
        "known-bootstrap": apart("bootstrap"),
        "known-fresh": apart("fresh"),
        "known-cv": Effect(bootstrap([found["ratio"] for found in known]), note),
    }
