"""What a benchmark leaves: one JSON file, written whole or not at all, and a table on the terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.environments import ROOT
from benchmarks.harness.pairing import Timing
from mechanome.core.files import atomic_write
from mechanome.core.versions import machine, versions

_FOLDER = ROOT / "results" / "benchmarks"


def write(
    bench: str,
    timings: Sequence[Timing],
    growth: Sequence[Mapping[str, Any]],
    packages: Mapping[str, str],
    conditions: Mapping[str, Any],
    partial: Mapping[str, Any],
) -> Path:
    """Write `results/benchmarks/<bench>.json`.

    Args:
        growth: entries made by `benchmarks.harness.growth.record`.
        packages: versions of the peers.
        conditions: what else describes the machine in this run: threads, clock, load.
        partial: what the run was limited to; empty for a whole run. Its rows take the place of those that a whole run
            under the same conditions left; without such a run the file holds them alone, and says so.
    """
    path = _FOLDER / f"{bench}.json"
    content: dict[str, Any] = {
        "machine": {**machine(), **conditions},
        "versions": {**versions(), **packages},
        "rows": [t.record() for t in timings],
        "growth": list(growth),
    }
    whole = json.loads(path.read_text()) if partial and path.exists() else None
    if whole is not None and _alike(whole, content):
        for part in ("rows", "growth"):
            content[part] = _renewed(whole[part], content[part])
        content["versions"] = whole["versions"] | content["versions"]
    else:
        content["machine"] |= partial
    with atomic_write(path, "w") as handle:
        handle.write(json.dumps(content, indent=1) + "\n")
    return path


def _alike(whole: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Whether a recorded whole run was made under the conditions of this one, but for the load."""
    here, there = ({k: v for k, v in c["machine"].items() if k != "load_before"} for c in (content, whole))
    same = all(whole["versions"].get(name, version) == version for name, version in content["versions"].items())
    return here == there and same


def _renewed(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Entries in their order, those measured again in place, those that are new at the end."""
    again = {_name(entry): entry for entry in new}
    kept = [again.pop(_name(entry), entry) for entry in old]
    return [*kept, *again.values()]


def _name(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["work"], entry["peer"], entry.get("axis", "")


def table(timings: Sequence[Timing], growth: Sequence[Mapping[str, Any]]) -> None:
    """Print rows and growth."""
    console = Console(width=None if os.isatty(1) else 180)
    rows = Table(title="ratio = peer seconds / our seconds (quartiles over rounds)", title_justify="left")
    for name in ("work", "peer"):
        rows.add_column(name, overflow="fold")
    for name in ("ours s", "peer s", "ratio", "goal", "ours MB", "peer MB", "agree"):
        rows.add_column(name, justify="right", no_wrap=True)
    for t in timings:
        r, (low, high) = t.record(), t.spread
        ratio = f"{t.ratio:.3g} ({low:.3g}-{high:.3g})"
        seconds = [f"{r[k]:.4g}" for k in ("ours_seconds", "peer_seconds")]
        memory = [f"{r[k]:.0f}" for k in ("ours_peak_mb", "peer_peak_mb")]
        goals = [] if t.row.goal is None else [_judged(f"{t.row.goal:.3g}", t.ratio >= t.row.goal)]
        if t.row.most_mb is not None:
            goals.append(_judged(f"{t.row.most_mb:.0f} MB", t.ours_peak_mb <= t.row.most_mb))
        rows.add_row(r["work"], r["peer"], *seconds, ratio, ", ".join(goals), *memory, f"{r['agree']:.1e}")
    console.print(rows)
    if not growth:
        return
    grown = Table(title="growth: seconds ~ size ** exponent", title_justify="left")
    for name in ("work", "peer", "axis", "sizes", "ours s", "peer s", "ours exp.", "peer exp.", "agree"):
        grown.add_column(name, overflow="fold")
    for g in growth:
        ours, theirs = (" ".join(f"{x:.3g}" for x in g[k]) for k in ("ours_seconds", "peer_seconds"))
        sizes, exponents = " ".join(map(str, g["sizes"])), [f"{g[k]:.2f}" for k in ("ours_exponent", "peer_exponent")]
        grown.add_row(g["work"], g["peer"], g["axis"], sizes, ours, theirs, *exponents, f"{g['agree']:.1e}")
    console.print(grown)


def _judged(goal: str, met: bool) -> str:
    return f"{goal} {'met' if met else 'MISSED'}"
