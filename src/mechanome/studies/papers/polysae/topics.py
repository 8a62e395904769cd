"""Sentences on six subjects, in common frames: what says which subject it is are its nouns, held out in groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random

FRAMES = (
    "Yesterday {who} said that {what} was better than anybody had thought.",
    "I asked {who} about {what}, but there was no time to answer.",
    "Nobody understood why {who} cared so much about {what} this year.",
    "For a long time {who} had waited for {what}, and now it was here.",
    "After lunch we talked with {who}, mostly about {what}.",
    "The letter tells how {who} first heard of {what}.",
    "In the end {who} could not live without {what}.",
    "There is a story in which {who} gives away {what} to a friend.",
)
"""Every subject uses all of them, so they say nothing about it."""

TOPICS = {
    "sports": (
        ("the goalkeeper", "the sprinter", "our tennis coach", "the referee", "the cyclist", "the boxer",
         "the team captain", "the swimmer"),
        ("the final match", "the penalty kick", "the relay race", "the training camp", "the gold medal"),
    ),
    "cooking": (
        ("the chef", "the baker", "our waiter", "the pastry cook", "the butcher", "the brewer", "the cheese maker",
         "the kitchen maid"),
        ("the mushroom soup", "the garlic sauce", "the apple pie", "the roast chicken", "the fresh bread"),
    ),
    "medicine": (
        ("the surgeon", "the nurse", "our dentist", "the pharmacist", "the midwife", "the psychiatrist",
         "the patient", "the physician"),
        ("the new vaccine", "the broken bone", "the blood test", "the painful operation", "the fever"),
    ),
    "money": (
        ("the banker", "the accountant", "our broker", "the investor", "the auditor", "the tax collector",
         "the insurer", "the economist"),
        ("the interest rate", "the stock market", "the annual budget", "the unpaid loan", "the inflation"),
    ),
    "music": (
        ("the violinist", "the composer", "our piano teacher", "the drummer", "the opera singer", "the conductor",
         "the guitarist", "the organist"),
        ("the slow movement", "the string quartet", "the new album", "the missing chord", "the rehearsal"),
    ),
    "sailing": (
        ("the skipper", "the sailor", "our helmsman", "the fisherman", "the lighthouse keeper", "the navigator",
         "the admiral", "the cabin boy"),
        ("the torn sail", "the rising tide", "the rusty anchor", "the calm harbor", "the northern storm"),
    ),
}  # fmt: skip
"""Who and what, by subject."""


@dataclass(frozen=True)
class Sentences:
    """Sentences with their classes.

    Args:
        texts: the sentences. classes: subject of each. groups: who is in each, a number; the same person in none of
            two subjects.
    """

    texts: tuple[str, ...]
    classes: tuple[int, ...]
    groups: tuple[int, ...]


def sentences(n: int, seed: int) -> Sentences:
    """Draw sentences.

    Args:
        n: of each subject, at most 320. seed: of the draw.
    """
    random = Random(f"polysae/topics/{seed}")
    rows: list[tuple[str, int, int]] = []
    for topic, (people, things) in enumerate(TOPICS.values()):
        every = list(product(FRAMES, range(len(people)), things))
        for frame, person, what in random.sample(every, min(n, len(every))):
            text = frame.format(who=people[person], what=what)
            rows.append((text[0].upper() + text[1:], topic, topic * len(people) + person))
    random.shuffle(rows)
    return Sentences(tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows))
