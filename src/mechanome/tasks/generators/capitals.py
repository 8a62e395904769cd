"""Capitals of countries, states and regions. The counterfactual names another place of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator, shuffled
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

TEMPLATES = ("The capital of {place} is", "The capital city of {place} is", "The capital of {place} is called")
SHOWN = ("{place} ->", "Place: {place} Capital:", "The capital of {place} is")


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Each place once in each template, with a new partner in each pass."""
    rows = words("capitals").rows
    for template, (place, capital, kind) in shuffled(
        random, [(template, row) for template in (SHOWN if shown else TEMPLATES) for row in rows]
    ):
        other, foil, _ = random.choice([row for row in rows if row[2] == kind and row[1] != capital])
        yield Draft(
            prompt=write(template, place=place),
            counterfactual=write(template, place=other),
            answer=f" {capital}",
            foil=f" {foil}",
            template=template,
            topics=(place, other),
            end="" if template.endswith((">", ":")) else ".",
            groups={"kind": kind},
        )


GENERATOR = Generator("capitals", "The capital of a country, state or region.", draw, ("capitals",))
