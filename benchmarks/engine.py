"""`make bench-engine`: the engine beside plain Transformers, TransformerLens and nnsight, on SmolLM2-135M.

Every row is the same work on the same weights with the same numbers (asserted), timed in turn in two warm processes.
Peers are used in the fastest way their documentation shows; where a faster use of the same functions exists (all
positions of a layer as rows of one batch) it has a row of its own. Results go to `results/benchmarks/engine.json`,
but only from a whole run.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.harness import growth as growing
from benchmarks.harness import results
from benchmarks.harness.growth import Growth
from benchmarks.harness.journal import Journal
from benchmarks.harness.pairing import Row, Side, Timing, measure
from benchmarks.harness.worker import Engine, Workers
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
        ours = Side("mechanome", "forward", captured)
        theirs = Side("mechanome", "plain_forward", {**plain, "twin": 0})
        work = f"forward, residual stream, z and mlp_act of all layers captured, {words}"
        yield Row(work, "hugging face", ours, theirs, rounds=many, goal=1 / 1.10)
        yield Row(work, "transformer-lens", ours, Side("transformer-lens", "forward", captured), rounds=many)
        yield Row(work, "nnsight", ours, Side("nnsight", "forward", captured), rounds=many)
        empty = Side("mechanome", "forward", plain)
        yield Row(f"forward, nothing asked, {words}", "hugging face", empty, theirs, rounds=many, goal=1 / 1.01)
        same = Side("mechanome", "plain_forward", {**plain, "twin": 1})
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
    plain = Side("hugging face", "generate", {**steered, "vector": None}, check=steered)
    yield Row(work, "hugging face", ours, plain, tolerance=0.0, rounds=31, goal=1 / 1.05)
    for engine, words in (("hugging face", "steered by a hook"), ("transformer-lens", "hooks"), ("nnsight", "iter")):
        yield Row(work, f"{engine}: {words}", ours, Side(engine, "generate", steered), tolerance=0.0, rounds=15)


def growths(tokenizer: Any) -> Iterator[Growth]:
    """The residual sweep against tokens (first 6 layers of the model) and against layers (IOI pair)."""
    warm = {"layers": [0], "positions": [0]}

    def row(work: str, request: dict[str, Any], layers: int | None) -> Row:
        theirs = Side("transformer-lens", "residual_sweep", {**request, "way": "cells"}, warm, layers)
        ours = Side("mechanome", "residual_sweep", request, layers=layers)
        return Row(work, "transformer-lens: get_act_patch_resid_pre", ours, theirs)

    work = "residual sweep, first 6 layers, pairs that differ at the middle token"
    yield Growth("tokens", {n: row(work, halves(tokenizer, n), 6) for n in (14, 28, 56, 112)})
    ioi = PAIRS["ioi"].request(tokenizer)
    work = f"residual sweep, first layers of the model, IOI pair of {len(ioi['clean'])} tokens"
    yield Growth("layers", {n: row(work, ioi, n if n < LAYERS else None) for n in (4, 8, 16, LAYERS)})


GROUPS = {"forward": forward_rows, "residual": residual_rows, "heads": head_rows, "generation": generation_rows}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 1 if any numbers differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*GROUPS, "growth"], help="these groups; nothing is recorded")
    parser.add_argument("--peer", help="only rows whose peer matches this pattern; nothing is recorded")
    parser.add_argument("--work", help="only rows whose work matches this pattern; nothing is recorded")
    parser.add_argument("--rounds", type=int, help="exactly so many rounds; nothing is recorded")
    parser.add_argument("--fresh", action="store_true", help="forget the rows of a run that was stopped")
    parser.add_argument("--record", action="store_true", help="record a partial run too; the file says what was run")
    parser.add_argument("--seconds", type=float, default=30.0, help="aim of timed seconds a row (default 30)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads of every worker (default 2)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu counts processor seconds")
    options = parser.parse_args(argv)
    folder = ensure(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = {"folder": str(folder), "threads": options.threads, "clock": options.clock, "layers": None}
    wanted = options.only or [*GROUPS, "growth"]
    chosen = [r for name in GROUPS if name in wanted for r in GROUPS[name](tokenizer)]
    chosen = [r for r in chosen if re.search(options.peer or "", r.peer) and re.search(options.work or "", r.work)]
    conditions: dict[str, Any] = {"threads": options.threads, "clock": options.clock}
    chosen_by = {**conditions, "seconds": options.seconds, "rounds": options.rounds}
    journal = Journal.open("engine", chosen_by, round(os.getloadavg()[0], 2), options.fresh)
    if len(journal):
        print(f"going on: {len(journal)} rows were measured before (--fresh forgets them)", file=sys.stderr)
    begun = time.monotonic()
    with Workers(ENGINES, settings) as workers:

        def timed(row: Row) -> Timing:
            if known := journal.find(row):
                return known
            timing = measure(row, workers, options.seconds, options.rounds)
            journal.add(timing, workers.versions())
            print(f"{time.monotonic() - begun:6.0f} s  {timing.ratio:8.3f}  {row.peer} | {row.work}", file=sys.stderr)
            return timing

        timings = [timed(row) for row in chosen]
        grown: list[tuple[Growth, list[Timing]]] = []
        for growth in growths(tokenizer) if "growth" in wanted else ():
            grown.append((growth, [timed(row) for row in growth.rows.values()]))
            workers.close(cut_only=True)
    growth_records = [growing.record(growth, points) for growth, points in grown]
    results.table(timings, growth_records)
    wrong = [t for t in chain(timings, *(points for _, points in grown)) if t.agree > t.row.tolerance]
    for t in wrong:
        print(f"DIFFERENT NUMBERS ({t.agree:.2e}): {t.row.peer} | {t.row.work}", file=sys.stderr)
    if wrong:
        return 1
    conditions["load_before"] = journal.load
    partial = bool(options.only or options.peer or options.work or options.rounds)
    if partial:
        conditions |= {
            "partial": True,
            "rounds": options.rounds,
            "groups": wanted,
            "peers": options.peer or "all",
            "work": options.work or "all",
        }
    if partial and not options.record:
        print("a partial run: nothing was recorded", file=sys.stderr)
    else:
        print(
            f"wrote {results.write('engine', timings, growth_records, journal.packages, conditions)}", file=sys.stderr
        )
        journal.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
