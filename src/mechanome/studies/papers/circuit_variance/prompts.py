"""Prompts for paper 40: the same nouns in three templates, of which a model does all right.

"The boys near the car" is followed by "are", "The boy near the car" by "is". A subject and what stands beside it are
drawn once and put into every template, so that circuits of two templates differ by the template alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from mechanome.core import TooFewRows
from mechanome.engine import Model
from mechanome.tasks import Example, Task, make, words

TEMPLATES = {
    "near": ("The {} near the {}", 2),
    "behind": ("The {} behind the {}", 2),
    "that-clause": ("The {} that the {} saw", 3),
}
"""Name to text, and which noun of a row stands beside the subject: 2 the thing, 3 the other people."""
OTHER_TASKS = ("ioi", "greater_than")
"""What is tried beside agreement: the first that the model does well enough."""


def agreement(model: Model, seed: int, n: int, candidates: int) -> dict[str, Any]:
    """Nouns whose prompts the model does right, both numbers, in every template.

    Args:
        model: the model. seed: of the draw. n: how many are kept. candidates: how many subjects are tried.

    Returns:
        rows: per kept subject, `[singular, plural, thing, people]`; right, asked: numbers of prompts.

    Raises:
        TooFewRows: the model does not do so many right.
    """
    random = Random(f"circuit-variance/{seed}")
    people, things = words("people").rows, words("things").rows
    rounds = -(-candidates // len(people))
    subjects = [subject for _ in range(rounds) for subject in random.sample(people, len(people))][:candidates]
    rows = [
        [*subject, random.choice(things)[0], random.choice([p for p in people if p != subject])[1]]
        for subject in subjects
    ]
    kept, right = [True] * len(rows), 0
    for name in TEMPLATES:
        task = agreement_task(name, rows)
        lost = {example.inputs for example in task.aligned(model, quiet=True).dropped}
        flipped = Task(task.name, tuple(_flipped(example) for example in task))
        for side in (task, flipped):
            done = side.filter(model, quiet=True)
            assert done.margins is not None
            right += done.kept
            kept = [k and float(margin) > 0 for k, margin in zip(kept, done.margins)]
        kept = [k and example.inputs not in lost for k, example in zip(kept, task)]
    chosen = [row for row, k in zip(rows, kept) if k][:n]
    if len(chosen) < n:
        why = f"{model.name} does {len(chosen)} of {len(rows)} right in every template"
        raise TooFewRows(f"{n} pairs of nouns", why, "ask for fewer")
    return {"rows": chosen, "right": right, "asked": 2 * len(TEMPLATES) * len(rows)}


def agreement_task(template: str, rows: Sequence[Sequence[str]]) -> Task:
    """The prompts of a template: plural subjects, with the singular as counterfactual.

    Args:
        template: a name of `TEMPLATES`. rows: as `agreement` keeps them.
    """
    text, place = TEMPLATES[template]
    examples = (
        Example(
            text.format(row[1], row[place]), answer=" are", foil=" is", counterfactual=text.format(row[0], row[place])
        )
        for row in rows
    )
    return Task(f"agreement, {template}", tuple(examples))


def _flipped(example: Example) -> Example:
    return Example(example.counterfactual, answer=example.foil, foil=example.answer, counterfactual=example.inputs)


def other_task(model: Model, seed: int, n: int, enough: float, candidates: int) -> dict[str, Any]:
    """Another task that the model does well enough.

    Args:
        model: the model. seed: of the draw. n: examples that are kept. enough: accuracy from which a task counts.
        candidates: examples that accuracy is measured on.

    Returns:
        the accuracy of each that was tried, and the task, None where none is done well enough.
    """
    accuracy: dict[str, float] = {}
    for name in OTHER_TASKS:
        done = make(name, candidates, seed, model=model, quiet=True).filter(model, quiet=True)
        accuracy[name] = done.share
        if done.share > enough and done.kept >= n:
            return {"accuracy": accuracy, "task": done.task[:n]}
    return {"accuracy": accuracy, "task": None}
