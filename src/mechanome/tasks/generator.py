"""What a generator of examples is: a name, a stream of drafts, and what its words come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import TypeVar

from mechanome.tasks.writing import Text

T = TypeVar("T")

SPLITS = (("train", 60), ("validation", 80), ("test", 100))
"""Splits with the cumulative share of topics, in percent."""


@dataclass(frozen=True)
class Draft:
    """An example before shots are put in front of it.

    Args:
        prompt: the question. counterfactual: a question of which the foil is a right answer.
        answer, foil: with their leading space.
        template: what the prompt was made from; shots are of the same template.
        topics: what it asks about; two splits never share one, nor do a prompt and its shots.
        label: see `Example`; the answer's text where empty.
        end: what closes the sentence when it is shown with its answer.
        groups: further groups beside the template and the topic.
    """

    prompt: Text
    counterfactual: Text
    answer: str
    foil: str
    template: str
    topics: tuple[str, ...]
    label: str = ""
    end: str = "."
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def solved(self) -> str:
        """The prompt with its answer, as a demonstration shows it."""
        return self.prompt.text + self.answer + self.end


@dataclass(frozen=True)
class Generator:
    """A table row: everything that is to be known about one kind of task.

    Args:
        name: how users call it.
        summary: one line for people.
        draw: `draw(random, shown)` yields one pass of drafts in random order; passes may be repeated. `shown` says
            that demonstrations precede the prompt, so that a bare form ("hot ->") is understood.
        lists: the word lists it uses.
        shots: demonstrations by default.
        joiner: what stands between demonstrations.
        by_topic: topics are divided among the splits; otherwise prompts are, because there are too few topics.
        why_few: why there are fewer than 200 examples, where that is so.
    """

    name: str
    summary: str
    draw: Callable[[Random, bool], Iterator[Draft]]
    lists: tuple[str, ...]
    shots: int = 0
    joiner: str = "\n"
    by_topic: bool = True
    why_few: str = ""

    def split(self, draft: Draft) -> str | None:
        """The split a draft belongs to, None where its topics belong to several. It depends on no seed."""
        homes = {_home(topic) for topic in (draft.topics if self.by_topic else (draft.prompt.text,))}
        return homes.pop() if len(homes) == 1 else None


def _home(topic: str) -> str:
    place = int.from_bytes(sha256(topic.encode()).digest()[:4]) % 100
    return next(name for name, below in SPLITS if place < below)


def shuffled(random: Random, items: Iterable[T]) -> list[T]:
    """The items in random order, as a new list."""
    pool = list(items)
    return random.sample(pool, len(pool))
