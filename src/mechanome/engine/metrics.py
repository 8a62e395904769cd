"""Metrics: from logits at one position to one number per row.

A metric is any callable `metric(logits [rows, vocab], rows [rows]) -> [rows]`, where `rows` says which example
each row of logits belongs to, because a sweep runs many variants of each example. Whoever calls one does it by
`measure`, which refuses what is not one finite number per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite
from mechanome.engine.asked import in_vocabulary, one_each, token_ids

Metric = Callable[[Tensor, Tensor], Tensor]

_WRITE = "write metric(logits [rows, vocab], rows [rows]) -> [rows], such as mn.LogitDiff(answer, foil)"


def measure(metric: Metric, logits: Tensor, rows: Tensor) -> Tensor:
    """A metric's values, checked.

    Args:
        logits: `[row, vocab]`. rows: the example that each row belongs to, `[row]`.

    Returns:
        `[row]`, real and floating, as the metric made it.

    Raises:
        BadInput: not a tensor of one real floating-point number per row. NotFinite: NaN or infinity among them.
    """
    values: Any = metric(logits, rows)
    if not isinstance(values, Tensor):
        raise BadInput(f"a metric that returns {type(values).__name__}", "it must return a tensor", _WRITE)
    if not values.is_floating_point():
        raise BadInput(f"a metric of type {values.dtype}", "it must return real floating-point numbers", _WRITE)
    if values.shape != rows.shape:
        raise BadInput(f"a metric of shape {list(values.shape)}", f"the batch has {len(rows)} rows", _WRITE)
    if not bool(torch.isfinite(values).all()):
        raise NotFinite("the metric", "it is NaN or infinite", "use float32, or check the inputs")
    return values


def check_metric(metric: Any, examples: int) -> None:
    """Check what can be known of a metric before anything runs.

    Raises:
        BadInput: not a callable, or answers for another number of examples.
    """
    if not callable(metric):
        raise BadInput(f"the metric {metric!r}", "it cannot be called", _WRITE)
    if isinstance(metric, (LogitDiff, LogProb, Logit)):
        metric.check(examples)


def _pick(logits: Tensor, what: str, tokens: Any, rows: Tensor) -> Tensor:
    ids = token_ids(what, tokens)
    in_vocabulary(what, ids, logits.shape[-1])
    if len(ids) > 1 and int(rows.max()) >= len(ids):
        raise BadInput(f"{len(ids)} ids of the {what}", f"row {int(rows.max())} has none", "give one id, or one each")
    rows = rows.to(logits.device)
    chosen = ids.to(logits.device)[rows] if len(ids) > 1 else ids.to(logits.device).expand(len(rows))
    return logits.gather(-1, chosen[:, None])[:, 0]


@dataclass(frozen=True)
class LogitDiff:
    """Logit of the answer minus logit of the foil.

    Args:
        answer, foil: token ids, one for all examples or one each.

    Raises:
        BadInput: not token ids, not equally many, or answer and foil are the same token.
    """

    answer: int | Sequence[int] | Tensor
    foil: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        answer, foil = token_ids("answer", self.answer), token_ids("foil", self.foil)
        if len(answer) != len(foil) and 1 not in (len(answer), len(foil)):
            raise BadInput(f"{len(answer)} answers and {len(foil)} foils", "they are pairs", "give equally many")
        if bool((answer == foil).any()):
            raise BadInput("answer and foil", "they are the same token", "choose different ones")

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return _pick(logits, "answer", self.answer, rows) - _pick(logits, "foil", self.foil, rows)

    def check(self, examples: int) -> None:
        """Check the number of ids.

        Raises:
            BadInput: neither one nor one per example.
        """
        one_each("answer", token_ids("answer", self.answer), examples)
        one_each("foil", token_ids("foil", self.foil), examples)


@dataclass(frozen=True)
class _OfAnswer:
    """A metric of one answer per example.

    Args:
        answer: token ids, one for all examples or one each.

    Raises:
        BadInput: not token ids.
    """

    answer: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        token_ids("answer", self.answer)

    def check(self, examples: int) -> None:
        """As `LogitDiff.check`."""
        one_each("answer", token_ids("answer", self.answer), examples)


@dataclass(frozen=True)
class LogProb(_OfAnswer):
    """Log-probability of the answer, in nats, computed in float32 or, for float64 logits, in float64.

    Args:
        answer: token ids, one for all examples or one each.

    Raises:
        BadInput: not token ids.
    """

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        precise = torch.promote_types(logits.dtype, torch.float32)
        return _pick(logits.to(precise).log_softmax(-1), "answer", self.answer, rows)


@dataclass(frozen=True)
class Logit(_OfAnswer):
    """Logit of the answer.

    Args:
        answer: token ids, one for all examples or one each.

    Raises:
        BadInput: not token ids.
    """

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        return _pick(logits, "answer", self.answer, rows)
