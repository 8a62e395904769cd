"""Indirect object identification: two people, one of them gives, who receives?

The counterfactual lets the other one give, so that answer and foil change places and every token but one is equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

PER_PASS = 500
OPENINGS = (
    "When {first} and {second} went to the {place}, ",
    "Then, {first} and {second} went to the {place}. ",
    "After {first} and {second} met at the {place}, ",
    "{first} and {second} were working at the {place}. ",
    "Last Sunday, {first} and {second} were at the {place}, and ",
)
ENDINGS = ("{s2} gave a {gift} to", "{s2} decided to give a {gift} to", "{s2} wanted to give a {gift} to")


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Drafts in both orders: ABBA (the receiver is named first) and BABA."""
    for _ in range(PER_PASS):
        receiver, giver = random.sample(words("names").first, 2)
        order = random.choice(("ABBA", "BABA"))
        opening, ending = random.choice(OPENINGS), random.choice(ENDINGS)
        roles = ("io", "s1") if order == "ABBA" else ("s1", "io")
        template = opening.replace("{first}", f"{{{roles[0]}}}").replace("{second}", f"{{{roles[1]}}}") + ending
        scene = {"place": random.choice(words("places").first), "gift": random.choice(words("gifts").first)}
        yield Draft(
            prompt=write(template, io=receiver, s1=giver, s2=giver, **scene),
            counterfactual=write(template, io=receiver, s1=giver, s2=receiver, **scene),
            answer=f" {receiver}",
            foil=f" {giver}",
            template=template,
            topics=(" and ".join(sorted((receiver, giver))),),
            groups={"order": order},
        )


GENERATOR = Generator(
    "ioi", "Who receives what one of two people gives (ABBA and BABA orders).", draw, ("names", "places", "gifts")
)
