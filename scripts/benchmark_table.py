"""Write the README's table of speed from `results/benchmarks/engine.json`, so that it never says another thing."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks" / "engine.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- bench-engine -->", "<!-- /bench-engine -->"


def table() -> str:
    """The table in Markdown; ratio is the peer's seconds over ours."""
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    machine = record["machine"]
    clock = "processor seconds" if machine.get("clock") == "cpu" else "wall seconds"
    part = " A partial run: not all rows of the benchmark." if machine.get("partial") else ""
    lines = [
        f"Medians of paired runs on {machine.get('threads')} thread(s), {clock}; ratio is peer over ours.{part}",
        "",
        "| work | peer | ours | peer | ratio | largest difference |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in record["rows"]:
        ours, peer = (f"{row[k]:.3g} s" for k in ("ours_seconds", "peer_seconds"))
        lines.append(f"| {row['work']} | {row['peer']} | {ours} | {peer} | {row['ratio']:.3g} | {row['agree']:.0e} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The README with the table of today's results, empty while none are recorded."""
    before, rest = text.split(BEGIN)
    shown = f"\n{table()}\n\n" if RESULTS.exists() else ""
    return f"{before}{BEGIN}\n{shown}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(page(README.read_text(encoding="utf-8")), encoding="utf-8")
