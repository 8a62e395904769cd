"""Short texts for paper 28: indirect objects, facts one after another, code; drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from mechanome.tasks import make, words


def _objects(n: int, seed: int) -> Iterator[str]:
    return (f"{example.inputs}{example.answer}." for example in make("ioi", n, seed, quiet=True))


def _facts(n: int, seed: int) -> Iterator[str]:
    random = Random(f"singular-features/{seed}")
    rows = [row for row in words("capitals").rows if " " not in row[0] + row[1]]
    for _ in range(n):
        three = random.sample(rows, 3)
        yield " ".join(f"The capital of {place} is {capital}." for place, capital, _ in three)


def _code(n: int, seed: int) -> Iterator[str]:
    random = Random(f"singular-features/code/{seed}")
    things = [word for word in words("things").first if word.isalpha()]
    for _ in range(n):
        items, total = random.sample(things, 2)
        yield f"def count({items}):\n    {total} = 0\n    for x in {items}:\n        {total} += x\n    return {total}\n"


KINDS: dict[str, Callable[[int, int], Iterator[str]]] = {"objects": _objects, "facts": _facts, "code": _code}
"""Kinds of text: from a number and a seed to texts."""


def texts(n: int, seed: int) -> list[str]:
    """So many of each kind."""
    return [text for draw in KINDS.values() for text in draw(n, seed)]
