"""Prompts with known answer-bearing tokens, kept where the model says the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from mechanome.engine import Model
from mechanome.tasks import Example, Task, make, words
from mechanome.tasks.batches import answer_ids
from mechanome.tasks.writing import write

FACTS = (
    ("{name} works as a {fact}.", "people", "By profession, {who} is a"),
    ("{name} lives in {fact}.", "capitals", "The city where {who} lives is"),
    ("{name} bought a {fact}.", "gifts", "The thing that {who} bought is a"),
    ("{name} went to the {fact}.", "places", "The place that {who} visited is the"),
)
"""Statement, word list (the capitals' second column), and a question about it in other words."""


def recall(n: int, seed: int) -> Iterator[tuple[Example, str]]:
    """Who has what: four or five entries; the value bears the answer."""
    drawn = [example for example in make("key_value", 3 * n, seed) if example.groups["size"] != "3"]
    return ((example, "value") for example in drawn[:n])


def facts(n: int, seed: int) -> Iterator[tuple[Example, str]]:
    """Four facts about four people, one of them asked for; its last word bears the answer."""
    random = Random(f"facts/{seed}")
    pools = [[row[listed == "capitals"] for row in words(listed).rows] for _, listed, _ in FACTS]
    pools = [[word for word in pool if word.isalpha() and word[0] not in "aeiou"] for pool in pools]
    for _ in range(n):
        order = random.sample(range(len(FACTS)), len(FACTS))
        names = random.sample(words("names").first, len(FACTS))
        said = [random.choice(pool) for pool in pools]
        asked = random.randrange(len(FACTS))
        lines = [FACTS[i][0].format(name=f"{{_n{i}}}", fact="{fact}" if i == asked else f"{{_f{i}}}") for i in order]
        template = " ".join([*lines, FACTS[asked][2].format(who=f"{{_n{asked}}}")])
        fields = {f"_n{i}": names[i] for i in order} | {f"_f{i}": said[i] for i in order}
        text = write(template, **fields, fact=said[asked])
        yield Example(text.text, answer=f" {said[asked]}", spans=text.spans), "fact"


def repeated(n: int, seed: int) -> Iterator[tuple[Example, str]]:
    """A list of ten words begins again; the word that followed before bears the answer."""
    drawn = make("induction", 12 * n, seed).where(template="10 words, commas")
    return ((example, "next") for example in drawn.examples[:n])


KINDS: dict[str, Callable[[int, int], Iterator[tuple[Example, str]]]] = {
    "recall": recall,
    "facts": facts,
    "repeated": repeated,
}
"""Each kind of prompt: from a number and a seed to examples, with the span that bears the answer."""


def kept(model: Model, seed: int, n: int, candidates: int) -> dict[str, Any]:
    """The first ``n`` prompts of each kind that the model answers right, with one token.

    Args:
        model: an opened language model.
        seed: of the draws.
        n: prompts of each kind. candidates: at most so many are drawn for them.

    Returns:
        ``prompts``: text, kind, answer id, answer-bearing positions; ``right`` and ``drawn``: counts by kind.
    """
    prompts: list[dict[str, Any]] = []
    right, drawn = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    for kind, draw in KINDS.items():
        rows = list(draw(candidates, seed))
        step = max(n, 4)
        for start in range(0, len(rows), step):
            found = _right(model, kind, rows[start : start + step])
            drawn[kind] += len(rows[start : start + step])
            right[kind] += len(found)
            prompts += found[: n - right[kind] + len(found)]
            if right[kind] >= n:
                break
    return {"prompts": prompts, "right": right, "drawn": drawn}


def _right(model: Model, kind: str, rows: list[tuple[Example, str]]) -> list[dict[str, Any]]:
    """Those that greedy decoding answers; with a foil, being likelier than that would be enough."""
    spans = {example.inputs: span for example, span in rows}
    alone = [replace(e, foil=None, counterfactual=None, counterfactual_spans={}) for e, _ in rows]
    task = Task(kind, tuple(alone))
    prompts = []
    for example in task.filter(model, quiet=True).task:
        ids = answer_ids(model, example, example.answer or "")
        if len(ids) == 1:
            frame = replace(task, examples=(example,)).encode(model).frame
            critical = frame.positions(spans[example.inputs], 0)
            prompts.append({"kind": kind, "text": example.inputs, "answer": ids[0], "critical": critical})
    return prompts
