"""The four products a sparse code needs, and the closed-form gradients made of them.

With S the `[row, latent]` code of a few places: S W decodes, S^T G is the gradient of a weight, and G W^T taken only at
the places of S (SDDMM) is the gradient of the values, and the exact value of a pre-activation. All are gathers through
`embedding_bag`: no atomics, so that they are deterministic, and no `[nnz, d]` temporary. A code that is hardly sparse
takes the dense product instead, which gives the same numbers sooner.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mechanome.dictionaries.pattern import Pattern

DENSE_ABOVE = 0.06
"""Share of active places from which a dense product is faster (measured: a gather costs about 15 times a multiply)."""

CHUNK = 1 << 22
"""Numbers in the largest temporary of the fallback of :func:`sampled_product`."""


def product(pattern: Pattern, values: Tensor, weight: Tensor) -> Tensor:
    """S W: rows of `weight [latent, d]` summed with the code's values, `[row, d]`."""
    if _full(pattern):
        return _dense(pattern, values) @ weight
    return _bag(pattern.indices, weight, pattern.offsets, values)


def transposed_product(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """S^T X: rows of `x [row, d]` summed for each latent, `[latent, d]`."""
    if _full(pattern):
        return _dense(pattern, values).T @ x
    by_latent = pattern.transposed
    return _bag(by_latent.rows, x, by_latent.offsets, values[by_latent.order])


def sampled_product(pattern: Pattern, x: Tensor, weight: Tensor) -> Tensor:
    """X W^T at the places of a pattern: `x[row] . weight[latent]` for each, `[nnz]`."""
    if _full(pattern):
        return (x @ weight.T).flatten()[pattern.flat]
    if x.device.type in _WITH_KERNEL:
        kernel = torch.ops.aten._embedding_bag_per_sample_weights_backward  # S W differentiated by its values
        return kernel(x.contiguous(), weight.contiguous(), pattern.indices, pattern.offsets, pattern.rows, 0)
    return gathered_product(pattern, x, weight)


def gathered_product(pattern: Pattern, x: Tensor, weight: Tensor) -> Tensor:
    """As :func:`sampled_product`, by gathering both sides piece by piece: for devices without the kernel."""
    step = max(1, CHUNK // max(1, x.shape[1]))
    pieces = zip(pattern.rows.split(step), pattern.indices.split(step))
    return torch.cat([torch.linalg.vecdot(x[rows], weight[latents]) for rows, latents in pieces])


def weighted_rows(values: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
    """S W as :func:`product`, differentiable in `values [nnz]` and `weight [latent, d]`."""
    return _WeightedRows.apply(values, weight, pattern)


def affine_at(
    x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None, pattern: Pattern, known: Tensor | None = None
) -> Tensor:
    """Pre-activations `(x - shift) . weight[latent] + bias[latent]` at the places of a pattern, differentiable.

    Args:
        x: rows `[row, d]`.
        weight: `[latent, d]`.
        bias: `[latent]`.
        shift: `[d]` taken from each row first; None for nothing.
        pattern: the places.
        known: the values `[nnz]`, where they are already computed; only gradients are then left to do.

    Returns:
        `[nnz]`.
    """
    return _AffineAt.apply(x, weight, bias, shift, pattern, known)


class _WeightedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(values, weight)
        ctx.pattern = pattern
        return product(pattern, values, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        of_values = sampled_product(ctx.pattern, grad, weight) if ctx.needs_input_grad[0] else None
        of_weight = transposed_product(ctx.pattern, values, grad) if ctx.needs_input_grad[1] else None
        return of_values, of_weight, None


class _AffineAt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shift: Tensor | None,
        pattern: Pattern,
        known: Tensor | None,
    ) -> Tensor:
        centered = x if shift is None else x - shift
        ctx.save_for_backward(centered, weight)
        ctx.pattern = pattern
        return known if known is not None else sampled_product(pattern, centered, weight) + bias[pattern.indices]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        centered, weight = ctx.saved_tensors
        of_x = product(ctx.pattern, grad, weight) if ctx.needs_input_grad[0] else None
        of_weight = transposed_product(ctx.pattern, grad, centered) if ctx.needs_input_grad[1] else None
        of_bias = weight.new_zeros(len(weight)).index_add_(0, ctx.pattern.indices, grad)
        # The shift is the same in every row, so its gradient needs the sums over rows only: no [row, d] product.
        of_shift = -(of_bias @ weight) if ctx.needs_input_grad[3] else None
        return of_x, of_weight, of_bias, of_shift, None, None


_WITH_KERNEL = frozenset({"cpu", "cuda"})


def _full(pattern: Pattern) -> bool:
    return pattern.nnz > DENSE_ABOVE * pattern.height * pattern.width


def _dense(pattern: Pattern, values: Tensor) -> Tensor:
    flat = values.new_zeros(pattern.height * pattern.width)
    return flat.index_copy_(0, pattern.flat, values).view(pattern.height, pattern.width)


def _bag(indices: Tensor, table: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    return functional.embedding_bag(
        indices, table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
