"""`make bench-circuits`: circuits beside a plain forward pass, TransformerLens, auto-circuit and a loop of hooks.

On a GPT-2 with random weights (12 layers, 12 heads, width 768, 32,491 edges) that every engine opens from the same
file, and on SmolLM2-135M for memory. Pairs differ at every token but the first, so nothing can be left out. A score is
compared with the peer's of the same intervention and the same points. Where a peer takes long it gets fewer pairs or
fewer edges, and the row says so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechanome as mn
from benchmarks.circuit_engines.common import Layout
from benchmarks.harness.command import Bench
from benchmarks.harness.growth import Growth
from benchmarks.harness.pairing import Row, Side
from benchmarks.harness.worker import Engine
from benchmarks.random_models import gpt2
from mechanome import circuits
from mechanome.engine.registry import ensure

ENGINES = {
    "mechanome": Engine("benchmarks.circuit_engines.mechanome"),
    "hugging face": Engine("benchmarks.circuit_engines.hugging_face"),
    "transformer-lens": Engine("benchmarks.circuit_engines.transformer_lens", "transformer-lens"),
    "auto-circuit": Engine("benchmarks.circuit_engines.auto_circuit", "auto-circuit"),
}
_LAYERS, _HEADS, _SEARCHED = 12, 12, 2
_PLAIN = "hugging face: one plain forward pass of the batch"
_EAP = {"method": "eap"}
_EAP_IG = {"method": "eap-ig", "steps": 5}
_EXACT = 1e-3
"""An exact effect is a difference of two metrics in float32: small ones have fewer digits."""


@dataclass(frozen=True)
class Subject:
    """What rows are made from: edges by size of score in a file, and the second model's folder."""

    ranking: Path
    smollm2: Path


def prepare() -> tuple[Subject, dict[str, Any]]:
    """The models, and scores of the first one's edges, made once."""
    folder = gpt2()
    ranking = folder / "scores.npz"
    if not ranking.exists():
        _rank(folder, ranking)
    return Subject(ranking, ensure("smollm2-135m-instruct")), {"folder": str(folder), "layers": None}


def _rank(folder: Path, file: Path) -> None:
    graph, request = circuits.Graph.of(mn.load(str(folder))), pairs(8, 15)
    metric = mn.LogitDiff(request["answer"], request["foil"])
    inputs = tuple(torch.tensor(request[name]) for name in ("clean", "corrupted"))
    np.savez(file, edge=circuits.scores(graph, inputs, metric, quiet=True, **_EAP).values.numpy())


def pairs(count: int, width: int) -> dict[str, Any]:
    """`count` pairs of `width` random tokens that agree at the first one only."""
    clean, corrupted = np.random.default_rng(0).integers(2, 49152, (2, 16, 128))[:, :count, :width]
    corrupted[:, 0] = clean[:, 0]
    return {"clean": clean.tolist(), "corrupted": corrupted.tolist(), "answer": 0, "foil": 1}


_WARM = pairs(1, 15)


def score_rows(subject: Subject) -> Iterator[Row]:
    """EAP and EAP-IG in plain forward passes of the same batch, and beside the peers' own."""
    full = pairs(8, 15)
    for how, words, goal in ((_EAP, "EAP", 1 / 5), (_EAP_IG, "EAP-IG on inputs, 5 steps, midpoints", 1 / 14)):
        ours = Side("mechanome", "scores", {**full, "how": how}, _WARM)
        work = f"{words}, all 32,491 edges, 8 x 15 tokens"
        yield Row(work, _PLAIN, ours, Side("mechanome", "plain_forward", full), goal=goal)
        model = {"folder": str(subject.smollm2)}
        yield Row(
            f"{words}, all 70,651 edges of SmolLM2-135M, 8 x 15 tokens",
            _PLAIN,
            Side("mechanome", "scores", {**full, "how": how}, _WARM, model),
            Side("mechanome", "plain_forward", full, model=model),
            most_mb=3000.0,
        )
    eap = Side("mechanome", "scores", {**full, "how": _EAP}, _WARM)
    theirs = Side("auto-circuit", "mask_gradients", full, _WARM)
    yield Row("EAP, all 32,491 edges, 8 x 15 tokens", "auto-circuit: mask_gradient_prune_scores", eap, theirs)
    few = {**pairs(2, 15), "steps": 5}
    yield Row(
        "mask gradients summed over 6 masks from 0 to 1, all 32,491 edges, 2 x 15 tokens",
        "auto-circuit: mask_gradient_prune_scores, integrated_grad_samples=5",
        Side("mechanome", "mask_gradients", few, _WARM),
        Side("auto-circuit", "mask_gradients", few, _WARM),
    )
    for level, what, count in (("node", "attribution patching, all 157 heads, MLPs and the embedding", 8),
                               ("edge", "EAP, all 32,491 edges", 1)):  # fmt: skip
        some = pairs(count, 15)
        yield Row(
            f"{what}, {count} x 15 tokens",
            f"transformer-lens: attribution_patch, {level}s",
            Side("mechanome", "scores", {**some, "how": {**_EAP, "level": level}}, _WARM),
            Side("transformer-lens", "attribution", {**some, "level": level}, pairs(1, 4)),
        )


def exact_rows(subject: Subject) -> Iterator[Row]:
    """Exact effects of edges drawn at random, and of the direct paths out of one head."""
    one, layout = pairs(1, 15), Layout(_LAYERS, _HEADS)
    every = layout.edges()
    drawn = every[np.random.default_rng(1).choice(len(every), 320, replace=False)].tolist()
    exact = {"how": {"method": "exact"}}
    ours = Side("mechanome", "scores", {**one, **exact, "edges": drawn}, {"edges": drawn[:1]})
    for engine, way, step in (("hugging face", "one hooked forward an edge", 10),
                              ("auto-circuit", "one masked forward an edge", 20)):  # fmt: skip
        timed = drawn[::step]
        theirs = Side(engine, "exact", {**one, "edges": timed}, {"edges": drawn[:1]}, scale=len(drawn) / len(timed))
        work = f"exact effects of {len(drawn)} random edges, 1 x 15 tokens; peer: {len(timed)} timed, scaled"
        yield Row(work, f"{engine}: {way}", ours, theirs, tolerance=_EXACT)
    layer, head = 6, 0
    paths = [
        [layout.source(layer, head), layout.target("v", later, reader)]
        for later in range(layer + 1, _LAYERS)
        for reader in range(_HEADS)
    ]
    yield Row(
        f"exact effects of the {len(paths)} edges from one head to the values of later heads, 1 x 15 tokens",
        "transformer-lens: get_act_patch_direct_path",
        Side("mechanome", "scores", {**one, **exact, "edges": paths}, {"edges": paths[:1]}),
        Side("transformer-lens", "exact", {**one, "layer": layer, "head": head, "component": "v"}, {"layer": 10}),
        tolerance=_EXACT,
    )


def search_rows(subject: Subject) -> Iterator[Row]:
    """ACDC: guessed decisions run together against one after the other, and the peer's."""
    model, edges = {"layers": _SEARCHED}, len(Layout(_SEARCHED, _HEADS).edges())

    def side(engine: str, width: int, **more: bool) -> Side:
        return Side(engine, "search", {**pairs(1, width), "threshold": 1e-3, **more}, pairs(1, 2), model)

    for width, peer, theirs, rounds in (
        (15, "mechanome: sequential", side("mechanome", 15, speculate=False), 5),
        (4, "auto-circuit: acdc_prune_scores", side("auto-circuit", 4), 3),
    ):
        work = f"ACDC, first {_SEARCHED} layers, {edges:,} edges, 1 x {width} tokens, threshold 0.001 nats"
        yield Row(work, peer, side("mechanome", width, speculate=True), theirs, tolerance=0.0, rounds=rounds)


def evaluation_rows(subject: Subject) -> Iterator[Row]:
    """Circuits of the largest EAP scores at the ten sizes of MIB."""
    full, edges = pairs(8, 15), len(Layout(_LAYERS, _HEADS).edges())
    sizes = [int(share * edges) for share in circuits.SIZES]
    ranked = {"ranking": str(subject.ranking)}
    warm = {**_WARM, "sizes": sizes[:1]}

    def ours(some: Mapping[str, Any], method: str, of: list[int], scale: float = 1.0) -> Side:
        args = {**some, **ranked, "sizes": of, "method": method}
        return Side("mechanome", "evaluate", args, warm, scale=scale)

    each = 1 / len(sizes)
    plain = Side("mechanome", "plain_forward", full)
    for method in ("auto", "dense"):
        work = f"one circuit run, of {len(sizes)} sizes run together ({method}), 8 x 15 tokens"
        yield Row(work, _PLAIN, ours(full, method, sizes, each), plain)
    small = sizes[:6]
    yield Row(
        f"circuits of {len(small)} sizes up to 5 % run together (sparse), 8 x 15 tokens",
        "mechanome: dense",
        ours(full, "sparse", small),
        ours(full, "dense", small),
    )
    few = pairs(2, 15)
    theirs = Side("auto-circuit", "evaluate", {**few, **ranked, "sizes": sizes}, warm)
    work = f"circuits of {len(sizes)} sizes, 2 x 15 tokens"
    yield Row(work, "auto-circuit: run_circuits", ours(few, "auto", sizes), theirs)
    one, size = pairs(1, 8), sizes[5]
    theirs = Side(
        "transformer-lens", "evaluate", {**one, **ranked, "sizes": [size]}, {**pairs(1, 2), "sizes": sizes[:1]}
    )
    work = f"one circuit of {size} edges, 1 x 8 tokens"
    yield Row(work, "transformer-lens: faithfulness", ours(one, "auto", [size]), theirs, rounds=3)


def growths(subject: Subject) -> Iterator[Growth]:
    """EAP against layers, heads (of one width) and tokens."""

    def row(work: str, request: Mapping[str, Any], model: Mapping[str, Any]) -> Row:
        ours = Side("mechanome", "scores", {**request, "how": _EAP}, _WARM, model)
        theirs = Side("auto-circuit", "mask_gradients", request, _WARM, model)
        return Row(f"EAP, all edges, {work}", "auto-circuit: mask_gradient_prune_scores", ours, theirs)

    two = pairs(2, 15)
    yield Growth("layers", {n: row("12 heads, 2 x 15 tokens", two, {"layers": n}) for n in (3, 6, 12)})
    yield Growth("heads", {n: row("6 layers, 2 x 15 tokens", two, {"layers": 6, "heads": n}) for n in (6, 12, 24)})
    yield Growth("tokens", {n: row("6 layers, 2 pairs", pairs(2, n), {"layers": 6}) for n in (8, 16, 32)})


GROUPS = {"scores": score_rows, "exact": exact_rows, "search": search_rows, "evaluation": evaluation_rows}
CODE = ("src/mechanome/circuits", "benchmarks/circuit_engines", "benchmarks/engines")
BENCH = Bench("circuits", __doc__, ENGINES, prepare, GROUPS, growths, CODE, seconds=10.0)

if __name__ == "__main__":
    sys.exit(BENCH.main())
