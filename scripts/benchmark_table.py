"""Write the README's tables of speed from `results/benchmarks/`, so that they never say another thing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks"
README = ROOT / "README.md"
BENCHES = ("engine", "circuits", "dictionaries")


def table(record: Mapping[str, Any]) -> str:
    """A results file in Markdown; ratio is the peer's seconds over ours, memory the peak of the whole process."""
    machine = record["machine"]
    clock = "processor seconds" if machine.get("clock") == "cpu" else "wall seconds"
    part = " A partial run: not all rows of the benchmark." if machine.get("partial") else ""
    lines = [
        f"Medians of paired runs on {machine.get('threads')} thread(s), {clock}; ratio is peer over ours, memory the "
        f"peak of each process.{part}",
        "",
        "| work | peer | ours | peer | ratio | memory, ours | peer | largest difference |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in record["rows"]:
        ours, peer = (f"{row[k]:.3g} s" for k in ("ours_seconds", "peer_seconds"))
        memory = " | ".join(f"{row[k] / 1000:.2f} GB" for k in ("ours_peak_mb", "peer_peak_mb"))
        seen = f"{ours} | {peer} | {row['ratio']:.3g} | {memory} | {row['agree']:.0e}"
        lines.append(f"| {row['work']} | {row['peer']} | {seen} |")
    if record["growth"]:
        lines += [
            "",
            "| how cost grows: seconds ~ size ^ exponent | peer | sizes | ours | peer |",
            "|---|---|---|--:|--:|",
        ]
    for each in record["growth"]:
        sizes = f"{', '.join(map(str, each['sizes']))} {each['axis']}"
        exponents = " | ".join(f"{each[k]:.2f}" for k in ("ours_exponent", "peer_exponent"))
        lines.append(f"| {each['work']} | {each['peer']} | {sizes} | {exponents} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The README with the tables of today's results, empty while none are recorded."""
    for bench in BENCHES:
        begin, end = f"<!-- bench-{bench} -->", f"<!-- /bench-{bench} -->"
        results = RESULTS / f"{bench}.json"
        shown = f"\n{table(json.loads(results.read_text(encoding='utf-8')))}\n\n" if results.exists() else ""
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{shown}{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    README.write_text(page(README.read_text(encoding="utf-8")), encoding="utf-8")
