"""The measurement of paper 06: queries, circuits by every method, then means and intervals from what was stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits import Circuit, Graph, QueryCircuits, ScoredQuery, execute, ndf
from mechanome.core import Interval, TooFewRows, binomial, bootstrap
from mechanome.studies.context import Context
from mechanome.studies.papers.query_circuits import ARMS, Settings, pictures
from mechanome.studies.papers.query_circuits.prompts import KINDS, example_of, queries
from mechanome.studies.study import Effect, Measured
from mechanome.tasks import Task

ELSEWHERE = ("single", "averaging", "best-of-n")
"""Methods whose circuits are also measured on the held-out input."""


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        kinds: of each query. rows: its prompt and those of its samples, as `queries` keeps them.
        found: per query, as `_measured` returns it.
        accuracy: per kind, candidates answered right, and asked.
    """

    kinds: Sequence[str]
    rows: Sequence[Sequence[Sequence[str]]] = field(repr=False)
    found: Sequence[Mapping[str, Any]] = field(repr=False)
    accuracy: Mapping[str, tuple[int, int]]

    def ndf(self, arm: str, of: str = "ndf") -> Tensor:
        """NDF of one method, `[query, budget]`."""
        return torch.stack([each[of][arm] for each in self.found])


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    size, stored = context.settings, _stored(context)
    effects = {**_methods(stored, size), **_sanity(stored, size), **_elsewhere(stored, size), **_between(stored, size)}
    said = ", ".join(f"{kind} {right} of {asked}" for kind, (right, asked) in stored.accuracy.items())
    left = [kind for kind in KINDS if kind not in stored.kinds]
    used = ", ".join(f"{stored.kinds.count(kind)} {kind}" for kind in dict.fromkeys(stored.kinds))
    remarks = (
        f"Answered with the most likely token: {said}. Used: {used}; left out: {', '.join(left) or 'no kind'}.",
        f"Smallest circuit by best of n with NDF >= {size.target:g}, of those queries that have one: "
        f"median of {_smallest(stored, size)}.",
    )
    return Measured(effects, pictures.sections(stored, size), remarks)


def _stored(context: Context[Settings]) -> Stored:
    """Run the model. Each part is one query, and survives a kill."""
    size, model = context.settings, context.model("decoder")
    graph = Graph.of(model)
    kinds: list[str] = []
    rows: list[list[list[str]]] = []
    found: list[Mapping[str, Any]] = []
    accuracy = {}
    for kind in KINDS:
        drawn = context.each(
            f"{kind}, queries",
            context.seeds,
            lambda seed: queries(model, kind, seed, size.queries, size.samples, size.candidates, size.effect),  # noqa: B023
        )
        right, asked = (sum(each[what] for each in drawn) for what in ("right", "asked"))
        accuracy[kind] = right, asked
        groups = {
            f"{seed}/{i}": group for seed, each in zip(context.seeds, drawn) for i, group in enumerate(each["queries"])
        }
        if right < size.enough * asked or not groups:
            continue
        found += context.each(f"{kind}, circuits", groups, lambda name: _measured(graph, groups[name], size))  # noqa: B023
        rows += groups.values()
        kinds += [kind] * len(groups)
    if len(found) < 2:
        raise TooFewRows(
            "queries", f"{context.plan.models['decoder']} answers {len(found)} right", "try more candidates"
        )
    return Stored(kinds, rows, found, accuracy)


def _measured(graph: Graph, rows: Sequence[Sequence[str]], size: Settings) -> dict[str, Any]:
    """Circuits of one query by every method.

    Args:
        graph: of the model. rows: the query's prompt, its samples', the held-out one's. size: the sizes.

    Returns:
        ndf, nfs: per method `[budget]`; held_out: NDF elsewhere, for some; tried: of best of n `[candidate, budget]`;
        winner: of each budget; between: NDF at sizes between budgets, per method; full, empty: NDF of all and no edges;
        effect: the total effect, in logits.
    """
    examples = [example_of(row) for row in rows]
    query, samples, other = (
        Task("query", (examples[0],)),
        Task("samples", tuple(examples[1:-1])),
        Task("other", (examples[-1],)),
    )
    scored = ScoredQuery.of(graph, query, samples=samples, steps=size.steps, quiet=True)
    found = {arm: scored.circuits(arm, size.budgets, held_out=other if arm in ELSEWHERE else None) for arm in ARMS}
    best = found["best-of-n"]
    between = {
        arm: scored.circuits(arm, size.between, anchors=size.budgets) for arm in ("best-of-n-csm", "interpolated")
    }
    between["best-of-n"] = scored.circuits("best-of-n", size.between)
    ends = ndf(execute([Circuit.full(graph), Circuit.empty(graph)], query, quiet=True))
    return {
        "ndf": {arm: circuits.ndf for arm, circuits in found.items()},
        "nfs": {arm: circuits.nfs for arm, circuits in found.items()},
        "held_out": {arm: _held_out(found[arm]) for arm in ELSEWHERE},
        "tried": best.tried,
        "winner": list(best.winner),
        "between": {arm: circuits.ndf for arm, circuits in between.items()},
        "full": float(ends[0]),
        "empty": float(ends[1]),
        "effect": best.total_effect,
    }


def _held_out(circuits: QueryCircuits) -> Tensor:
    assert circuits.held_out is not None
    return torch.tensor([float(each) for each in circuits.held_out], dtype=torch.float64)


# From what was stored ---------------------------------------------------------------------------------------------


def _small(sizes: Sequence[int], values: Tensor, size: Settings) -> Tensor:
    """Means over sizes up to `upto`, `[query]`."""
    return values[:, [i for i, n in enumerate(sizes) if n <= size.upto]].mean(1)


def _over(stored: Stored, values: Tensor) -> Effect:
    """The mean over queries, with means of each kind in the note."""
    by_kind = {kind: values[[k == kind for k in stored.kinds]] for kind in dict.fromkeys(stored.kinds)}
    means = ", ".join(f"{kind} {float(each.mean()):.3f}" for kind, each in by_kind.items())
    return Effect(bootstrap(values), f"resampled over queries; by kind: {means}")


def _methods(stored: Stored, size: Settings) -> dict[str, Effect]:
    means = {arm: _small(size.budgets, stored.ndf(arm), size) for arm in ARMS}
    best = means["best-of-n"]
    against = {
        "best-over-single": "single",
        "best-over-averaging": "averaging",
        "best-over-random": "random",
        "one-ranking": "best-of-n-csm",
        "best-over-gaussian": "gaussian",
        "best-over-replacement": "edge-replacement",
    }
    tried = torch.stack([each["tried"] for each in stored.found])
    few = [i for i, n in enumerate(size.budgets) if n <= size.upto]
    steps = tried[..., few].cummax(1).values.mean(2).diff(dim=1).amin(1)
    winner = torch.tensor([[each["winner"][i] for i in few] for each in stored.found])
    return {
        **{id: _over(stored, best - means[arm]) for id, arm in against.items()},
        **{f"ndf-{arm}": _over(stored, mean) for arm, mean in means.items()},
        "more-samples": Effect(bootstrap(steps), "of each query the smallest change; never below 0 by construction"),
        "others-win": _over(stored, (winner > 0).double().mean(1)),
    }


def _sanity(stored: Stored, size: Settings) -> dict[str, Effect]:
    every = torch.cat([stored.ndf(arm).flatten() for arm in ARMS])
    share = torch.stack([torch.stack([each["nfs"][arm] for arm in ELSEWHERE]) for each in stored.found])
    leaves = ((share < 0) | (share > 1)).flatten(1).any(1)
    reach = {
        f"reach-{id}": _share((stored.ndf(arm) >= size.target).any(1))
        for id, arm in (("single", "single"), ("best", "best-of-n"))
    }
    return {
        "in-range": Effect(_share((every >= 0) & (every <= 1)), "every method, query and size; so by definition"),
        "full-graph": Effect(bootstrap([1 - each["full"] for each in stored.found]), "resampled over queries"),
        "empty-graph": Effect(bootstrap([each["empty"] for each in stored.found]), "resampled over queries"),
        "nfs-leaves": Effect(_share(leaves), f"circuits by {', '.join(ELSEWHERE)}; NFS {_range(share)}"),
        **{id: Effect(interval, "exact binomial over queries") for id, interval in reach.items()},
    }


def _elsewhere(stored: Stored, size: Settings) -> dict[str, Effect]:
    there = {arm: _small(size.budgets, stored.ndf(arm, "held_out"), size) for arm in ELSEWHERE}
    here = _small(size.budgets, stored.ndf("best-of-n"), size)
    return {
        "held-out-single": _over(stored, there["single"]),
        "held-out-averaging": _over(stored, there["averaging"]),
        "held-out-best": _over(stored, there["best-of-n"]),
        "held-out-gain": _over(stored, there["best-of-n"] - there["single"]),
        "chosen-gain": _over(stored, here - there["best-of-n"]),
    }


def _between(stored: Stored, size: Settings) -> dict[str, Effect]:
    found = {arm: _small(size.between, stored.ndf(arm, "between"), size) for arm in stored.found[0]["between"]}
    best = found["best-of-n"]
    return {
        "ndf-between": _over(stored, best),
        "interpolated-between": _over(stored, found["interpolated"] - best),
        "one-ranking-between": _over(stored, found["best-of-n-csm"] - best),
    }


def _share(yes: Tensor) -> Interval:
    return binomial(int(yes.sum()), yes.numel())


def _range(values: Tensor) -> str:
    return f"from {float(values.min()):.2f} to {float(values.max()):.2f}"


def _smallest(stored: Stored, size: Settings) -> str:
    """Sizes of the smallest good circuits in words."""
    good = stored.ndf("best-of-n") >= size.target
    sizes = sorted(size.budgets[int(row.to(torch.int).argmax())] for row in good if bool(row.any()))
    if not sizes:
        return "none"
    return f"{sizes[len(sizes) // 2]} edges ({len(sizes)} of {len(good)} queries)"
