"""Queries for paper 06, each with other inputs of the same behavior: who receives, capitals, sums of two digits.

For receivers and sums these are other prompts of the same template; a capital is asked for in other words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random
from typing import Any

import torch
from torch import Tensor

from mechanome.core import BadInput
from mechanome.engine import LogitDiff, Model
from mechanome.engine.metrics import measure
from mechanome.tasks import Example, Task, words

NAMES = 24
RECEIVERS = (
    "When {io} and {s} went to the {place}, {giver} gave a {gift} to",
    "When {s} and {io} went to the {place}, {giver} gave a {gift} to",
)
"""The receiver named first (ABBA), and last (BABA)."""
CAPITALS = (
    "The capital of {} is",
    "The capital city of {} is",
    "{}'s capital city is",
    "The name of the capital of {} is",
    "As everybody knows, the capital of {} is",
    "Question: What is the capital of {}? Answer:",
    "In school we learned that the capital of {} is",
)
"""The query, and the same fact in other words."""
SOLVED = ((1, 1), (4, 3))
"""Sums that are shown solved: without any the model hardly answers."""


def receivers(model: Model, random: Random, n: int) -> Iterator[tuple[str, list[Example]]]:
    """Two people, one gives; the counterfactual lets the other one give."""
    names = [name for name in words("names").first if _one_token(model, f" {name}")][:NAMES]
    for i in range(n):
        template = RECEIVERS[i % len(RECEIVERS)]
        io, s = random.sample(names, 2)
        scene = {"place": random.choice(words("places").first), "gift": random.choice(words("gifts").first)}
        prompt, other = (template.format(io=io, s=s, giver=giver, **scene) for giver in (s, io))
        yield template, [Example(prompt, answer=f" {io}", foil=f" {s}", counterfactual=other)]


def capitals(model: Model, random: Random, n: int) -> Iterator[tuple[str, list[Example]]]:
    """A country's capital in every wording; the counterfactual asks for a country of as many tokens."""
    rows = [row for row in words("capitals").rows if row[2] == "country"]
    lengths = {row[0]: model.encode([text.format(row[0]) for text in CAPITALS]).frame.lengths for row in rows}
    for country, capital, _ in random.sample(rows, min(n, len(rows))):
        others = [row for row in rows if row[1] != capital and lengths[row[0]] == lengths[country]]
        if not others:
            continue
        other, foil, _ = random.choice(others)
        texts = [(text.format(country), text.format(other)) for text in CAPITALS]
        yield country, [Example(a, answer=f" {capital}", foil=f" {foil}", counterfactual=b) for a, b in texts]


def sums(model: Model, random: Random, n: int) -> Iterator[tuple[str, list[Example]]]:
    """Two digits whose sum is one digit, behind two solved sums; the counterfactual changes the first digit."""
    pairs = [(a, b) for a in range(1, 9) for b in range(1, 10 - a) if (a, b) not in SOLVED]
    head = "".join(f"{a} + {b} = {a + b}\n" for a, b in SOLVED)
    for a, b in random.sample(pairs, min(n, len(pairs))):
        c = random.choice([c for c in range(1, 10 - b) if c != a] or [a + 1])
        prompt, other = (f"{head}{first} + {b} =" for first in (a, c))
        yield "sum", [Example(prompt, answer=f" {a + b}", foil=f" {c + b}", counterfactual=other)]


@dataclass(frozen=True)
class Kind:
    """One kind of query.

    Args:
        draw: from model, random numbers and a count to groups: a key, and examples of which the first may be a query.
        wordings: whether samples of a query are the others of its group; otherwise they are queries of the same key.
    """

    draw: Callable[[Model, Random, int], Iterator[tuple[str, list[Example]]]]
    wordings: bool = False


KINDS = {"receivers": Kind(receivers), "capitals": Kind(capitals, wordings=True), "sums": Kind(sums)}
"""Kinds of queries by name."""


def queries(model: Model, kind: str, seed: int, n: int, samples: int, candidates: int, effect: float) -> dict[str, Any]:
    """Queries that the model answers, each with samples and one more input that is held out.

    Args:
        model: the model. kind: a name of `KINDS`. seed: of the draw.
        n: how many are kept. samples: other inputs of each. candidates: queries that are tried.
        effect: by how much the counterfactual must lower the metric, in logits.

    Returns:
        queries: per query the rows `[text, answer, foil, counterfactual]`: its own, of its samples, of the held-out
        input; right, asked: how many candidates the model answered with its most likely token, and of how many.
    """
    how = KINDS[kind]
    drawn = list(how.draw(model, Random(f"query-circuits/{kind}/{seed}"), candidates))
    drawn = [(key, group) for key, group in drawn if not Task(kind, tuple(group)).aligned(model, quiet=True).dropped]
    right, large = _answered(model, Task(kind, tuple(group[0] for _, group in drawn)), effect)
    kept = [pair for pair, good in zip(drawn, (right & large).tolist()) if good]
    found = [group for _, group in kept] if how.wordings else _among_themselves(kept, samples + 2)
    rows = [[[e.inputs, e.answer, e.foil, e.counterfactual] for e in group[: samples + 2]] for group in found[:n]]
    return {"queries": rows, "right": int(right.sum()), "asked": len(drawn)}


def example_of(row: Sequence[str]) -> Example:
    """The example of a row, as `queries` keeps them."""
    return Example(row[0], answer=row[1], foil=row[2], counterfactual=row[3])


def _among_themselves(kept: Sequence[tuple[str, list[Example]]], need: int) -> list[list[Example]]:
    """Queries that are samples of one another within a key, keys in turn; keys with too few are left out."""
    pools: dict[str, list[Example]] = {}
    for key, group in kept:
        pools.setdefault(key, []).append(group[0])
    around = [[pool[i:] + pool[:i] for i in range(len(pool))] for pool in pools.values() if len(pool) >= need]
    return [group for turn in zip_longest(*around) for group in turn if group is not None]


def _answered(model: Model, task: Task, effect: float) -> tuple[Tensor, Tensor]:
    """Whether the most likely token is the answer's, and whether the counterfactual matters, `[example]` each."""
    clean, other, metric = task.batch(model)
    said, changed = (model.run(batch, [], logits="last").logits for batch in (clean, other))
    assert said is not None and changed is not None and isinstance(metric, LogitDiff)
    rows = torch.arange(len(task), device=said.device)
    matters = measure(metric, said, rows) - measure(metric, changed, rows) > effect
    return (said.argmax(-1).cpu() == torch.tensor(metric.answer)), matters.cpu()


def _one_token(model: Model, text: str) -> bool:
    try:
        model.single_token(text)
    except BadInput:
        return False
    return True
