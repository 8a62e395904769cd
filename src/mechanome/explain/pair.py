"""Prompt and counterfactual side by side, ready to lend each other the values of their parts.

Both are run once, with every part captured. A *variant* is one of the two runs in which some parts take their values
from the other. Variants are rows of a batch, and the tokens before the first difference, which are the same in all of
them, are encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import track
from mechanome.engine import Batch, Edit, FromRun, Model, Prefix, Run, Site, Where
from mechanome.engine.resume import shared_prefix
from mechanome.explain.question import Question

TOKENS_AT_ONCE = 1024
"""Rows times positions of one forward pass."""

Loan = tuple[Site, Sequence[int] | None]
"""A part, and the positions at which it takes its value from the other run; None for all."""


@dataclass(frozen=True)
class Pair:
    """Two runs of one model.

    Args:
        model: an opened language model.
        question: the contrast.
        clean: the prompt's run, holding every part. corrupted: the counterfactual's.
        prefix: the tokens before the first difference, encoded; None where the model cannot resume from them.
        quiet: no progress line.
    """

    model: Model = field(repr=False)
    question: Question = field(repr=False)
    clean: Run = field(repr=False)
    corrupted: Run = field(repr=False)
    prefix: Prefix | None = field(default=None, repr=False)
    quiet: bool = False

    @classmethod
    def of(cls, model: Model, question: Question, sites: Sequence[Site], quiet: bool = False) -> Pair:
        """Run both, and keep `sites`."""
        clean = model.run(question.clean, capture=sites, logits=False)
        corrupted = model.run(question.corrupted, capture=sites, logits=False)
        prefix = shared_prefix(model, question.clean, question.differing[0])
        return cls(model, question, clean, corrupted, prefix, quiet)

    def restored(self, variants: Sequence[Sequence[Loan]], what: str) -> Tensor:
        """The counterfactual's run with parts as in the prompt: next-token logits `[variant, vocab]`, float32.

        Args:
            variants: per variant, the parts that are lent.
            what: named in the progress line.
        """
        return self._logits(self.question.corrupted, self.clean, variants, what)

    def removed(self, variants: Sequence[Sequence[Loan]], what: str) -> Tensor:
        """The prompt's run with parts as in the counterfactual, likewise."""
        return self._logits(self.question.clean, self.corrupted, variants, what)

    def _logits(self, base: Batch, donor: Run, variants: Sequence[Sequence[Loan]], what: str) -> Tensor:
        differs = range(self.question.differing[0], self.question.length)
        size = max(1, TOKENS_AT_ONCE // len(differs))
        pieces = [variants[i : i + size] for i in range(0, len(variants), size)]
        found = []
        for piece in track(pieces, what, quiet=self.quiet):
            # Before the first difference both runs hold the same values, so leaving those positions out is exact.
            edits = [
                Edit(site, "set", FromRun(donor, [0]), Where(pos=list(differs if pos is None else pos), rows=[row]))
                for row, loans in enumerate(piece)
                for site, pos in loans
            ]
            rows = base.take([0] * len(piece))
            logits = self.model.run(rows, edits=edits, logits="last", prefix=self.prefix).logits
            assert logits is not None
            found.append(logits.float().cpu())
        return torch.cat(found)
