"""Subject-verb agreement across an attractor: "The author near the cars" is singular, whatever "cars" says.

The counterfactual changes the subject's number. The attractor's own number is a group: "opposite" or "same".
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

PER_PASS = 500
NUMBERS = ("singular", "plural")
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
PLACES = tuple(f"The {{subject}} {where} the {{attractor}}" for where in ("near", "behind", "beside", "in front of"))
CLAUSES = tuple(f"The {{subject}} that the {{attractor}} {verb}" for verb in ("admired", "helped", "saw"))


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Drafts over subjects, attractors of either number, and three verbs."""
    people, things = words("people").rows, words("things").rows
    for _ in range(PER_PASS):
        template = random.choice(PLACES + CLAUSES)
        subject = random.choice(people)
        attractor = random.choice(things if template in PLACES else [row for row in people if row != subject])
        number = random.randrange(2)
        opposite = random.random() < 0.75
        beside = attractor[1 - number if opposite else number]
        verb = random.choice(VERBS)
        yield Draft(
            prompt=write(template, subject=subject[number], attractor=beside),
            counterfactual=write(template, subject=subject[1 - number], attractor=beside),
            answer=verb[number],
            foil=verb[1 - number],
            template=template,
            topics=(subject[0],),
            label=NUMBERS[number],
            end=" here.",
            groups={"attractor": "opposite" if opposite else "same", "verb": verb[0].strip()},
        )


GENERATOR = Generator(
    "subject_verb",
    "The verb's number agrees with the subject, not with the noun beside it.",
    draw,
    ("people", "things"),
)
