"""JumpReLU: a latent is active above its own threshold, which is learned (Rajamanoharan et al. 2024).

The step at the threshold has no gradient, so that near it a straight-through estimate takes its place: a box of width
`bandwidth`. Latents within half of it below their threshold are places too, with value zero, because they get gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mechanome.core.errors import BadInput
from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly, Selector


class JumpSelector(Selector):
    """Above a threshold for each latent.

    Args:
        width: how many latents.
        threshold: where each starts.
        bandwidth: of the straight-through estimate, in units of pre-activations.

    Raises:
        BadInput: a negative threshold, or a bandwidth that is not positive.
    """

    def __init__(self, width: int, threshold: float = 1.0, bandwidth: float = 0.5) -> None:
        super().__init__()
        if threshold < 0 or bandwidth <= 0:
            raise BadInput("JumpReLU", f"threshold {threshold}, bandwidth {bandwidth}", "give 0 or more, and above 0")
        self.threshold = nn.Parameter(torch.full((width,), float(threshold)))
        self.bandwidth = bandwidth

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        pattern = Pattern.of_mask(scores > self.threshold.detach() - self._margin())
        return pattern, exactly(pattern)

    def values(self, pre: Tensor, pattern: Pattern, bias: Tensor) -> Tensor:
        return _Jump.apply(pre, self.threshold[pattern.indices], self.bandwidth)

    def active(self, pre: Tensor, pattern: Pattern) -> Tensor:
        """1 where above the threshold, else 0 `[nnz]`; straight-through in the threshold."""
        return _Step.apply(pre, self.threshold[pattern.indices], self.bandwidth)

    @torch.no_grad()
    def after_step(self) -> None:
        self.threshold.clamp_min_(0)

    def _margin(self) -> float:
        return self.bandwidth / 2 if self.training else 0.0


class _Jump(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        return pre * (pre > threshold)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pre, threshold = ctx.saved_tensors
        return grad * (pre > threshold), -grad * threshold * _box(pre - threshold, ctx.bandwidth), None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
        ctx.save_for_backward(pre, threshold)
        ctx.bandwidth = bandwidth
        return (pre > threshold).to(pre)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pre, threshold = ctx.saved_tensors
        return None, -grad * _box(pre - threshold, ctx.bandwidth), None


def _box(distance: Tensor, bandwidth: float) -> Tensor:
    """The density that stands for the step's derivative."""
    return (distance.abs() < bandwidth / 2) / bandwidth
