"""Which examples a circuit is found on, and which it is measured on: never the same ones.

A circuit that is measured on the examples that chose it looks better than it is. So the examples that the model does
right are divided by a seed: one half finds, the other measures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from mechanome.core import TooFewRows
from mechanome.engine import Model
from mechanome.engine.asked import count
from mechanome.engine.memory import Budget
from mechanome.tasks import Example, Task, make, task_file
from mechanome.tasks.selection import ELSE, NO_COUNTERFACTUAL, OTHER_LENGTH, WRONG

LEAST = 4
"""Examples that are needed: two to find on and two to measure on."""

_FIXES = {
    OTHER_LENGTH: "give counterfactuals of as many tokens as their inputs",
    NO_COUNTERFACTUAL: "give every example a counterfactual",
    WRONG: "choose a task that this model can do, or another model",
    ELSE: "choose a task that this model can do, or another model",
}


@dataclass(frozen=True)
class Halves:
    """Examples of a task that a model does right, divided in two.

    Args:
        finding: those that the circuit is found on.
        held_out: those that it is measured on.
        tried: how many examples were looked at.
        right: how many of them the model does right; more than are used, where a number was asked for.
        dropped: how many were left out, by reason.
        seed: of the division.
    """

    finding: Task
    held_out: Task
    tried: int
    right: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0

    @property
    def used(self) -> int:
        """How many are used."""
        return len(self.finding) + len(self.held_out)

    @property
    def task(self) -> Task:
        """Those used, the finding half first."""
        return replace(self.finding, examples=self.finding.examples + self.held_out.examples)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "tried": self.tried,
            "right": self.right,
            "dropped": dict(self.dropped),
            "finding": len(self.finding),
            "held_out": len(self.held_out),
            "seed": self.seed,
        }


def opened_task(task: str | Task, model: Model, seed: int) -> Task:
    """The task that a text names: generated so that it can be patched in this model, or read from a file.

    Raises:
        UnknownName: no such task. BadInput, CorruptFile: a file that is none of examples.
    """
    if isinstance(task, Task):
        return task
    file = task_file(task)
    return make(task, seed=seed, model=model, quiet=True) if file is None else Task.from_jsonl(file)


def halves(model: Model, task: Task, examples: int, seed: int = 0, *, budget: Budget = None) -> Halves:
    """The first different examples that can be patched and that the model does right, divided in two.

    Args:
        model: an opened language model.
        task: with counterfactuals.
        examples: how many at most; they are tried in order, and no more than necessary.
        seed: of the division.
        budget: memory, such as "2GB".

    Raises:
        TooFewRows: fewer than `LEAST` are left; the message counts why.
    """
    wanted = count("examples", examples)
    aligned = task.aligned(model, quiet=True)
    dropped, pool = Counter(aligned.reasons), aligned.task
    once: dict[str, Example] = {}
    for example in pool:
        once.setdefault(str((example.inputs, example.counterfactual, example.answer, example.foil)), example)
    if repeats := len(pool) - len(once):  # with one in each half, a circuit would be measured where it was found
        dropped["it repeats another example"] = repeats
        pool = replace(pool, examples=tuple(once.values()))
    kept: list[Example] = []
    start = 0
    while start < len(pool) and len(kept) < wanted:
        found = pool[start : start + wanted].filter(model, budget=budget, quiet=True)
        dropped.update(found.reasons)
        kept += found.task.examples
        start += wanted
    tried = len(aligned.dropped) + repeats + min(start, len(pool))
    used = kept[:wanted]
    if len(used) < LEAST:
        raise _too_few(task, model, wanted, len(used), dropped)
    order = Random(f"halves/{seed}").sample(range(len(used)), len(used))
    middle = (len(used) + 1) // 2
    finding, held_out = (
        replace(pool, examples=tuple(used[i] for i in sorted(part))) for part in (order[:middle], order[middle:])
    )
    return Halves(finding, held_out, tried, len(kept), dict(dropped.most_common()), seed)


def _too_few(task: Task, model: Model, wanted: int, kept: int, dropped: Counter[str]) -> TooFewRows:
    why = f"at least {LEAST} are needed, half to find a circuit on and half to measure it on"
    if wanted < LEAST:
        return TooFewRows(f"{wanted} examples", why, "ask for more")
    reasons = "".join(f"; {n} dropped: {reason}" for reason, n in dropped.most_common())
    fix = next((_FIXES[reason] for reason, _ in dropped.most_common() if reason in _FIXES), "give more examples")
    return TooFewRows(f"{kept} examples of '{task.name}' that {model.name} can be asked", f"{why}{reasons}", fix)
