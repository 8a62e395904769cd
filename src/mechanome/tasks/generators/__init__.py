"""The generators of tasks, one kind a file. A new one is a file here and a line in this table."""

from mechanome.tasks.generator import Generator
from mechanome.tasks.generators import (
    agreement,
    antonyms,
    arithmetic,
    capitals,
    greater_than,
    induction,
    inflection,
    ioi,
    months,
    negation,
    recall,
)

_ROWS = (
    antonyms.GENERATOR,
    arithmetic.GENERATOR,
    capitals.GENERATOR,
    greater_than.GENERATOR,
    induction.GENERATOR,
    ioi.GENERATOR,
    recall.GENERATOR,
    months.GENERATOR,
    negation.GENERATOR,
    inflection.PAST_TENSE,
    inflection.PLURALS,
    agreement.GENERATOR,
)
TASKS: dict[str, Generator] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name)}
"""Every generator by name."""
