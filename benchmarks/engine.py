"""`make bench-engine`: the engine beside plain Transformers, TransformerLens and nnsight, on SmolLM2-135M.

Every row is the same work on the same weights with the same numbers (asserted), timed in turn in two warm processes.
Peers are used in the fastest way their documentation shows; where a faster use of the same functions exists (all
positions of a layer as rows of one batch) it has a row of its own. Results go to `results/benchmarks/engine.json`,
but only from a whole run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.harness.command import Bench
from benchmarks.harness.growth import Growth
from benchmarks.harness.pairing import Row, Side
from benchmarks.harness.worker import Engine
from benchmarks.prompts import PAIRS, halves, rows
from mechanome.engine.registry import ensure

MODEL, LAYERS, HEADS, WIDTH = "smollm2-135m-instruct", 30, 9, 576
ENGINES = {
    "mechanome": Engine("benchmarks.engines.mechanome"),
    "hugging face": Engine("benchmarks.engines.hugging_face"),
    "transformer-lens": Engine("benchmarks.engines.transformer_lens", "transformer-lens"),
    "nnsight": Engine("benchmarks.engines.nnsight", "nnsight"),
}
_STEERED_LAYER, _STEERED_NORM, _NEW_TOKENS = 15, 60.0, 40
_COPIES = 4
"""Of the opened and of the plain model, in turn, where what an open model costs beside a plain one is measured."""


def forward_rows(tokenizer: Any) -> Iterator[Row]:
    """Capture overhead and the empty plan; the plain model beside them is in our own process (see its module)."""
    prompt = PAIRS["ioi"].request(tokenizer)["clean"]
    shapes = {
        f"IOI prompt, 1 x {len(prompt)} tokens": ([prompt], 1),
        "8 x 128 tokens": (rows(tokenizer, 8, 128), 32),
    }
    for words, (ids, stride) in shapes.items():
        many = 301 if len(ids) == 1 else 31
        plain = {"ids": ids, "capture": False, "stride": stride}
        captured = {**plain, "capture": True}
        ours, turning = (Side("mechanome", "forward", captured, copies=n) for n in (1, _COPIES))
        theirs = Side("mechanome", "plain_forward", plain, copies=_COPIES)
        work = f"forward, residual stream, z and mlp_act of all layers captured, {words}"
        yield Row(work, "hugging face", turning, theirs, rounds=many, goal=1 / 1.10)
        yield Row(work, "transformer-lens", ours, Side("transformer-lens", "forward", captured), rounds=many)
        yield Row(work, "nnsight", ours, Side("nnsight", "forward", captured), rounds=many)
        empty = Side("mechanome", "forward", plain, copies=_COPIES)
        yield Row(f"forward, nothing asked, {words}", "hugging face", empty, theirs, rounds=many, goal=1 / 1.01)
        same = Side("mechanome", "plain_forward", {**plain, "others": True}, copies=_COPIES)
        yield Row(f"control: two plain modules, same weights, {words}", "hugging face", same, theirs, rounds=many)


def residual_rows(tokenizer: Any) -> Iterator[Row]:
    """Layers x positions at `resid_pre`, three pairs."""
    for pair in PAIRS.values():
        request = pair.request(tokenizer)
        length = len(request["clean"])
        first = next(i for i, (a, b) in enumerate(zip(request["clean"], request["corrupted"])) if a != b)
        work = (
            f"residual sweep, {LAYERS} layers x {length} positions (start token included), "
            f"first difference at position {first}"
        )
        ways = [
            ("transformer-lens", "cells", "get_act_patch_resid_pre"),
            ("transformer-lens", "rows", "generic_activation_patch, positions as rows"),
            ("nnsight", "invokes", "one trace a layer, one invoke a position"),
            ("hugging face", "rows", "hooks, positions as rows"),
        ]
        if pair is PAIRS["ioi"]:
            ways.append(("hugging face", "cells", "hooks, one forward a cell"))
        goal = 25.0 if pair is PAIRS["ioi"] else None
        yield from _sweeps(work, "residual_sweep", request, ways, (LAYERS, length), goal)


def head_rows(tokenizer: Any) -> Iterator[Row]:
    """Layers x heads at `z`."""
    ways = [
        ("transformer-lens", "cells", "get_act_patch_attn_head_out_all_pos"),
        ("transformer-lens", "rows", "generic_activation_patch, heads as rows"),
        ("nnsight", "invokes", "one trace a layer, one invoke a head"),
        ("hugging face", "rows", "hooks, heads as rows"),
    ]
    request = PAIRS["ioi"].request(tokenizer)
    work = f"head sweep, {LAYERS} layers x {HEADS} heads, all {len(request['clean'])} positions"
    yield from _sweeps(work, "head_sweep", request, ways, (LAYERS, HEADS), goal=10.0)


def _sweeps(
    work: str,
    task: str,
    request: dict[str, Any],
    ways: list[tuple[str, str, str]],
    grid: tuple[int, int],
    goal: float | None,
) -> Iterator[Row]:
    """One row a way, the goal being for the first. Where the naive grid is long, a regular part of it is timed and
    scaled, and the row says so."""
    cells = grid[0] * grid[1]
    warm = {"layers": [0], "positions": [0]}
    for engine, way, words in ways:
        side, said = Side(engine, task, {**request, "way": way}, warm), ""
        if cells > 1000:
            columns = range(0, grid[1], 8) if way == "cells" else range(grid[1])
            lines = range(0, grid[0], 3 if way == "cells" else 10)
            timed = len(lines) * len(columns)
            said = f"; peer: {timed} cells timed, scaled to {cells}"
            part = {"layers": list(lines), "positions": list(columns)}
            side = replace(side, args={**side.args, **part}, scale=cells / timed)
        ours = Side("mechanome", task, request, warm={"layers": [grid[0] - 1]})
        yield Row(work + said, f"{engine}: {words}", ours, side, goal=goal)
        goal = None


def generation_rows(tokenizer: Any) -> Iterator[Row]:
    """Greedy generation with a vector added at one layer at every position."""
    prompt = PAIRS["ioi"].request(tokenizer)["clean"]
    vector = np.random.default_rng(0).standard_normal(WIDTH)
    vector *= _STEERED_NORM / np.linalg.norm(vector)
    steered = {"ids": prompt, "tokens": _NEW_TOKENS, "layer": _STEERED_LAYER, "vector": vector.tolist()}
    ours = Side("mechanome", "generate", steered)
    work = (
        f"steered generation, {_NEW_TOKENS} new tokens after {len(prompt)}, vector added at resid_post.{_STEERED_LAYER}"
    )
    turning = replace(ours, copies=_COPIES)
    plain = Side("mechanome", "plain_generate", {**steered, "vector": None}, check=steered, copies=_COPIES)
    yield Row(work, "hugging face", turning, plain, tolerance=0.0, rounds=31, goal=1 / 1.05)
    for engine, words in (("hugging face", "steered by a hook"), ("transformer-lens", "hooks"), ("nnsight", "iter")):
        yield Row(work, f"{engine}: {words}", ours, Side(engine, "generate", steered), tolerance=0.0, rounds=15)


def growths(tokenizer: Any) -> Iterator[Growth]:
    """The residual sweep against tokens (first 6 layers of the model) and against layers (IOI pair)."""
    warm = {"layers": [0], "positions": [0]}

    def row(work: str, request: dict[str, Any], layers: int | None) -> Row:
        model = {} if layers is None else {"layers": layers}
        theirs = Side("transformer-lens", "residual_sweep", {**request, "way": "cells"}, warm, model)
        ours = Side("mechanome", "residual_sweep", request, model=model)
        return Row(work, "transformer-lens: get_act_patch_resid_pre", ours, theirs)

    work = "residual sweep, first 6 layers, pairs that differ at the middle token"
    yield Growth("tokens", {n: row(work, halves(tokenizer, n), 6) for n in (14, 28, 56, 112)})
    ioi = PAIRS["ioi"].request(tokenizer)
    work = f"residual sweep, first layers of the model, IOI pair of {len(ioi['clean'])} tokens"
    yield Growth("layers", {n: row(work, ioi, n if n < LAYERS else None) for n in (4, 8, 16, LAYERS)})


GROUPS = {"forward": forward_rows, "residual": residual_rows, "heads": head_rows, "generation": generation_rows}


def prepare() -> tuple[Any, dict[str, Any]]:
    """The tokenizer, and where the model lies."""
    folder = ensure(MODEL)
    return AutoTokenizer.from_pretrained(folder), {"folder": str(folder), "layers": None}


BENCH = Bench("engine", __doc__, ENGINES, prepare, GROUPS, growths, code=("benchmarks/engines",))

if __name__ == "__main__":
    sys.exit(BENCH.main())
