"""How much each token matters: the prompt is run with one token hidden from all later ones.

Hidden means that no later position can attend to it, in any layer; the rest of each attention row is renormalized, and
nothing else changes. This needs no counterfactual, so it also shows what the prompt and its counterfactual share. In a
long prompt neighboring tokens are hidden together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import NotServed
from mechanome.engine import AttentionKnockout, Model
from mechanome.explain.pair import TOKENS_AT_ONCE
from mechanome.explain.prefixes import shared_prefix
from mechanome.explain.question import Question

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

    def at(self, position: int) -> float | None:
        """The change where this position is hidden, None for the last one."""
        return next((float(c) for g, c in zip(self.groups, self.change) if position in g), None)


def hide(model: Model, question: Question) -> Hidden:
    """Hide each token, or each group of neighbors.

    Raises:
        NotServed: attention scores that cannot be edited in every layer, or a prompt of a single token.
    """
    n = question.length
    layers = range(model.n_layers)
    if why := next(filter(None, (model.why_not_edit(f"scores.{layer}") for layer in layers)), None):
        raise NotServed("hiding tokens", why.partition(". Fix: ")[0], "none: this part is left out")
    if n < 2:
        raise NotServed("hiding tokens", "the prompt has one token", "write a longer prompt")
    size = -(-(n - 1) // max(1, min(n - 1, TOKENS // n)))
    groups = tuple(tuple(range(start, min(start + size, n - 1))) for start in range(0, n - 1, size))
    later = [list(range(group[-1] + 1, n)) for group in groups]
    logits = []
    at_once = max(1, TOKENS_AT_ONCE // n)
    for start in range(0, len(groups), at_once):
        part = slice(start, start + at_once)
        prefix = shared_prefix(model, question.clean, groups[start][0])  # hiding changes nothing before what is hidden
        rows = question.clean.take([0] * len(groups[part]))
        edits = AttentionKnockout(layers, src=[list(g) for g in groups[part]], dst=later[part])
        found = model.run(rows, edits=edits, logits="last", prefix=prefix).logits
        assert found is not None
        logits.append(found.float().cpu())
    together = torch.cat(logits)
    change = question.preference(together) - question.high
    return Hidden(groups, change, together.softmax(-1)[:, question.answer.id])
