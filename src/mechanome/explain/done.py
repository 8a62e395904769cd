"""The prompts that a run folder holds already: each row says what it answers, and answers nothing else.

A row of `metrics.jsonl` carries a stamp: a hash of the prompt, the model and the settings it was made with. So a result
is never taken for another prompt, another model or other settings, whatever was edited in `config.yaml` since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from mechanome.core import BadInput, CorruptFile, RunFolder
from mechanome.engine import Model
from mechanome.explain.items import Item
from mechanome.explain.many import Settings
from mechanome.explain.result import VERDICTS, Result

ASKED, WEIGHTS = "asked", "weights"
"""What a row says besides its result: a hash of what was asked, and that of the weights, empty where unknown."""


def stamp(item: Item, model: str, settings: Settings) -> str:
    """A hash of what decides a result; the budget does not."""
    facts = [item.record(), model, settings.counterfactuals, settings.seed]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def weights(model: Model) -> str:
    """The hash of its weights, empty for a model that has none."""
    return "" if model.source is None else model.source.sha256


def done(
    run: RunFolder, asked: Sequence[Item], model: str, settings: Settings, first: int
) -> dict[str, tuple[Result, str]]:
    """The results that are in the folder with their pages, and the weights that made them, by the id of the prompt.

    Args:
        run: the folder.
        asked: the prompts, in order.
        model, settings: what they are explained with.
        first: step of the first prompt.

    Raises:
        BadInput: a row is about another prompt, model or setting.
        CorruptFile: a row is not as it was written.
    """
    file = str(run.path / "metrics.jsonl")
    rows = {row["step"]: row for row in run.metrics()}
    found: dict[str, tuple[Result, str]] = {}
    for step, item in enumerate(asked, first):
        if step not in rows:
            continue
        result, made_for, with_weights = _read(file, item, rows[step])
        if made_for != stamp(item, model, settings):
            raise BadInput(
                str(run.path / "config.yaml"),
                f"what it says of prompt {item.id!r} was changed after that prompt was done",
                "put it back, or start a new run",
            )
        if not result.page or (run.path / result.page).is_file():
            found[item.id] = result, with_weights
    return found


def check_weights(run: RunFolder, before: Iterable[str], model: Model) -> None:
    """Whether the model is the one that made what is done.

    Raises:
        BadInput: its weights are others.
    """
    if set(before) - {weights(model)}:
        raise BadInput(str(run.path), f"the weights of {model.name} changed since it was started", "start a new run")


def _read(file: str, item: Item, row: dict[str, Any]) -> tuple[Result, str, str]:
    try:
        result, made_for, with_weights = Result.from_record(item, row), str(row[ASKED]), str(row[WEIGHTS])
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        why = f"step {row['step']} is no result ({type(error).__name__}: {error})"
        raise CorruptFile(file, why, "restore it, or start a new run") from error
    if result.verdict not in VERDICTS:
        raise CorruptFile(file, f"step {row['step']}: no verdict is {result.verdict!r}", "restore it")
    return result, made_for, with_weights
