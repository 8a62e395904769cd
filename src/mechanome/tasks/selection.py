"""Selections: what of a task can be used with a model, what not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.core.tables import Table
from mechanome.engine.memory import Budget
from mechanome.engine.model import Model
from mechanome.engine.scoring import score_options
from mechanome.tasks.batches import answer_ids, contrast, encode
from mechanome.tasks.example import Example

if TYPE_CHECKING:
    from mechanome.tasks.task import Task

WRONG = "the model prefers the foil"
ELSE = "the model says something else"
UNDECIDABLE = "answer and foil cannot be told apart by their tokens"
NO_ANSWER = "there is no answer"
NO_COUNTERFACTUAL = "there is no counterfactual"
OTHER_LENGTH = "the counterfactual has another token length"


@dataclass(frozen=True)
class Selection:
    """A task divided in two.

    Args:
        task: what was kept. dropped: what was not.
        reasons: one per dropped example.
        what: what was asked, in words.
        margins: per example of the task before, log-probability of the answer minus that of the foil, in nats (without
            a foil the log-probability of the answer); NaN where there is none. None where nothing was scored.
    """

    task: Task
    dropped: Task
    reasons: tuple[str, ...]
    what: str
    margins: Tensor | None = field(default=None, repr=False)

    @property
    def kept(self) -> int:
        """How many examples were kept."""
        return len(self.task)

    @property
    def share(self) -> float:
        """Kept examples among all of them."""
        return self.kept / (self.kept + len(self.dropped))

    def __str__(self) -> str:
        whole = self.kept + len(self.dropped)
        why = "; ".join(f"{n}: {reason}" for reason, n in Counter(self.reasons).most_common())
        return f"{self.what}: kept {self.kept} of {whole} ({self.share:.0%})" + (f"; dropped {why}" if why else "")

    def table(self, by: str | None = None) -> Table:
        """Counts by reason, or kept and dropped by a group such as "template"."""
        if by is None:
            rows = [("kept", self.kept), *Counter(self.reasons).most_common()]
            return Table(("outcome", "examples"), rows, self.what)
        kept, dropped = (Counter(e.groups.get(by, "") for e in task.examples) for task in (self.task, self.dropped))
        groups = sorted({*kept, *dropped})
        rows_by = [(g, kept[g], dropped[g], kept[g] / (kept[g] + dropped[g])) for g in groups]
        return Table((by, "kept", "dropped", "share"), rows_by, self.what)

    def _repr_html_(self) -> str:
        return self.table().html()


def unaligned(model: Model, example: Example) -> str | None:
    """Why an example cannot be patched position by position, None where it can."""
    if example.answer is None:
        return NO_ANSWER
    if example.counterfactual is None:
        return NO_COUNTERFACTUAL
    clean, corrupted = (encode(model, [example], other) for other in (False, True))
    if clean.frame.lengths != corrupted.frame.lengths:
        return OTHER_LENGTH
    try:
        contrast(model, example)
    except BadInput:
        return UNDECIDABLE
    return None


def mistakes(model: Model, examples: Sequence[Example], budget: Budget = None) -> tuple[list[str | None], Tensor]:
    """Per example why it counts as not done right (None: it is right), and the margins fp64 `[example]`, in nats.

    Answers are scored by teacher-forced log-probability, summed over their tokens. Without a foil, an example is right
    where greedy decoding says the answer.
    """
    reasons = [_unscorable(model, example) for example in examples]
    margins = torch.full((len(examples),), float("nan"), dtype=torch.float64)
    rivals = [i for i, e in enumerate(examples) if reasons[i] is None and e.foil is not None]
    alone = [i for i, e in enumerate(examples) if reasons[i] is None and e.foil is None]
    if rivals:
        options = [[list(answer_ids(model, examples[i], a)) for a in _both(examples[i])] for i in rivals]
        found = score_options(model, encode(model, [examples[i] for i in rivals]), options, budget=budget).logprobs
        margins[rivals] = found[:, 0] - found[:, 1]
    if alone:
        answers = [list(answer_ids(model, examples[i], _both(examples[i])[0])) for i in alone]
        batch = encode(model, [examples[i] for i in alone])
        margins[alone] = model.logprob(batch, answers, budget=budget)
        said = model.generate(batch, max_new_tokens=max(map(len, answers))).tokens
        right = {i: tokens[: len(answer)] == answer for i, tokens, answer in zip(alone, said, answers)}
    for i in rivals:
        reasons[i] = None if margins[i] > 0 else WRONG
    for i in alone:
        reasons[i] = None if right[i] else ELSE
    return reasons, margins


def _both(example: Example) -> list:
    return [a for a in (example.answer, example.foil) if a is not None]


def _unscorable(model: Model, example: Example) -> str | None:
    if example.answer is None:
        return NO_ANSWER
    try:
        if example.foil is None:
            answer_ids(model, example, example.answer)
        else:
            contrast(model, example)
    except BadInput:
        return UNDECIDABLE
    return None
