"""Tasks: examples of one behaviour with answers, controls and spans; generators of them; files of one's own.

task = mechanome.tasks.make("ioi", n=200, seed=0)
kept = task.filter(model).task
clean, corrupted, metric = kept.batch(model)
"""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.tasks.batches import METRICS, Pair
    from mechanome.tasks.example import Example
    from mechanome.tasks.generators import TASKS
    from mechanome.tasks.making import make
    from mechanome.tasks.naming import task_file
    from mechanome.tasks.selection import Selection
    from mechanome.tasks.task import Provenance, Task
    from mechanome.tasks.words import WordList, words

__all__ = [
    "METRICS",
    "TASKS",
    "Example",
    "Pair",
    "Provenance",
    "Selection",
    "Task",
    "WordList",
    "make",
    "task_file",
    "words",
]

offer(__name__)
