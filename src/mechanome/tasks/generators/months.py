"""Months: the one after or before. The counterfactual names another month."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator, shuffled
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

TEMPLATES = (
    ("The month after {month} is", 1),
    ("The month that follows {month} is", 1),
    ("If this month is {month}, next month is", 1),
    ("If last month was {month}, this month is", 1),
    ("The month before {month} is", -1),
    ("The month that precedes {month} is", -1),
    ("If this month is {month}, last month was", -1),
    ("If next month is {month}, this month is", -1),
)


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Each month once in each template, with a new partner in each pass."""
    months = words("months").first
    for (template, step), i in shuffled(random, [(t, i) for t in TEMPLATES for i in range(12)]):
        other = random.choice([j for j in range(12) if j != i])
        yield Draft(
            prompt=write(template, month=months[i]),
            counterfactual=write(template, month=months[other]),
            answer=f" {months[(i + step) % 12]}",
            foil=f" {months[(other + step) % 12]}",
            template=template,
            topics=(months[i], months[other]),
            groups={"direction": "after" if step > 0 else "before"},
        )


GENERATOR = Generator(
    "months",
    "The month after or before another.",
    draw,
    ("months",),
    shots=3,
    by_topic=False,
    why_few=f"there are twelve months and {len(TEMPLATES)} sentences about them",
)
