"""The measurement of paper 34: prompts, importance, masking, sinks; then intervals from what was stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.core import Interval, TooFewRows, binomial, bootstrap, paired_bootstrap, spearman
from mechanome.engine import Model
from mechanome.heads import (
    agreements,
    contributions_of,
    critical_auc,
    fit_parabola,
    hit_at_k,
    mask_tokens,
    read_attention,
    sink_removal,
    sink_report,
    token_importance,
)
from mechanome.studies.context import Context
from mechanome.studies.papers.contribution_weights import METRICS, Settings, pictures
from mechanome.studies.papers.contribution_weights.prompts import kept
from mechanome.studies.study import Effect, Measured

SINKS = {"decoder": (0,), "encoder": (0, -1)}
"""Positions of the sinks: the first token of a decoder, [CLS] and [SEP] of an encoder."""


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        prompts: of all seeds, as `kept` returns them.
        scores: per prompt, metric to importance `[key]`. shares: metric to the sink's, `[layer]`, per prompt.
        masked: per masked prompt, its index and effects. removed: per prompt, drift increase and entropy `[query]`.
        sinks: per role, of every head. right, drawn: prompts answered right, and drawn.
    """

    prompts: Sequence[Mapping[str, Any]] = field(repr=False)
    scores: Sequence[Mapping[str, Any]] = field(repr=False)
    masked: Sequence[Mapping[str, Any]] = field(repr=False)
    removed: Sequence[Mapping[str, Any]] = field(repr=False)
    sinks: Mapping[str, Mapping[str, Any]] = field(repr=False)
    right: Mapping[str, int]
    drawn: Mapping[str, int]


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    stored = _stored(context)
    values = _values(stored, context.settings.top)
    kinds = [prompt["kind"] for prompt in stored.prompts]
    masked = [kinds[row["prompt"]] for row in stored.masked]
    effects = {**_margins(values, kinds, masked), **_side_by_side(values)}
    effects |= {**_sink_effects(stored), **_drift(stored.removed)}
    effects["answered"] = Effect(binomial(sum(stored.right.values()), sum(stored.drawn.values())))
    counts = "; ".join(f"{kind} {n} of {stored.drawn[kind]}" for kind, n in stored.right.items())
    remarks = (f"Answered right with one token: {counts}. Used: {len(stored.prompts)} prompts.",)
    return Measured(effects, pictures.sections(stored, effects), remarks)


def _stored(context: Context[Settings]) -> Stored:
    """Run the models. Each part is small and survives a kill."""
    size = context.settings
    decoder = context.model("decoder")
    drawn = context.each("prompts", context.seeds, lambda seed: kept(decoder, seed, size.prompts, size.candidates))
    prompts = [prompt for seed in drawn for prompt in seed["prompts"]]
    if len(prompts) < 2:
        raise TooFewRows("prompts", f"{context.plan.models['decoder']} answers {len(prompts)} right", "draw more")
    texts = [prompt["text"] for prompt in prompts]
    scored = context.each("importance", range(len(prompts)), lambda i: _importance(decoder, prompts[i]))
    chosen = _first(prompts, size.masked, len(context.seeds))
    masked = context.each("masking", chosen, lambda i: _masking(decoder, prompts[i], i, scored[i]["scores"], size.top))
    layers = range(0, decoder.n_layers, size.layers)
    removing = _first(prompts, size.removed, len(context.seeds))
    removed = context.each("sink removal", removing, lambda i: _removal(decoder, texts[i], layers))
    sinks = {}
    for role in SINKS:
        model = context.model(role)
        sinks[role] = context.part(f"sinks {role}", lambda: _sinks(model, texts, role, size.heavy))  # noqa: B023
    totals = ({kind: sum(seed[what][kind] for seed in drawn) for kind in drawn[0][what]} for what in ("right", "drawn"))
    return Stored(prompts, scored, masked, removed, sinks, *totals)


def _first(prompts: Sequence[Mapping[str, Any]], n: int, seeds: int) -> list[int]:
    """Indices of the first ``n`` prompts of each kind and seed (all seeds together: as many times)."""
    kinds = [prompt["kind"] for prompt in prompts]
    return sorted(i for kind in set(kinds) for i in [j for j, k in enumerate(kinds) if k == kind][: n * seeds])


def _importance(model: Model, prompt: Mapping[str, Any]) -> dict[str, Any]:
    found = token_importance(model, prompt["text"], list(METRICS), answer=prompt["answer"])
    layered = {name: x.cells for name, x in found.items() if name.startswith(("attention", "contribution"))}
    return {
        "scores": {name: x.values.double() for name, x in found.items()},
        "sink": {name: cells[..., 0].flatten(1).mean(-1) if cells.dim() > 2 else cells[:, 0]
                 for name, cells in layered.items()},
        "clipped": contributions_of(read_attention(model, prompt["text"], None, [-1])).clipped_share,
        "tokens": list(found["attention"].tokens),
    }  # fmt: skip


def _masking(
    model: Model, prompt: Mapping[str, Any], index: int, scores: Mapping[str, Tensor], top: int
) -> dict[str, Any]:
    """Each token hidden alone, then the top ones of each metric, then all but these: one batch of rows."""
    n = len(scores["attention"])
    ranked = {name: [p for p in values.argsort(descending=True).tolist() if p] for name, values in scores.items()}
    sets = [[p] for p in range(n)]
    sets += [order[:top] for order in ranked.values()] + [order[top:] for order in ranked.values()]
    drops = mask_tokens(model, prompt["text"], sets, prompt["answer"]).drops
    return {
        "prompt": index,
        "effects": drops[:n],
        "drop": dict(zip(ranked, drops[n : n + len(ranked)].tolist())),
        "kept": dict(zip(ranked, drops[n + len(ranked) :].tolist())),
    }


def _removal(model: Model, text: str, layers: Sequence[int]) -> dict[str, Tensor]:
    found = sink_removal(model, text, layers=layers)
    return {"increase": found.increase.mean(0), "entropy": found.entropy}


def _sinks(model: Model, texts: Sequence[str], role: str, heavy: float) -> dict[str, Tensor]:
    """Of every head: what bends, what falls, what is suppressed; per prompt, the sinks' attention and contribution."""
    places = list(SINKS[role])
    report = sink_report(model, texts, places, heavy=heavy)
    pairs = []
    for text in texts:
        reading = read_attention(model, text, None, [-1] if role == "decoder" else None)
        share = contributions_of(reading, "layer").values[..., places].sum(-1)
        attention = torch.stack([layer.pattern[..., places].sum(-1).mean(0) for layer in reading.layers])
        looking = [i for i, q in enumerate(reading.queries) if role == "decoder" or 0 < q < len(reading.tokens) - 1]
        pairs.append(torch.stack([x[:, looking].mean() for x in (share, attention)]))
    each = [list(zip(*rows)) for rows in zip(report.rate, report.output, report.mean)]
    return {
        "squared": torch.tensor([[_bend(s, o.square()) for s, o, _ in heads] for heads in each]),
        "falling": torch.tensor([[_follows(s, o) for s, o, _ in heads] for heads in each]),
        "rest": torch.tensor([[_follows(s, m) for s, _, m in heads] for heads in each]),
        "suppression": report.suppression,
        "curvature": report.curvature,
        "heavy": report.sink_heavy,
        "pairs": torch.stack(pairs).double(),
    }


def _bend(x: Tensor, y: Tensor) -> float:
    fit = fit_parabola(x, y)
    return float("nan") if fit is None else float(fit[2])


def _follows(x: Tensor, y: Tensor) -> float:
    """Pearson's correlation."""
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1])


Values = dict[str, dict[str, list[float]]]
"""Measure to metric to one number per prompt."""


def _values(stored: Stored, top: int) -> Values:
    """Every measure of every metric, prompt by prompt."""
    scores = [found["scores"] for found in stored.scores]
    critical = [prompt["critical"] for prompt in stored.prompts]

    def over(rows: Sequence[Mapping[str, Any]], rule: Any) -> dict[str, list[float]]:
        return {metric: [float(rule(row, metric)) for row in rows] for metric in METRICS}

    def correlation(size: bool) -> dict[str, list[float]]:
        def rule(row: Mapping[str, Any], metric: str) -> float:
            effects = row["effects"].abs() if size else row["effects"]
            return _correlation(scores[row["prompt"]][metric], effects)

        return over(stored.masked, rule)

    every = [{"prompt": i} for i in range(len(scores))]
    return {
        "agreement": correlation(True),
        "agreement-signed": correlation(False),
        "hit": over(every, lambda row, m: hit_at_k(scores[row["prompt"]][m], critical[row["prompt"]], top)),
        "auc": over(every, lambda row, m: critical_auc(scores[row["prompt"]][m], critical[row["prompt"]])),
        "drop": over(stored.masked, lambda row, m: row["drop"][m]),
        "kept": over(stored.masked, lambda row, m: row["kept"][m]),
    }


def _correlation(scores: Tensor, effects: Tensor) -> float:
    """Of one prompt, the sink left out."""
    return agreements([scores], [effects])[0]


def _margins(values: Values, kinds: Sequence[str], masked: Sequence[str]) -> dict[str, Effect]:
    ours = "contribution_layer"
    agreed, hit = values["agreement"], values["hit"]
    margin = _paired(agreed[ours], agreed["attention"], masked)
    return {
        "agreement-margin": margin,
        "agreement-better": margin,
        "hit-margin": _paired(hit[ours], hit["attention"], kinds),
        "agreement-over-norm": _paired(agreed[ours], agreed["norm"], masked),
        "hit-over-norm": _paired(hit[ours], hit["norm"], kinds),
    }


def _paired(a: Sequence[float], b: Sequence[float], kinds: Sequence[str]) -> Effect:
    """The mean difference over prompts; the note gives it for each kind of prompt."""
    by_kind = {kind: [x - y for x, y, k in zip(a, b, kinds) if k == kind] for kind in dict.fromkeys(kinds)}
    means = ", ".join(f"{kind} {sum(rows) / len(rows):.2f}" for kind, rows in by_kind.items())
    return Effect(paired_bootstrap(a, b), f"paired, resampled over prompts; by kind: {means}")


def _side_by_side(values: Values) -> dict[str, Effect]:
    return {
        f"{measure}-{metric.replace('_', '-')}": Effect(_mean(measure, numbers))
        for measure, by_metric in values.items()
        for metric, numbers in by_metric.items()
    }


def _mean(measure: str, numbers: Sequence[float]) -> Interval:
    """Outcomes of 0 and 1 have an exact interval, which resampling cannot give where all are equal."""
    return binomial(int(sum(numbers)), len(numbers)) if measure == "hit" else bootstrap(numbers)


def _sink_effects(stored: Stored) -> dict[str, Effect]:
    effects = {}
    for role, found in stored.sinks.items():
        fitted = found["curvature"][~found["curvature"].isnan()]
        loud = found["suppression"][found["heavy"]]
        mean_heavy = f"{len(loud)} of {found['heavy'].numel()} heads are sink-heavy"
        squared = found["squared"][~found["squared"].isnan()]
        effects[f"sink-share-{role}"] = Effect(bootstrap(found["pairs"], _ratio), "resampled over prompts")
        effects[f"sink-convex-{role}"] = _share(fitted, _why_bent(found))
        effects[f"sink-convex-squared-{role}"] = _share(squared, "heads whose sink rate varies enough to fit")
        effects[f"sink-falling-{role}"] = _share(-found["falling"].flatten(), "all heads")
        effects[f"sink-louder-{role}"] = _share(loud, mean_heavy)
        several = len(loud) > 1
        effects[f"suppression-{role}"] = Effect(bootstrap(loud) if several else None, mean_heavy)
    for metric in ("attention", "contribution_head", "contribution_layer"):
        shares = [float(scored["scores"][metric][0]) for scored in stored.scores]
        effects[f"sink-{metric.replace('_', '-')}"] = Effect(bootstrap(shares))
    effects["clipped"] = Effect(bootstrap([scored["clipped"] for scored in stored.scores]))
    return effects


def _why_bent(found: Mapping[str, Tensor]) -> str:
    """With u and m held, every head bends upwards; what bends one down is m growing where the head uses its sink."""
    up, down = found["rest"][found["curvature"] > 0], found["rest"][found["curvature"] <= 0]
    means = " and ".join(f"{float(x.mean()):.2f} in those that bend {way}" for x, way in ((up, "up"), (down, "down"))
                         if len(x))  # fmt: skip
    return f"{len(up) + len(down)} heads whose sink rate varies enough to fit; correlation of s with ||m||: {means}"


def _share(values: Tensor, note: str) -> Effect:
    """The share of heads above 0, as an exact binomial interval."""
    return Effect(binomial(int((values > 0).sum()), len(values)) if len(values) else None, note)


def _ratio(pairs: np.ndarray) -> float:
    return float(pairs[:, 0].mean() / pairs[:, 1].mean())


def _drift(removed: Sequence[Mapping[str, Tensor]]) -> dict[str, Effect]:
    increase, entropy = (torch.cat([found[name] for found in removed]) for name in ("increase", "entropy"))
    prompts = [i for i, found in enumerate(removed) for _ in found["entropy"]]
    note = f"{len(prompts)} tokens of {len(removed)} prompts; resampled over prompts"

    def at(level: float) -> Interval:
        return spearman(increase, entropy, level=level, groups=prompts)

    return {"drift-entropy": Effect(at(0.95), note), "drift-significant": Effect(at(0.99), note)}
