"""Induction: a list of unrelated words begins again; what followed the last word before follows it now.

The counterfactual has another word behind the first occurrence, and that is the foil.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator
from mechanome.tasks.words import words
from mechanome.tasks.writing import Text, write

PER_PASS = 500
LENGTHS = (6, 8, 10)
SEPARATORS = (" ", ", ")


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Drafts over random words, three list lengths and two separators."""
    nouns = words("nouns").first
    for _ in range(PER_PASS):
        length, separator = random.choice(LENGTHS), random.choice(SEPARATORS)
        *listed, foil = random.sample(nouns, length + 1)
        at = random.randrange(1, length - 2)
        changed = [*listed]
        changed[at + 1] = foil
        again = listed[: at + 1]
        yield Draft(
            prompt=_twice(listed, again, at, separator),
            counterfactual=_twice(changed, again, at, separator),
            answer=f" {listed[at + 1]}",
            foil=f" {foil}",
            template=f"{length} words, {'commas' if separator == ', ' else 'spaces'}",
            topics=(listed[at],),
            label=listed[at + 1],
            end="",
        )


def _twice(listed: list[str], again: list[str], at: int, separator: str) -> Text:
    """The list and its new beginning; spans: the last word, its earlier occurrence, and what came next."""
    names = {at: "earlier", at + 1: "next", len(listed) + at: "current"}
    sequence = listed + again
    fields = [names.get(i, f"_{i}") for i in range(len(sequence))]
    return write(separator.join(f"{{{name}}}" for name in fields) + separator.rstrip(), **dict(zip(fields, sequence)))


GENERATOR = Generator(
    "induction", "The word that followed before, in a list that begins again.", draw, ("nouns",), joiner="\n\n"
)
