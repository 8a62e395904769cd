"""The measurement of paper 10: parts that survive a kill, then intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch

from mechanome.circuits import Circuit, Graph, iou
from mechanome.circuits.sheaves import iou_matrix, shared_edges
from mechanome.core import Interval, binomial, bootstrap
from mechanome.studies.context import Context
from mechanome.studies.papers.sheaf_repulsion import SEARCHES, Settings, language, pictures, small
from mechanome.studies.study import Effect, Measured

Packed = Mapping[str, Any]


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, one a seed.

    Args:
        graph: of the small models; all have the same.
        right: whether the small model is right, `[prompt]`.
        sheaves, restarts, others, trade_off: as `small.packed`.
        few: as `small.few_edges`.
        language: the language model's sheaves, one after the other, of the first seed.
    """

    graph: Graph
    right: Sequence[torch.Tensor] = field(repr=False)
    sheaves: Sequence[Packed] = field(repr=False)
    restarts: Sequence[Packed] = field(repr=False)
    others: Sequence[Packed] = field(repr=False)
    few: Sequence[Packed] = field(repr=False)
    trade_off: Sequence[Packed] = field(repr=False)
    language: Sequence[Packed] = field(repr=False)

    def circuits(self, found: Packed) -> list[Circuit]:
        """Of the small model."""
        return [Circuit(self.graph, edges) for edges in found["edges"]]


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    stored = _stored(context)
    effects = {**_claims(stored), **_means(stored), **_others(stored), **_few(stored), **_language(stored)}
    notes = [note for found in (*stored.sheaves, *stored.restarts) for note in found["notes"]]
    remarks = [note for note in notes if "dangling" not in note]
    remarks += [f"Language model: {found['prompts'][1]} of {found['prompts'][0]} prompts done right, "
                f"{int(found['edges'].sum())} edges in the sheaf." for found in stored.language]  # fmt: skip
    return Measured(effects, pictures.sections(stored, context.settings), remarks)


def _stored(context: Context[Settings]) -> Stored:
    size, seeds = context.settings, context.seeds
    right = context.each("small model", seeds, lambda seed: small.accuracy(seed, size))
    sheaves = context.each("sheaves by repulsion", seeds, lambda seed: small.many(seed, size, "union"))
    restarts = context.each("random restarts", seeds, lambda seed: small.many(seed, size, "none"))
    first = {seed: found["edges"][0] for seed, found in zip(seeds, sheaves)}
    others = context.each("other searches", seeds, lambda seed: small.others(seed, size, first[seed]))
    few = context.each("few edges", seeds, lambda seed: small.few_edges(seed, size))
    trade_off = context.each("trade-off", seeds, lambda seed: small.trade_off(seed, size, first[seed]))
    spoken: list[Packed] = []
    for number in range(size.language):
        before = [found["edges"][0] for found in spoken]
        spoken += context.each(
            f"language model, sheaf {number + 1}",
            seeds[:1],
            lambda seed: language.sheaf(context.model("decoder"), seed, size, before),  # noqa: B023
        )
    graph = small.Small(seeds[0], size).graph
    return Stored(graph, [r["right"] for r in right], sheaves, restarts, others, few, trade_off, spoken)


def _claims(stored: Stored) -> dict[str, Effect]:
    rights = torch.cat([found["right"] for found in stored.sheaves])
    without = torch.cat([found["without"] for found in stored.sheaves])
    worst, least = rights[rights.sum(1).argmin()], without[without.sum(1).argmax()]
    sizes = [len(c) / stored.graph.n_edges for found in stored.sheaves for c in stored.circuits(found)]
    apart, restarts = (_pairs(stored, found) for found in (stored.sheaves, stored.restarts))
    ratio = _ratio(np.array([apart, restarts]).T)
    return {
        "accuracy": Effect(binomial(int(worst.sum()), len(worst)), "over prompts"),
        "complement": Effect(binomial(int(least.sum()), len(least)), "over prompts"),
        "density": Effect(counted(max(sizes), len(sizes))),
        "apart": Effect(ratio, "over pairs" if ratio else "too few pairs, or restarts share nothing"),
        "as-accurate": Effect(bootstrap(_by_prompt(stored.sheaves) - _by_prompt(stored.restarts)), "over prompts"),
        "mutual": _mutual(stored),
        "pair": Effect(counted(float(np.nanmin(apart)), len(apart)))
        if np.isfinite(apart).any()
        else Effect(None, _NONE),
    }


_NONE = "no sheaf has edges"


def counted(value: float, n: int) -> Interval:
    """A number that was counted, not sampled."""
    return Interval(value, value, value, n, method="count")


def _pairs(stored: Stored, found: Sequence[Packed]) -> list[float]:
    """IoU of all pairs of sheaves of one seed, seeds in turn."""
    matrices = [iou_matrix(stored.circuits(one)) for one in found]
    return [float(m[i, j]) for m in matrices for i, j in combinations(range(len(m)), 2)]


def _ratio(rows: np.ndarray) -> Interval | None:
    """Mean of the first over mean of the second column; None where that is not defined."""
    if len(rows) < 2 or not np.isfinite(rows).all() or not rows[:, 1].min() > 0:
        return None
    return bootstrap(rows, lambda some: float(some[:, 0].mean() / some[:, 1].mean()))


def _by_prompt(found: Sequence[Packed], what: str = "right") -> np.ndarray:
    """Share of circuits that are right, per prompt; prompts of all seeds."""
    return torch.cat([one[what].double().mean(0) for one in found]).numpy()


def _mutual(stored: Stored) -> Effect:
    values = [
        [shared_edges(stored.circuits(one))[-1].mutual for one in pair] for pair in zip(stored.sheaves, stored.restarts)
    ]
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if len(known) < len(values):
        return Effect(None, _NONE)
    note = "; ".join(f"{a:.3f} against {b:.3f}" for a, b in known)
    return Effect(counted(max(a - b for a, b in known), len(known)), f"by seed: {note}")


def _means(stored: Stored) -> dict[str, Effect]:
    found = {
        "model": Effect(bootstrap(torch.cat(list(stored.right)).double()), "over prompts"),
        "random-accuracy": Effect(bootstrap(_by_prompt(stored.sheaves, "random")), "over prompts"),
    }
    for prefix, ious, sets in (("mean", "iou", stored.sheaves), ("restart", "restart-iou", stored.restarts)):
        densities = [len(c) / stored.graph.n_edges for one in sets for c in stored.circuits(one)]
        pairs = _pairs(stored, sets)
        found |= {
            f"{prefix}-accuracy": Effect(bootstrap(_by_prompt(sets)), "over prompts"),
            f"{prefix}-complement": Effect(bootstrap(_by_prompt(sets, "without")), "over prompts"),
            f"{prefix}-density": Effect(bootstrap(densities), "over sheaves"),
            ious: over(pairs, "over pairs"),
        }
    return found


def over(values: Sequence[float], note: str) -> Effect:
    """The mean with its interval, where there are enough numbers and all are defined."""
    if len(values) < 2 or not np.isfinite(values).all():
        return Effect(None, "fewer than two values, or some are not defined")
    return Effect(bootstrap(values), note)


def _others(stored: Stored) -> dict[str, Effect]:
    found = {}
    for row, name in enumerate(SEARCHES):
        shared = [
            iou(stored.circuits(other)[row], sheaf).value or 0.0
            for other, one in zip(stored.others, stored.sheaves)
            for sheaf in stored.circuits(one)
        ]
        sizes = ", ".join(str(int(other["edges"][row].sum())) for other in stored.others)
        for what, key in (("accuracy", "right"), ("complement", "without")):
            values = torch.cat([other[key][row] for other in stored.others])
            found[f"{name}-{what}"] = Effect(bootstrap(values.double()), f"over prompts; {sizes} edges")
        found[f"{name}-iou"] = over(shared, "over sheaves")
    return found


def _few(stored: Stored) -> dict[str, Effect]:
    """The most accurate sheaf of at most three edges, and what is found without each of them."""
    chosen = [found for found in stored.few if found["chosen"]]
    if not chosen:
        missing = Effect(None, "no sheaf of one to three edges was found")
        return dict.fromkeys(("few-edges", "few-accuracy", "few-without-one"), missing)
    names = "; ".join(", ".join(found["chosen"]) for found in chosen)
    right = []
    for found in chosen:
        own = Circuit.of(stored.graph, found["chosen"]).edges
        place = next(i for i, edges in enumerate(found["ladder"]["edges"]) if torch.equal(edges, own))
        right.append(found["ladder"]["right"][place])
    sizes = [len(found["chosen"]) for found in chosen]
    without = [rows.double().mean(0) for found in chosen for rows in [found["others"]["right"]]]
    each = ", ".join(f"{float(r.double().mean()):.3f}" for found in chosen for r in found["others"]["right"])
    return {
        "few-edges": Effect(counted(sum(sizes) / len(sizes), len(sizes)), names),
        "few-accuracy": Effect(bootstrap(torch.cat(right).double()), "over prompts"),
        "few-without-one": Effect(bootstrap(torch.cat(without)), f"over prompts; without each edge: {each}"),
    }


def _language(stored: Stored) -> dict[str, Effect]:
    rows = {"language-accuracy": "right", "language-complement": "without", "language-random": "random"}
    counts = ("language-density", "language-iou")
    if not stored.language:
        return dict.fromkeys((*rows, *counts), Effect(None, "the language model is left out at this size"))
    edges = [found["edges"][0] for found in stored.language]
    sizes = [int(e.sum()) for e in edges]
    total = stored.language[0]["total"]
    shared, any_ = int((edges[0] & edges[-1]).sum()), int((edges[0] | edges[-1]).sum())
    chance = sizes[0] * sizes[-1] / total
    note = f"{shared} edges shared; two random circuits of these sizes would share {chance:.1f}"
    return {
        **{name: _each(stored.language, what) for name, what in rows.items()},
        counts[0]: Effect(counted(sum(sizes) / len(sizes) / total, len(sizes)), f"{sizes} edges of {total}"),
        counts[1]: Effect(counted(shared / any_, len(sizes)), note) if any_ else Effect(None, _NONE),
    }


def _each(found: Sequence[Packed], what: str) -> Effect:
    """The mean of circuits on the same prompts, each one's beside it."""
    rows = torch.cat([one[what] for one in found]).double()
    own = ", ".join(f"{value:.3f}" for value in rows.mean(1).tolist())
    return Effect(bootstrap(rows.mean(0)), f"over prompts; by sheaf: {own}")
