"""Tasks: examples of one behaviour with answers, controls and spans; generators of them; files of one's own.

task = mechanome.tasks.make("ioi", n=200, seed=0)
kept = task.filter(model).task
clean, corrupted, metric = kept.batch(model)
"""

from mechanome.tasks.batches import METRICS, Pair
from mechanome.tasks.example import Example
from mechanome.tasks.generators import TASKS
from mechanome.tasks.making import make
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
    "words",
]
