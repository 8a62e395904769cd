"""Explain the 40 committed prompts, and check that each gives a report or the refusal that is expected of it.

`make explain-prompts` runs it; with `--resume RUNFOLDER` it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mechanome.explain.command import resume, run_many
from mechanome.explain.outcome import Outcome
from mechanome.explain.result import Result

PROMPTS = Path(__file__).parent.parent / "tests" / "explain" / "prompts.jsonl"
REPORTS = ("explained", "not explained")


def expectations() -> list[dict[str, object]]:
    """The lines of the file: `expect` ("report" or "refusal"), `because` (a piece of the reason) and the prompt."""
    return [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


def asked(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """The lines as `mechanome explain --prompts` takes them."""
    return [{key: value for key, value in line.items() if key not in ("expect", "because")} for line in lines]


def fault(line: dict[str, object], result: Result, folder: Path) -> str:
    """What is not as expected; empty if everything is."""
    got = "report" if result.verdict in REPORTS else "refusal" if result.verdict == "refused" else result.verdict
    if got != line["expect"]:
        return f"{got} ({result.reason})"
    if got == "report" and not (folder / result.page).is_file():
        return "no page"
    if got == "refusal" and not (str(line["because"]) in result.reason and "Fix: " in result.reason):
        return f"refused for another reason: {result.reason}"
    return ""


def main() -> int:
    """Run, say what is not as expected; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--counterfactuals", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()
    lines = expectations()
    prompts = asked(lines)
    outcome: Outcome = (
        resume(options.resume, prompts)
        if options.resume
        else run_many(prompts, model=options.model, counterfactuals=options.counterfactuals, out=options.out)
    )
    faults = 0
    for line, result in zip(lines, outcome.found, strict=True):
        wrong = fault(line, result, outcome.folder)
        faults += bool(wrong)
        print(f"{'WRONG' if wrong else 'ok':6}{result.item.id:20}{result.verdict:14}{result.seconds:7.1f} s  {wrong}")
    reports = sum(result.verdict in REPORTS for result in outcome.found)
    print(f"{reports} reports, {len(lines) - reports} without, {faults} not as expected; {outcome.report}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
