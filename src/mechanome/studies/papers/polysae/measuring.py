"""The measurement of paper 42: planted interactions, then a language model; statistics from what was stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.core import Interval, bootstrap
from mechanome.studies.context import Context
from mechanome.studies.papers.polysae import ARMS, Settings, pictures
from mechanome.studies.papers.polysae.language import KS, TWO, activations, language
from mechanome.studies.papers.polysae.planted import planted
from mechanome.studies.study import Effect, Measured

_SEEDS = "resampled over seeds"


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        seeds: the seeds.
        planted: of each seed, as `planted.planted` returns it.
        language: of those seeds that the language model was looked at with, as `language.language` returns it.
    """

    seeds: Sequence[int]
    planted: Sequence[Mapping[str, Any]] = field(repr=False)
    language: Sequence[Mapping[str, Any]] = field(repr=False)

    def of(self, arm: str, what: str) -> list[float]:
        """One number of one planted dictionary, a seed each."""
        return [float(each[arm][what]) for each in self.planted]

    def correlations(self, arm: str, one: str, other: str) -> list[float]:
        """Over pairs, a seed each."""
        return [correlation(each[arm]["pairs"][one], each[arm]["pairs"][other]) for each in self.planted]


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    size = context.settings
    known = context.each("planted, seed", context.seeds, partial(planted, size=size))
    few = context.seeds[: size.lm_seeds]
    model = context.model("decoder")
    rows = context.each("activations, seed", few, lambda seed: activations(model, seed, size))
    by_seed = dict(zip(few, rows))
    looked = context.each("language model, seed", few, lambda seed: language(model, by_seed[seed], seed, size))
    stored = Stored(context.seeds, known, looked)
    pairs = ", ".join(str(len(each["poly"]["pairs"]["truth"])) for each in known)
    remarks = (
        f"Pairs of matched features, by seed: {pairs}.",
        f"Rows of the language model that were learned from: {', '.join(str(each['tokens']) for each in looked)}.",
    )
    return Measured({**_planted(stored, size), **_language(stored)}, pictures.sections(stored), remarks)


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; NaN where it is not defined."""
    if len(a) < 2 or not (a.std() > 0 and b.std() > 0):
        return float("nan")
    return float(np.corrcoef(a.numpy(), b.numpy())[0, 1])


def _planted(stored: Stored, size: Settings) -> dict[str, Effect]:
    fvu = {arm: np.array(stored.of(arm, "fvu")) for arm in ARMS}
    truth = stored.correlations("poly", "strength", "truth")
    covariance = stored.correlations("sae", "covariance", "truth")
    values = {
        "over-sae": fvu["poly"] / fvu["sae"],
        "over-linear": fvu["poly"] / fvu["linear"],
        "truth": truth,
        "beyond-covariance": np.subtract(truth, covariance),
        "not-cooccurrence": stored.correlations("poly", "strength", "together"),
        "covariance-is": stored.correlations("sae", "covariance", "together"),
        **{f"fvu-{arm}": each for arm, each in fvu.items()},
        **{f"found-{arm}": np.divide(stored.of(arm, "found"), size.features) for arm in ARMS},
        "covariance-truth": covariance,
        "share": stored.of("poly", "share"),
        **{f"compounds-{arm}": stored.of(arm, "compounds") for arm in TWO},
    }
    return {id: _over_seeds(each) for id, each in values.items()}


def _over_seeds(values: Sequence[float] | np.ndarray) -> Effect:
    said = "by seed: " + ", ".join(f"{value:.3f}" for value in values)
    if not np.isfinite(values).all():
        return Effect(None, f"not defined for every seed; {said}")
    if len(values) < 2:
        return Effect(Interval(float(values[0]), float(values[0]), float(values[0]), 1, method="one seed"), said)
    return Effect(bootstrap(values), f"{_SEEDS}; {said}")


def _language(stored: Stored) -> dict[str, Effect]:
    numbers = {arm: sum(each[arm]["numbers"] for each in stored.language) for arm in TWO}
    broken = sum(each[arm]["broken"] for arm in TWO for each in stored.language)
    count = Interval(broken, broken, broken, sum(numbers.values()), method="count")
    found = {"finite": Effect(count, "all of them looked at")}
    return {**found, **_losses(stored), **_errors(stored), **_probes(stored), **_distances(stored), **_own(stored)}


def _losses(stored: Stored) -> dict[str, Effect]:
    names = ("clean", "zero", *TWO)
    table = np.concatenate([np.stack([each["ce"][n] for n in names], axis=1) for each in stored.language])

    def recovered(arm: str, rows: np.ndarray) -> float:
        total = dict(zip(names, rows.sum(0)))
        return float((total["zero"] - total[arm]) / (total["zero"] - total["clean"]))

    note = "resampled over passages"
    found = {f"ce-{arm}": Effect(bootstrap(table, partial(recovered, arm)), note) for arm in TWO}
    gain = bootstrap(table, lambda rows: recovered("poly", rows) - recovered("sae", rows))
    return {**found, "ce": Effect(gain, note)}


def _errors(stored: Stored) -> dict[str, Effect]:
    found: dict[str, Effect] = {}
    for arm in TWO:
        if any(each[arm]["broken"] for each in stored.language):
            lost = Effect(None, "reconstructions are not finite")
            found |= {f"mse-{arm}": lost, f"lm-fvu-{arm}": lost}
            continue
        columns = ("error", "scatter", "cells")
        table = np.concatenate([np.stack([each[arm][n] for n in columns], axis=1) for each in stored.language])
        for id, under in ((f"mse-{arm}", 2), (f"lm-fvu-{arm}", 1)):
            ratio = partial(_ratio, under)
            found[id] = Effect(bootstrap(table, ratio), "resampled over passages")
    return found


def _ratio(under: int, rows: np.ndarray) -> float:
    total = rows.sum(0)
    return float(total[0] / total[under])


def _probes(stored: Stored) -> dict[str, Effect]:
    f1 = {arm: torch.cat([each[arm]["f1"] for each in stored.language]) for arm in TWO}
    control = torch.cat([each[arm]["control"] for arm in TWO for each in stored.language]).mean(0)
    found: dict[str, Effect] = {}
    for i, k in enumerate(KS):
        values = {f"f1-{k}-{arm}": f1[arm][:, i] for arm in TWO}
        values[f"f1-gain-{k}"] = f1["poly"][:, i] - f1["sae"][:, i]
        note = f"resampled over splits of the same sentences; accuracy with shuffled labels {float(control[i]):.3f}"
        found |= {id: Effect(bootstrap(each), note) for id, each in values.items()}
    return found


def _distances(stored: Stored) -> dict[str, Effect]:
    both = torch.stack([torch.cat([each[arm]["distance"] for each in stored.language]) for arm in TWO], dim=1)
    alive = {arm: torch.cat([each[arm]["alive"] for each in stored.language]) for arm in TWO}
    found = {}
    for i, arm in enumerate(TWO):
        mean = float(both[alive[arm], i].mean())
        found[f"w1-{arm}"] = Effect(bootstrap(both[:, i]), f"resampled over latents; of latents that fire {mean:.3f}")
    ratio = bootstrap(both, lambda rows: float(rows[:, 1].sum() / rows[:, 0].sum()))
    return {**found, "w1-ratio": Effect(ratio, "resampled over latents")}


def _own(stored: Stored) -> dict[str, Effect]:
    values = {f"dead-{arm}": [each[arm]["dead"] for each in stored.language] for arm in TWO}
    values["lm-share"] = [each["poly"]["share"] for each in stored.language]
    return {id: _over_seeds(each) for id, each in values.items()}
