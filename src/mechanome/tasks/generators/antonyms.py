"""Antonyms, in both directions. The counterfactual asks for the opposite of the answer, which is the word itself.

So the foil is to repeat the word, which small language models do without demonstrations.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator, shuffled
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

TEMPLATES = ("The opposite of {word} is", "The exact opposite of {word} is", "Opposites: {word} and")
SHOWN = ("{word} ->", "The opposite of {word} is", "Opposites: {word} and")


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Each pair once in each direction and template."""
    pairs = words("antonyms").rows
    directed = [pair for one, other in pairs for pair in ((one, other), (other, one))]
    for template, (word, opposite) in shuffled(
        random, [(template, pair) for template in (SHOWN if shown else TEMPLATES) for pair in directed]
    ):
        yield Draft(
            prompt=write(template, word=word),
            counterfactual=write(template, word=opposite),
            answer=f" {opposite}",
            foil=f" {word}",
            template=template,
            topics=(" and ".join(sorted((word, opposite))),),
            end="" if template.endswith(">") else ".",
        )


GENERATOR = Generator("antonyms", "The opposite of a word.", draw, ("antonyms",), shots=4)
