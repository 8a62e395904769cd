"""The verb `explain`: an explanation with its run folder, as the command line and `mechanome replay` make it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanome.core import RunFolder, verb, write_json
from mechanome.explain.explanation import Explanation
from mechanome.explain.pipeline import DEFAULT_MODEL, explain

RESULT = "explanation.json"


@dataclass(frozen=True)
class Outcome:
    """What the verb leaves behind.

    Args:
        explanation: the result.
        folder: its run folder, with `config.yaml`, `explanation.json`, `report.html` and `run.json`.
    """

    explanation: Explanation
    folder: Path

    @property
    def report(self) -> Path:
        """The page."""
        return self.folder / "report.html"


def run(
    prompt: str,
    *,
    model: str = DEFAULT_MODEL,
    answer: str | None = None,
    foil: str | None = None,
    counterfactual: str | None = None,
    seed: int = 0,
    budget: str | None = None,
    out: str | Path = "runs",
    quiet: bool = False,
) -> Outcome:
    """Explain, and write the run folder; if anything goes wrong, or on Ctrl-C, no folder is left.

    Args:
        prompt, model, answer, foil, counterfactual, seed, budget, quiet: as in `mechanome.explain`.
        out: where run folders are.

    Raises:
        MechanomeError: as `mechanome.explain`; and where the folder cannot be made.
    """
    arguments = {
        "prompt": prompt,
        "model": model,
        "answer": answer,
        "foil": foil,
        "counterfactual": counterfactual,
        "budget": budget,
        "out": str(out),
    }
    base = Path(out)
    first = not base.exists()
    folder = RunFolder.create("explain", arguments, base=base, seed=seed)
    try:
        with folder:
            found = explain(
                prompt,
                model,
                answer=answer,
                foil=foil,
                counterfactual=counterfactual,
                seed=seed,
                budget=budget,
                quiet=quiet,
            )
            write_json(folder.path / RESULT, found.record())
            folder.write_report(found.html(replay=f"mechanome replay {folder.path}"))
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        if first and not any(base.iterdir()):
            base.rmdir()
        raise
    return Outcome(found, folder.path)


@verb("explain")
def _again(arguments: dict[str, Any]) -> Outcome:
    return run(**arguments)


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> float | None:
    """How far two records of explanations are apart, wall times and versions aside.

    Returns:
        the largest difference of two numbers, relative to the larger (absolute below 1); None where the records differ
        in anything but numbers.
    """
    ignored = ("seconds", "versions")
    return _apart(*({k: v for k, v in r.items() if k not in ignored} for r in (first, second)))


def _apart(a: Any, b: Any) -> float | None:
    if isinstance(a, float | int) and isinstance(b, float | int) and not isinstance(a, bool):
        return abs(a - b) / max(1.0, abs(a), abs(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return _largest(_apart(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return _largest(map(_apart, a, b))
    return 0.0 if a == b else None


def _largest(parts: Any) -> float | None:
    found = list(parts)
    return None if None in found else max(found, default=0.0)
