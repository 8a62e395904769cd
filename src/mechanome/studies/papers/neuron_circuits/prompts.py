"""Subjects and verbs that agree, and cities with their states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from mechanome.core import TooFewRows
from mechanome.engine import Batch, Model

NOUNS = (
    ("boy", "boys"), ("man", "men"), ("woman", "women"), ("parent", "parents"), ("manager", "managers"),
    ("doctor", "doctors"), ("teacher", "teachers"), ("student", "students"), ("dog", "dogs"), ("cat", "cats"),
    ("car", "cars"), ("book", "books"), ("house", "houses"), ("tree", "trees"), ("bird", "birds"),
    ("child", "children"), ("friend", "friends"), ("player", "players"), ("author", "authors"), ("king", "kings"),
    ("lawyer", "lawyers"), ("farmer", "farmers"), ("singer", "singers"), ("driver", "drivers"),
    ("soldier", "soldiers"), ("officer", "officers"), ("artist", "artists"), ("worker", "workers"),
    ("writer", "writers"), ("girl", "girls"),
)  # fmt: skip
VERBS = ((" is", " are"), (" was", " were"), (" has", " have"))
TEMPLATES = {"simple": "The {subject}", "nounpp": "The {subject} near the {other}"}

CITIES = (
    ("Dallas", "Texas"), ("Los Angeles", "California"), ("Miami", "Florida"), ("Chicago", "Illinois"),
    ("Detroit", "Michigan"), ("Boston", "Massachusetts"), ("Atlanta", "Georgia"), ("Seattle", "Washington"),
    ("Denver", "Colorado"), ("Phoenix", "Arizona"), ("Portland", "Oregon"), ("Las Vegas", "Nevada"),
    ("Minneapolis", "Minnesota"), ("Milwaukee", "Wisconsin"), ("New Orleans", "Louisiana"), ("Nashville", "Tennessee"),
    ("Cleveland", "Ohio"), ("Philadelphia", "Pennsylvania"), ("Baltimore", "Maryland"), ("Indianapolis", "Indiana"),
    ("Salt Lake City", "Utah"), ("Honolulu", "Hawaii"), ("Houston", "Texas"), ("San Diego", "California"),
    ("Orlando", "Florida"), ("Tucson", "Arizona"), ("Memphis", "Tennessee"), ("Cincinnati", "Ohio"),
    ("Omaha", "Nebraska"), ("Birmingham", "Alabama"), ("Anchorage", "Alaska"), ("Wichita", "Kansas"),
)  # fmt: skip


def ids_of(model: Model, text: str) -> list[int]:
    """Token ids, with nothing put in front."""
    return [int(i) for i in model.encode([text], bos="none").input_ids[0]]


def split(model: Model, seed: int, train: int, test: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Nouns of one token in both numbers, drawn for finding circuits and for judging them.

    Raises:
        TooFewRows: the tokenizer has too few such nouns.
    """
    single = [pair for pair in NOUNS if all(len(ids_of(model, f" {word}")) == 1 for word in pair)]
    if len(single) < train + test:
        raise TooFewRows("nouns", f"{len(single)} are one token in both numbers", f"ask for fewer than {train + test}")
    drawn = Random(f"nouns/{seed}").sample(single, train + test)
    return drawn[:train], drawn[train:]


@dataclass(frozen=True)
class VerbDifference:
    """Mean over verbs of the logit of the form that agrees minus that of the other form.

    Args:
        singular, plural: token ids of the forms, `[verb]`. is_plural: of the subject, `[row]`.
    """

    singular: Tensor
    plural: Tensor
    is_plural: Tensor

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        sign = 2.0 * self.is_plural[rows.cpu()].to(logits) - 1
        return sign * (logits[:, self.plural] - logits[:, self.singular]).mean(-1)


@dataclass(frozen=True)
class Agreement:
    """Prompts of one template.

    Args:
        batch: as they are. other: with the subject in the other number.
        metric: of their rows. nouns: of the subject, per row. plural: its number, `[row]`.
    """

    batch: Batch
    other: Batch
    metric: VerbDifference
    nouns: tuple[str, ...]
    plural: Tensor

    @classmethod
    def of(cls, model: Model, kind: str, nouns: Sequence[tuple[str, str]]) -> Agreement:
        """Every noun in both numbers; behind "near", the next noun, in both numbers too.

        All four pairs of numbers occur equally often, so the second noun says nothing about which form agrees: a
        model that heeds it alone has a metric of 0 on average.
        """
        template = TEMPLATES[kind]
        beside = (0, 1) if "{other}" in template else (0,)
        plan = [(i, number, far) for i in range(len(nouns)) for number in (0, 1) for far in beside]
        clean, flipped = (
            [template.format(subject=nouns[i][number ^ flip], other=nouns[(i + 1) % len(nouns)][far])
             for i, number, far in plan]
            for flip in (0, 1)
        )  # fmt: skip
        plural = torch.tensor([number == 1 for _, number, _ in plan])
        forms = [torch.tensor([ids_of(model, pair[number])[0] for pair in VERBS]) for number in (0, 1)]
        batch, other = (model.encode(some, bos="none") for some in (clean, flipped))
        named = tuple(nouns[i][0] for i, _, _ in plan)
        return cls(batch, other, VerbDifference(forms[0], forms[1], plural), named, plural)

    def take(self, rows: Sequence[int]) -> Agreement:
        """Some rows."""
        index = torch.tensor(list(rows))
        metric = VerbDifference(self.metric.singular, self.metric.plural, self.plural[index])
        nouns = tuple(self.nouns[i] for i in rows)
        return Agreement(self.batch.take(rows), self.other.take(rows), metric, nouns, self.plural[index])

    def halves(self) -> tuple[list[int], list[int]]:
        """Rows of every other noun, and of the rest."""
        place = {noun: i for i, noun in enumerate(dict.fromkeys(self.nouns))}
        first, second = ([i for i, noun in enumerate(self.nouns) if place[noun] % 2 == half] for half in (0, 1))
        return first, second
