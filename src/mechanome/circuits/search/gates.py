"""Gates: how a number per edge, its logit, becomes a mask that a gradient can change.

| gate | mask | open with probability | source |
|---|---|---|---|
| `hard-concrete` | a stretched, clipped concrete variable: exactly 0, exactly 1 or between | `s(l - b log(-g / z))` | Louizos et al. 2018 |
| `gumbel` | 0 or 1, drawn; gradient of the sigmoid behind it | `s(l)` | Jang et al. 2017; arXiv 2605.12671 |
| `deterministic` | 1 where `l > 0`, else 0; gradient of `s(l)` | `s(l)`, as a measure of size | arXiv 2605.12671 |

`s` is the sigmoid; `b = 2/3`, `g = -0.1`, `z = 1.1`. In each an edge belongs to the circuit where its logit is positive.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_BETA, _GAMMA, _ZETA = 2 / 3, -0.1, 1.1


@dataclass(frozen=True)
class Gate:
    """One way to make masks of logits.

    Args:
        sample: from logits to masks of the same shape in [0, 1], differentiable; draws come from torch's global
            generator.
        open: from logits to the probability that a mask is not 0, differentiable.
        start: logits to begin with: nearly every edge is open.
    """

    sample: Callable[[Tensor], Tensor]
    open: Callable[[Tensor], Tensor]
    start: float


def _logistic(logits: Tensor) -> Tensor:
    """Logistic noise: the difference of two Gumbel variables."""
    drawn = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
    return drawn.log() - (-drawn).log1p()


def _straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The values of `hard` with the gradient of `soft`."""
    return hard.to(soft) + (soft - soft.detach())


def _hard_concrete(logits: Tensor) -> Tensor:
    concrete = ((logits + _logistic(logits)) / _BETA).sigmoid()
    return (concrete * (_ZETA - _GAMMA) + _GAMMA).clamp(0, 1)


def _gumbel(logits: Tensor) -> Tensor:
    noisy = logits + _logistic(logits)
    return _straight_through(noisy > 0, noisy.sigmoid())


def _deterministic(logits: Tensor) -> Tensor:
    return _straight_through(logits > 0, logits.sigmoid())


GATES: dict[str, Gate] = {
    "hard-concrete": Gate(_hard_concrete, lambda x: (x - _BETA * math.log(-_GAMMA / _ZETA)).sigmoid(), 3.0),
    "gumbel": Gate(_gumbel, torch.sigmoid, 4.0),
    "deterministic": Gate(_deterministic, torch.sigmoid, 1.0),
}
