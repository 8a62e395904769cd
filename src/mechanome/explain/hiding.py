"""How much each token matters: the prompt is run with one token hidden from all later ones.

Hidden means that no later position can attend to it, in any layer; the rest of each attention row is renormalized, and
nothing else changes (`heads.masked_runs`). This needs no counterfactual, so it also shows what the prompt and its
counterfactual share. In a long prompt neighboring tokens are hidden together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import NotServed
from mechanome.engine import Model
from mechanome.engine.memory import Budget
from mechanome.explain.question import Question
from mechanome.heads import masked_runs, neighbors

TOKENS = 4000
"""Tokens are hidden together where hiding each alone would run more tokens than this."""


@dataclass(frozen=True)
class Hidden:
    """Effects of hiding.

    Args:
        groups: positions hidden together, in order; the last position is in none, for nothing comes after it.
        change: of the logit difference, against the unchanged prompt, `[group]`.
        probability: of the answer while hidden, `[group]`.
    """

    groups: tuple[tuple[int, ...], ...]
    change: Tensor = field(repr=False)
    probability: Tensor = field(repr=False)

    @property
    def together(self) -> int:
        """How many neighbors are hidden together; 1 where each token is hidden alone."""
        return max(map(len, self.groups))

    @property
    def ranked(self) -> list[tuple[float, tuple[int, ...]]]:
        """Change and group, those first whose hiding costs the preference most."""
        return sorted(zip(self.change.tolist(), self.groups))

    def at(self, position: int) -> float | None:
        """The change where this position is hidden, None for the last one."""
        return next((float(c) for g, c in zip(self.groups, self.change) if position in g), None)


def hide(model: Model, question: Question, budget: Budget = None) -> Hidden:
    """Hide each token, or each group of neighbors, from every later position (`heads.masked_runs`).

    Raises:
        NotServed: attention scores that cannot be edited in every layer, or a prompt of a single token.
    """
    n = question.length
    if n < 2:
        raise NotServed("hiding tokens", "the prompt has one token", "write a longer prompt")
    groups = neighbors(n - 1, TOKENS // n)

    def read(logits: Tensor) -> Tensor:
        last = logits[:, 0]
        return torch.stack([question.preference(last), last.softmax(-1)[:, question.answer.id]], dim=-1)

    preference, probability = masked_runs(
        model, question.clean, groups, read, hidden_from="later", budget=budget
    ).unbind(-1)
    return Hidden(groups, preference - question.high, probability)
