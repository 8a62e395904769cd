"""Tokens as people read them: an id with its text, quoted so that spaces and line breaks are seen."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mechanome.engine import Model
from mechanome.engine.inputs import token_strings
from mechanome.report import number

TINY = 0.1
"""Percent below which a probability is only said to be below it."""


@dataclass(frozen=True)
class Token:
    """One entry of the vocabulary.

    Args:
        id: its number.
        text: what it decodes to, alone.
    """

    id: int
    text: str

    def __str__(self) -> str:
        return quoted(self.text)

    @classmethod
    def of(cls, model: Model, id: int) -> Token:
        """The token of an id."""
        return cls(int(id), token_strings(model.tokenizer, [int(id)])[0])


def quoted(text: str) -> str:
    """A text in quotes, on one line: `' Paris'`."""
    escapes = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "'" + "".join(escapes.get(c, c) for c in text) + "'"


def percent(probability: float) -> str:
    """A probability as a percentage of about three digits: `74.9 %`, `0.43 %`, `below 0.1 %`."""
    value = 100 * probability
    if value < TINY:
        return f"below {TINY} %"
    return f"{number(value, 0 if value >= 99.95 else 1 if value >= 1 else 2)} %"


def whole(share: float) -> str:
    """A share of 1 as a whole percentage: `84 %`."""
    return f"{number(100 * share, 0)} %"


def counted(n: int, noun: str) -> str:
    """A number of things: `1 prompt`, `2 prompts`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


@dataclass(frozen=True)
class Prediction:
    """The likeliest next tokens, in order.

    Args:
        tokens: the tokens.
        probabilities: theirs, 0 to 1.
    """

    tokens: tuple[Token, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def of(cls, model: Model, logits: Tensor, n: int) -> Prediction:
        """The top `n` of next-token logits `[vocab]`."""
        values, ids = logits.float().softmax(-1).topk(min(n, len(logits)))
        return cls(tuple(Token.of(model, int(i)) for i in ids), tuple(values.tolist()))
