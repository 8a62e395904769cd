"""Metrics: from logits at one position to one number per row.

A metric is any callable `metric(logits [rows, vocab], rows [rows]) -> [rows]`, where `rows` says which example
each row of logits belongs to, because a sweep runs many variants of each example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanome.core.errors import BadInput

Metric = Callable[[Tensor, Tensor], Tensor]


def _ids(tokens: int | Sequence[int] | Tensor) -> Tensor:
    ids = torch.as_tensor([tokens] if isinstance(tokens, int) else tokens, dtype=torch.long)
    if ids.dim() != 1 or len(ids) == 0:
        raise BadInput("answer tokens", "give one id per example", "for answers of several tokens use score_options")
    return ids


def _pick(logits: Tensor, ids: Tensor, rows: Tensor) -> Tensor:
    chosen = ids.to(logits.device)[rows.to(logits.device)] if len(ids) > 1 else ids.to(logits.device).expand(len(rows))
    return logits.gather(-1, chosen[:, None])[:, 0]


@dataclass(frozen=True)
class LogitDiff:
    """Logit of the answer minus logit of the foil.

    Args:
        answer, foil: token ids, one for all examples or one each.

    Raises:
        BadInput: answer and foil are the same token.
    """

    answer: int | Sequence[int] | Tensor
    foil: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        if bool((_ids(self.answer) == _ids(self.foil)).any()):
            raise BadInput("answer and foil", "they are the same token", "choose different ones")

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return _pick(logits, _ids(self.answer), rows) - _pick(logits, _ids(self.foil), rows)


@dataclass(frozen=True)
class LogProb:
    """Log-probability of the answer, in nats.

    Args:
        answer: token ids, one for all examples or one each.
    """

    answer: int | Sequence[int] | Tensor

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return _pick(logits.float().log_softmax(-1), _ids(self.answer), rows)


@dataclass(frozen=True)
class Logit:
    """Logit of the answer."""

    answer: int | Sequence[int] | Tensor

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return _pick(logits, _ids(self.answer), rows)
