"""The prompts that a run folder holds already: each row says what it answers, and answers nothing else.

A row of `metrics.jsonl` carries a stamp: a hash of the prompt, the model and the settings it was made with. So a result
is never taken for another prompt, another model or other settings, whatever was edited in `config.yaml` since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mechanome.core import BadInput, CorruptFile, RunFolder
from mechanome.engine import Model
from mechanome.explain.items import Item
from mechanome.explain.many import Settings, notes_of
from mechanome.explain.result import VERDICTS, Result

ASKED, WEIGHTS, NOTES = "asked", "weights", "notes"
"""What a row says besides its result: a hash of what was asked, that of the weights (empty where unknown), and what a
reader must know about them."""


@dataclass(frozen=True)
class Done:
    """A result that is in the folder.

    Args:
        result: the result.
        asked: a hash of the prompt, the model and the settings it was made with.
        weights: a hash of the weights that made it, empty where unknown.
        notes: what a reader must know about them.
    """

    result: Result
    asked: str
    weights: str
    notes: tuple[str, ...]


def stamp(item: Item, model: str, settings: Settings) -> str:
    """A hash of what decides a result; the budget does not."""
    facts = [item.record(), model, settings.counterfactuals, settings.seed, settings.circuit]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def weights(model: Model) -> str:
    """The hash of its weights, empty for a model that has none."""
    return "" if model.source is None else model.source.sha256


def row(result: Result, model: Model, name: str, settings: Settings) -> dict[str, Any]:
    """What `metrics.jsonl` keeps of a result.

    Args:
        result: the result.
        model: what made it. name: what it was called for.
        settings: of the run.
    """
    about = {ASKED: stamp(result.item, name, settings), WEIGHTS: weights(model), NOTES: list(notes_of(model))}
    return {**result.record(), **about}


def done(run: RunFolder, asked: Sequence[Item], model: str, settings: Settings, first: int) -> dict[str, Done]:
    """The results that are in the folder with their pages, by the id of the prompt.

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
    found: dict[str, Done] = {}
    for step, item in enumerate(asked, first):
        if step not in rows:
            continue
        kept = _read(file, item, rows[step])
        if kept.asked != stamp(item, model, settings):
            raise BadInput(
                str(run.path / "config.yaml"),
                f"what it says of prompt {item.id!r} was changed after that prompt was done",
                "put it back, or start a new run",
            )
        if not kept.result.page or (run.path / kept.result.page).is_file():
            found[item.id] = kept
    return found


def check_weights(run: RunFolder, before: Iterable[Done], model: Model) -> None:
    """Whether the model is the one that made what is done.

    Raises:
        BadInput: its weights are others.
    """
    if {kept.weights for kept in before} - {weights(model)}:
        raise BadInput(str(run.path), f"the weights of {model.name} changed since it was started", "start a new run")


def _read(file: str, item: Item, row: dict[str, Any]) -> Done:
    try:
        kept = Done(Result.from_record(item, row), str(row[ASKED]), str(row[WEIGHTS]), tuple(row[NOTES]))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        why = f"step {row['step']} is no result ({type(error).__name__}: {error})"
        raise CorruptFile(file, why, "restore it, or start a new run") from error
    if kept.result.verdict not in VERDICTS:
        raise CorruptFile(file, f"step {row['step']}: no verdict is {kept.result.verdict!r}", "restore it")
    return kept
