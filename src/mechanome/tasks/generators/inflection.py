"""Plurals and past tenses, of regular and irregular words.

In a sentence both the word and what asks for its form are there ("One cat, two"), and the counterfactual turns both
around ("Two cats, one"), so that the foil is the word as it stands. After demonstrations the bare form ("cat ->") is
understood; there the counterfactual is another word and the foil its form.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from mechanome.tasks.generator import Draft, Generator, shuffled
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

Sentences = tuple[tuple[str, str], ...]

PLURAL: Sentences = (
    ("One {word}, two", "Two {word}, one"),
    ("First I had one {word}, and then I had three", "First I had three {word}, and then I had one"),
    ("She drew one {word} and he drew four", "She drew four {word} and he drew one"),
)
PAST: Sentences = (
    ("Today they {word}. Yesterday they", "Yesterday they {word}. Today they"),
    ("Now we {word}. Long ago we", "Long ago we {word}. Now we"),
    ("Now I {word}, but back then I", "Back then I {word}, but now I"),
)
SHOWN = ("{word} ->", "Word: {word} Form:", "{word}:")


def draw(name: str, sentences: Sentences, random: Random, shown: bool) -> Iterator[Draft]:
    """Each word once in each sentence or bare form."""
    yield from (_bare(name, random) if shown else _sentences(name, sentences, random))


def _sentences(name: str, sentences: Sentences, random: Random) -> Iterator[Draft]:
    for (template, reverse), (base, form) in shuffled(random, [(s, r) for s in sentences for r in words(name).rows]):
        yield Draft(
            prompt=write(template, word=base),
            counterfactual=write(reverse, word=form),
            answer=f" {form}",
            foil=f" {base}",
            template=template,
            topics=(base,),
            groups={"form": _kind(base, form)},
        )


def _bare(name: str, random: Random) -> Iterator[Draft]:
    rows = words(name).rows
    for template, (base, form) in shuffled(random, [(t, r) for t in SHOWN for r in rows]):
        other, foil = random.choice([row for row in rows if row[1] != form])
        yield Draft(
            prompt=write(template, word=base),
            counterfactual=write(template, word=other),
            answer=f" {form}",
            foil=f" {foil}",
            template=template,
            topics=(base, other),
            end="",
            groups={"form": _kind(base, form)},
        )


def _kind(base: str, form: str) -> str:
    """Regular if an ending was added, with at most the last letter changed or doubled."""
    regular = form.endswith(("s", "ed")) and form.startswith(base[:-1])
    return "regular" if regular else "irregular"


PLURALS = Generator("plurals", "The plural of a noun.", partial(draw, "nouns", PLURAL), ("nouns",))
PAST_TENSE = Generator("past_tense", "The past tense of a verb.", partial(draw, "verbs", PAST), ("verbs",))
