"""What a text names: a generator of `TASKS`, or a file of examples. Nothing heavy is imported to tell."""

from __future__ import annotations

from pathlib import Path

from mechanome.core.errors import UnknownName, nearest
from mechanome.core.files import existing
from mechanome.tasks.generators import TASKS

ENDING = ".jsonl"
"""Of a file of examples."""


def task_file(task: str) -> Path | None:
    """The file that a text names, None where it names a generator.

    Raises:
        UnknownName: it names neither. BadInput: there is no such file.
    """
    if task in TASKS:
        return None
    path = Path(task)
    if path.suffix != ENDING:
        why = f"there is no such task, and it is no {ENDING} file of examples"
        raise UnknownName(f"task '{task}'", why, nearest(task, TASKS))
    return existing(path)
