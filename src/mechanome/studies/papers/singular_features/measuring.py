"""The measurement of paper 28: the theorem, toys, a real model, a small model in training; then intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.circuits.native import (
    KnownFeatures,
    attention_terms,
    fitted,
    needed,
    predicted,
    sparseness,
    train_known_features,
)
from mechanome.core import Interval, bootstrap, spearman
from mechanome.engine import Model
from mechanome.studies.context import Context
from mechanome.studies.papers.singular_features import Settings, emergence, pictures
from mechanome.studies.papers.singular_features.texts import texts
from mechanome.studies.study import Effect, Measured


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        theorem: per seed, |cos| of fitted and predicted directions, general and isotropic features.
        toys: per seed, name of a toy to its numbers.
        cases: per text, numbers of each attended pair `[case]`.
        small: per seed, as `emergence.measured` returns them.
    """

    theorem: Sequence[Mapping[str, Tensor]] = field(repr=False)
    toys: Sequence[Mapping[str, Mapping[str, Any]]] = field(repr=False)
    cases: Sequence[Mapping[str, Any]] = field(repr=False)
    small: Sequence[Mapping[str, Any]] = field(repr=False)


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    stored = _stored(context)
    effects = {**_theorem(stored.theorem), **_toys(stored.toys), **_real(stored.cases, context.settings.few)}
    effects |= _small(stored.small)
    pairs = sum(len(found["weight"]) for found in stored.cases)
    heads = len({tuple(at) for found in stored.cases for at in found["head"].tolist()})
    remarks = (f"{pairs} attended pairs of {heads} heads in {len(stored.cases)} texts.",)
    return Measured(effects, pictures.sections(stored, context.settings), remarks)


def _stored(context: Context[Settings]) -> Stored:
    """Run everything. Each part is small and survives a kill."""
    size = context.settings
    theorem = context.each("theorem", context.seeds, lambda seed: _directions(seed, size.draws))
    toys: list[dict[str, Any]] = [{} for _ in context.seeds]
    for name, settings in toy_settings(size).items():
        found = context.each(f"toy {name}", context.seeds, lambda seed: _toy(settings, seed))  # noqa: B023
        for row, one in zip(toys, found):
            row[name] = one
    small = context.each("small model", context.seeds, lambda s: emergence.measured(s, size.steps, size.prompts))
    model = context.model("decoder")
    layers = range(0, model.n_layers, size.layers)
    drawn = [(seed, i, text) for seed in context.seeds for i, text in enumerate(texts(size.texts, seed))]
    names = {f"{seed} {i}": (seed, text) for seed, i, text in drawn}
    cases = context.each(
        "attention", names, lambda at: _cases(model, names[at][1], names[at][0], layers, size.threshold)
    )
    return Stored(theorem, toys, cases, small)


def toy_settings(size: Settings) -> dict[str, KnownFeatures]:
    """The toys by name."""
    single = KnownFeatures(sharpness=1.0, steps=size.toy)
    dimensions = size.pairs * 5 // 2
    many = KnownFeatures.graded(
        size.pairs, features=2 * dimensions, width=dimensions, d_head=dimensions, steps=size.toy
    )
    return {
        "single": single,
        "single without": replace(single, weight=0.0),
        "many": many,
        "many without": replace(many, weight=0.0),
    }


def _directions(seed: int, draws: int) -> dict[str, Tensor]:
    """The theorem on random features: anisotropic ones on both sides, and tight frames."""
    generator = torch.Generator().manual_seed(seed)
    general, isotropic = [], []
    for draw in range(draws):
        spread = torch.linspace(0.5, 2.0, 8, dtype=torch.float64)
        x = torch.randn(20, 8, generator=generator, dtype=torch.float64) * spread
        y = torch.randn(16, 6, generator=generator, dtype=torch.float64)
        u, v = fitted(x, y, seed=1000 * seed + draw)
        general.append(min(abs(float(u @ predicted(x))), abs(float(v @ predicted(y)))))
        frames = [torch.linalg.qr(f).Q for f in (x, y)]
        u, v = fitted(frames[0], frames[1], seed=1000 * seed + draw)
        own = [abs(float(found @ (f[0] / f[0].norm()))) for found, f in zip((u, v), frames)]
        isotropic.append(min(own))
    return {"general": torch.tensor(general), "isotropic": torch.tensor(isotropic)}


def _toy(settings: KnownFeatures, seed: int) -> dict[str, Any]:
    toy = train_known_features(settings, seed)
    found, strongest, values = toy.alignment(), toy.alignment(toy.units().take([0])), toy.units().values
    ranks = 1.0
    if len(settings.pairs) > 2:
        ranks = spearman(found.strengths, found.values, resamples=1).estimate
    return {
        "strongest-mean": strongest.mean,
        "strongest-worst": strongest.worst,
        "mean": found.mean,
        "worst": found.worst,
        "query": found.query,
        "key": found.key,
        "second": float(values[1] / values[0]),
        "values": values,
        "ranks": ranks,
        "apart": toy.alignment(apart=True).mean,
        "shared": found.shared,
        "chance": sum(toy.chance(seed * 20 + i).mean for i in range(20)) / 20,
        "crowding": toy.crowding(),
        "losses": [toy.reconstruction, toy.attention],
    }


def _cases(model: Model, text: str, seed: int, layers: Sequence[int], threshold: float) -> dict[str, Any]:
    """Every attended pair of a text, with and without the first token among the other keys."""
    found = attention_terms(model, text, layers, threshold=threshold, seed=1000 * seed)
    bare = attention_terms(
        model, text, cases=[c for c in found.cases if c.query > 2], seed=1000 * seed, without_first=True
    )
    positive = found.relative > 0
    return {
        "head": torch.tensor([case[:2] for case in found.cases]),
        "weight": found.weight,
        "own": found.sparseness,
        "rotated": sparseness(found.rotated).mean(1),
        "respectral": sparseness(found.respectral).mean(1),
        "needed": torch.where(positive, found.needed, -1),
        "needed-rotated": torch.where(positive, needed(found.rotated)[:, 0], -1),
        "largest": found.terms.abs().argmax(1),
        "error": found.error,
        "bare-head": torch.tensor([case[:2] for case in bare.cases]),
        "bare-own": bare.sparseness,
        "bare-rotated": sparseness(bare.rotated).mean(1),
    }


# Intervals -----------------------------------------------------------------------------------------------------------


def _over(values: Sequence[float], note: str) -> Effect:
    return Effect(bootstrap(values) if len(values) > 1 else None, note if len(values) > 1 else "a single seed")


def _theorem(found: Sequence[Mapping[str, Tensor]]) -> dict[str, Effect]:
    general, isotropic = (torch.cat([one[name] for one in found]).tolist() for name in ("general", "isotropic"))
    note = f"{len(general)} random sets of features, resampled"
    return {"theorem": _over(general, note), "theorem-isotropic": _over(isotropic, note)}


def _toys(found: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Effect]:
    note = f"{len(found)} toys, each trained from its own seed, resampled"

    def over(toy: str, number: str) -> Effect:
        return _over([float(one[toy][number]) for one in found], note)

    apart = {
        toy: [float(one[toy]["crowding"]) - float(one[f"{toy} without"]["crowding"]) for one in found]
        for toy in ("single", "many")
    }
    return {
        "single-aligned": over("single", "strongest-worst"),
        "single-rank-one": over("single", "second"),
        "many-aligned": over("many", "mean"),
        "many-apart": over("many", "apart"),
        "many-shared": over("many", "shared"),
        "many-chance": over("many", "chance"),
        "many-graded": over("many", "ranks"),
        "untrained": over("single without", "strongest-mean"),
        "crowding": _over([*apart["single"], *apart["many"]], f"{2 * len(found)} pairs of toys, resampled"),
        **{f"crowding-{toy}": _over(values, note) for toy, values in apart.items()},
    }


def _real(cases: Sequence[Mapping[str, Any]], few: int) -> dict[str, Effect]:
    def column(name: str) -> Tensor:
        return torch.cat([found[name] for found in cases]).double()

    heads = [tuple(at) for found in cases for at in found["head"].tolist()]
    bare = [tuple(at) for found in cases for at in found["bare-head"].tolist()]
    own, turned, apart = column("own"), column("rotated"), column("respectral")
    real = column("needed") > 0
    some = [head for head, kept in zip(heads, real.tolist()) if kept]
    terms, control = column("needed")[real], column("needed-rotated")[real]
    share = {name: (x <= few).double() for name, x in (("few", terms), ("few-rotated", control))}
    note = f"{len(heads)} pairs of {len(set(heads))} heads, resampled over heads"

    def over(values: Tensor, groups: Sequence[tuple[int, ...]]) -> Interval:
        return bootstrap(values, groups=[str(group) for group in groups])

    def ratio(a: Tensor, b: Tensor, groups: Sequence[tuple[int, ...]]) -> Interval:
        pairs, labels = torch.stack([a, b], 1), [str(group) for group in groups]
        return bootstrap(pairs, _ratio, groups=labels, resamples=2000)

    contrast = share["few"] - 1.5 * share["few-rotated"]
    positive = f"{len(some)} pairs whose relative score is positive, resampled over heads"
    return {
        "sparser-rotated": Effect(ratio(own, turned, heads), note),
        "sparser-respectral": Effect(over(own - apart, heads), note),
        "few-terms": Effect(over(contrast, some), positive),
        "sparseness": Effect(over(own, heads), note),
        "sparseness-rotated": Effect(over(turned, heads)),
        "sparseness-respectral": Effect(over(apart, heads)),
        "terms": Effect(over(terms, some), f"{positive}; median {int(terms.median())}"),
        "terms-rotated": Effect(over(control, some), f"median {int(control.median())}"),
        **{name: Effect(over(values, some)) for name, values in share.items()},
        "sparser-without-first": Effect(ratio(column("bare-own"), column("bare-rotated"), bare)),
        "largest-term": Effect(over(column("largest"), heads)),
        "sum-error": Effect(bootstrap([float(found["error"]) for found in cases])),
    }


def _ratio(pairs: np.ndarray) -> float:
    return float(pairs[:, 0].mean() / pairs[:, 1].mean())


def _small(found: Sequence[Mapping[str, Any]]) -> dict[str, Effect]:
    note = f"{len(found)} models, each trained from its own seed, resampled"
    falls = {name: [1 - one[name][-1] / one[name][0] for one in found] for name in ("own", "rotated")}
    return {
        "emerges": _over(falls["own"], note),
        "control-stays": _over(falls["rotated"], note),
        "first-sparseness": _over([one["own"][0] for one in found], note),
        "last-sparseness": _over([one["own"][-1] for one in found], note),
        "induction": _over([one["induction"][-1] for one in found], note),
        "accuracy": _over([one["accuracy"] for one in found], note),
    }
