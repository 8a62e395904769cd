"""Greater-than: a span of years must end after it began.

Answer and foil differ from the first year in their tens digit, so that the first token that differs decides, whether a
tokenizer reads years digit by digit or in pairs. The counterfactual begins so early that the foil is right as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

PER_PASS = 500
TEMPLATES = (
    "The {event} lasted from the year {_c1}{start} to the year {_c2}",
    "The {event} began in the year {_c1}{start} and ended in the year {_c2}",
    "The {event} started in {_c1}{start} and was over in {_c2}",
)


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Drafts over events, centuries and years."""
    for _ in range(PER_PASS):
        template, event = random.choice(TEMPLATES), random.choice(words("events").first)
        century, start = str(random.randint(11, 18)), random.randint(20, 89)
        answer, foil = random.randint(start // 10 * 10 + 10, 99), random.randint(10, start // 10 * 10 - 1)
        early = random.randint(2, foil - 1)
        scene = {"event": event, "_c1": century, "_c2": century}
        yield Draft(
            prompt=write(template, start=f"{start:02d}", **scene),
            counterfactual=write(template, start=f"{early:02d}", **scene),
            answer=f"{answer:02d}",
            foil=f"{foil:02d}",
            template=template,
            topics=(event,),
            label=f"{start:02d}",
            groups={"century": century},
        )


GENERATOR = Generator("greater_than", "The last two digits of a year after the one named.", draw, ("events",))
