"""Gates: how a number per edge, its logit, becomes a mask that a gradient can change.

| gate | mask | open with probability | source |
|---|---|---|---|
| `hard-concrete` | a stretched, clipped concrete variable: exactly 0, exactly 1 or between | `s(l - b log(-g / z))` | Louizos et al. 2018 |
| `gumbel` | 0 or 1, drawn; gradient of the sigmoid behind it | `s(l)` | Jang et al. 2017; arXiv 2605.12671 |
| `deterministic` | `s(l / t)`, nothing drawn; `t` falls from 1 to 0.05, so masks become 0 or 1 | `s(l / t)`, the mask itself | continuous sparsification, Savarese et al. 2020 |

`s` is the sigmoid; `b = 2/3`, `g = -0.1`, `z = 1.1`. In each an edge belongs to the circuit where its logit is positive.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_BETA, _GAMMA, _ZETA = 2 / 3, -0.1, 1.1
_COLDEST = 0.05


@dataclass(frozen=True)
class Gate:
    """One way to make masks of logits.

    Args:
        sample: from logits, and how much of the training is done (0 to 1), to masks of the same shape in [0, 1],
            differentiable; draws come from torch's global generator.
        open: from the same to the probability that a mask is not 0, differentiable.
        start: logits to begin with: nearly every edge is open, and none so far that nothing moves it.
    """

    sample: Callable[[Tensor, float], Tensor]
    open: Callable[[Tensor, float], Tensor]
    start: float


def _logistic(logits: Tensor) -> Tensor:
    """Logistic noise: the difference of two Gumbel variables."""
    drawn = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
    return drawn.log() - (-drawn).log1p()


def _hard_concrete(logits: Tensor, progress: float) -> Tensor:
    concrete = ((logits + _logistic(logits)) / _BETA).sigmoid()
    return (concrete * (_ZETA - _GAMMA) + _GAMMA).clamp(0, 1)


def _gumbel(logits: Tensor, progress: float) -> Tensor:
    noisy = logits + _logistic(logits)
    soft = noisy.sigmoid()
    return (noisy > 0).to(soft) + (soft - soft.detach())


def _annealed(logits: Tensor, progress: float) -> Tensor:
    return (logits / _COLDEST**progress).sigmoid()


GATES: dict[str, Gate] = {
    "hard-concrete": Gate(_hard_concrete, lambda x, _: (x - _BETA * math.log(-_GAMMA / _ZETA)).sigmoid(), 3.0),
    "gumbel": Gate(_gumbel, lambda x, _: x.sigmoid(), 4.0),
    "deterministic": Gate(_annealed, _annealed, 3.0),
}
