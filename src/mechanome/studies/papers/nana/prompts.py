"""Prompts for paper 05: three tasks, kept where the model prefers the answer, as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanome.core import TooFewRows
from mechanome.engine import Batch, LogitDiff, Model
from mechanome.tasks import make

TASKS: Mapping[str, Mapping[str, Any]] = {"capitals": {"shots": 0}, "antonyms": {"shots": 0}, "subject_verb": {}}
"""Generators, and how they are asked."""


def kept(model: Model, task: str, seed: int, n: int, candidates: int) -> dict[str, Any]:
    """The first ``n`` examples that the model does right.

    Args:
        model: an opened language model. task: a row of `TASKS`. seed: of the draw. candidates: how many are drawn.

    Returns:
        ids, answer, foil: of each; right, drawn: counts.

    Raises:
        TooFewRows: it does fewer right.
    """
    drawn = make(task, candidates, seed, quiet=True, **TASKS[task])
    found = drawn.filter(model, quiet=True)
    if found.kept < n:
        why = f"{model.name} does {found.kept} of {candidates} right"
        raise TooFewRows(f"{n} prompts of '{task}'", why, "draw more candidates, or use another model")
    pair = found.task[:n].batch(model, equal_length=False)
    ids, frame, metric = pair.clean.input_ids, pair.clean.frame, pair.metric
    assert isinstance(metric, LogitDiff)
    rows = [ids[r, s : s + length].tolist() for r, (s, length) in enumerate(zip(frame.starts, frame.lengths))]
    return {"ids": rows, "answer": metric.answer, "foil": metric.foil, "right": found.kept, "drawn": candidates}


def part(model: Model, found: Mapping[str, Any], start: int, stop: int) -> tuple[Batch, LogitDiff]:
    """Some of the prompts with their metric."""
    batch = model.encode([list(row) for row in found["ids"][start:stop]], bos="none")
    return batch, LogitDiff(list(found["answer"][start:stop]), list(found["foil"][start:stop]))
