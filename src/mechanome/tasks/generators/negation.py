"""Negation: something of a kind that is *not* of a class. The foil is a member of the class.

The counterfactual says "also" where the prompt says "not": as many tokens, and the foil becomes right. Small
language models often name a member of the class all the same, so expect `filter` to drop many examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator, shuffled
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

TEMPLATES = (
    "One example of {_kind} that is {negator} {class} is",
    "Question: Name {_kind} that is {negator} {class}. Answer:",
    "If you need {_kind} that is {negator} {class}, choose",
    "The best known example of {_kind} that is {negator} {class} is",
)


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Each class once in each template."""
    for template, (kind, class_, member, outsider) in shuffled(
        random, [(template, row) for template in TEMPLATES for row in words("classes").rows]
    ):
        yield Draft(
            prompt=write(template, _kind=kind, negator="not", **{"class": class_}),
            counterfactual=write(template, _kind=kind, negator="also", **{"class": class_}),
            answer=f" {outsider}",
            foil=f" {member}",
            template=template,
            topics=(f"{kind}: {class_}",),
            groups={"kind": kind},
        )


GENERATOR = Generator("negation", "A thing that is not of a class.", draw, ("classes",))
