"""Sparse attention decomposition: a head's preference for one token, as a sum over its singular vectors.

Paper 28 (Franco, Loughridge & Crovella 2026). For a query r and its m visible keys s_i,

    relative_j = score_j - mean over the others of score_i = sum_k c_k,
    c_k = (r . u_k) (u_k^T (Omega_j s_j - mean_i Omega_i s_i)),

u_k the left singular vectors of Omega_j. Under rotary positions every key has its own Omega_i; all of them share the
column space of the query side, so the terms still sum exactly. Few large terms mean that the head looks for few things.
Two controls use the same numbers: `rotated` turns both sides by one random rotation, which keeps the sum, and
`respectral` keeps the singular values and turns the two sides apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.circuits.native.weight_units import random_rotation
from mechanome.core import ShapeMismatch


def sparseness(terms: Tensor) -> Tensor:
    """(mean |c|)^2 / mean c^2 over the last axis, in (0, 1]; small where few terms hold most (Treves & Rolls)."""
    square = terms.square().mean(-1)
    return terms.abs().mean(-1).square() / square.clamp(min=torch.finfo(terms.dtype).tiny)


def needed(terms: Tensor) -> Tensor:
    """How many terms, largest first, it takes to reach their own sum, `[...]`; 0 where the sum is not positive."""
    total = terms.sum(-1, keepdim=True)
    reached = terms.sort(-1, descending=True).values.cumsum(-1) >= total - 1e-9 * total.abs()
    first = reached.double().argmax(-1) + 1
    return torch.where(total[..., 0] > 0, first, torch.zeros_like(first))


def relative(scores: Tensor, key: int, others: Tensor) -> Tensor:
    """A score against the mean of other ones.

    Args:
        scores: of one query, `[key]`. key: whose. others: which keys the mean is over, booleans `[key]`.
    """
    return scores[key] - scores[others].mean()


def sides(left: Tensor, values: Tensor, query: Tensor, difference: Tensor) -> tuple[Tensor, Tensor]:
    """The two factors of every term.

    Args:
        left: u_k, `[unit, in]`. values: sigma_k, `[unit]`; units of no strength have no term.
        query: r, `[in]`.
        difference: Omega_j s_j - mean_i Omega_i s_i, `[in]`.

    Returns:
        `r . u_k sigma_k` and `u_k . difference / sigma_k`, `[unit]`; their products are the terms.

    Raises:
        ShapeMismatch: vectors that do not fit.
    """
    if query.shape != difference.shape or left.shape != (len(values), len(query)):
        shapes = f"{list(left.shape)}, {list(values.shape)}, {list(query.shape)}, {list(difference.shape)}"
        raise ShapeMismatch("the sides of attention terms", f"shapes {shapes} do not fit", "give one head and one pair")
    real = values > 1e-12 * values.max()
    first = left @ query * values
    second = torch.where(real, left @ difference / torch.where(real, values, torch.ones_like(values)), values * 0)
    return first, second


def rotated(first: Tensor, second: Tensor, seed: int) -> Tensor:
    """Terms after one random rotation of both sides: another basis of the same space, with the same sum."""
    turn = random_rotation(len(first), seed, first.dtype)
    return (first @ turn) * (second @ turn)


def respectral(first: Tensor, second: Tensor, values: Tensor, seed: int) -> Tensor:
    """Terms with the same singular values and the two bases turned apart: what few large values alone would give."""
    one, other = (random_rotation(len(first), 2 * seed + i, first.dtype) for i in range(2))
    bare = first / values.clamp(min=torch.finfo(values.dtype).tiny)
    return values * (bare @ one) * (second @ other)
