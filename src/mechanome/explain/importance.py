"""Which tokens mattered to the last position, by several measures, each held against what hiding the token does.

Contribution weights (paper 34), norm-based weights and attention are read from one forward pass: they are claims. The
causal reference hides each token from the last position in all layers and scores the answer (`heads.leave_one_out`).
How far a measure agrees with it on this prompt is Spearman's correlation with the size of that effect, over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mechanome.core import Interval, MechanomeError, NotFinite, NotServed, Table, TooFewRows
from mechanome.engine import Model
from mechanome.engine.memory import Budget
from mechanome.explain.question import Question
from mechanome.explain.tokens import quoted
from mechanome.heads import METRICS, LeaveOneOut, agreement, leave_one_out, token_importance

NAMES = {"contribution_layer": "contribution", "norm": "norm-based", "attention": "attention"}
"""The measures shown, rows of `heads.METRICS`, and what they are called here."""
_MEANINGS = {
    "contribution_layer": "the token's share of what attention writes at the last position",
    "norm": "attention times the length of what it passes on",
    "attention": "attention alone",
}

HIDDEN_LAST = "hidden from the last position (nats of log p(answer) lost)"


@dataclass(frozen=True)
class Measure:
    """One measure of every token.

    Args:
        name: a row of `heads.METRICS`.
        values: mean over layers (and heads, where it has them), for the last query, `[pos]`.
        agreement: Spearman's correlation with the size of the effect of hiding, None where it is undefined.
        undefined: why it is.
    """

    name: str
    values: Tensor = field(repr=False)
    agreement: Interval | None
    undefined: str = ""

    @property
    def title(self) -> str:
        """In a word or two."""
        return NAMES[self.name]

    @property
    def meaning(self) -> str:
        """In plain words."""
        return _MEANINGS[self.name]

    @property
    def definition(self) -> str:
        """In a clause."""
        return METRICS[self.name].definition


@dataclass(frozen=True)
class Importance:
    """Every token of the prompt, by hiding it and by each measure.

    Args:
        masking: the causal reference: the drop of log p(answer) when the last position cannot attend to a token.
        measures: the cheap ones.
    """

    masking: LeaveOneOut
    measures: tuple[Measure, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The prompt's."""
        return self.masking.tokens

    def top(self, k: int) -> list[int]:
        """The positions whose hiding changes the answer most, without the sink."""
        effects = self.masking.effects.abs()
        return sorted(self.masking.others, key=lambda p: -float(effects[p]))[:k]

    def table(self) -> Table:
        """One row a token: what hiding it from the last position costs log p(answer), in nats, and each measure."""
        rows = [
            (p, quoted(token), float(self.masking.effects[p]), *(float(m.values[p]) for m in self.measures))
            for p, token in enumerate(self.tokens)
        ]
        return Table(("position", "token", HIDDEN_LAST, *(m.title for m in self.measures)), rows)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "masking": {
                "effects": self.masking.effects.tolist(),
                "base_log_prob": self.masking.base,
                "sink": list(self.masking.sink),
                "hidden_from": self.masking.hidden_from,
            },
            "measures": [
                {
                    "name": m.name,
                    "values": m.values.tolist(),
                    "agreement": None if m.agreement is None else vars(m.agreement),
                    "undefined": m.undefined,
                }
                for m in self.measures
            ],
        }


def importance(model: Model, question: Question, budget: Budget = None) -> Importance:
    """Measure every token.

    Args:
        model: an opened language model.
        question: what is explained: its prompt and its answer.
        budget: memory for the largest piece.

    Raises:
        NotServed: attention that cannot be read, or scores that cannot be edited in every layer; a single token.
    """
    if question.length < 2:
        raise NotServed("token importance", "the prompt has one token", "write a longer prompt")
    hidden = leave_one_out(model, question.clean, question.answer.id, budget=budget)
    read = token_importance(model, question.clean, NAMES, budget=budget)
    return Importance(hidden, tuple(_measure(name, found.values.cpu(), hidden) for name, found in read.items()))


def _measure(name: str, values: Tensor, hidden: LeaveOneOut) -> Measure:
    try:
        return Measure(name, values, agreement([values], [hidden.effects.abs()], exclude=hidden.sink))
    except (TooFewRows, NotFinite) as refusal:
        return Measure(name, values, None, _reason(refusal))


def _reason(refusal: MechanomeError) -> str:
    return refusal.why or refusal.what
