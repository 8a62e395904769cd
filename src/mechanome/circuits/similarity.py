"""How alike two circuits are, or two vectors of scores: Jaccard, weighted Jaccard, Kendall's tau; and chance.

All functions take stacks and the pairs of rows to compare, so that a thousand resampled circuits are one product.
"""

from __future__ import annotations

import torch
from scipy.stats import kendalltau
from torch import Tensor

_CELLS = 2**24
"""How many numbers are compared at once."""


def chance_level(size: float, candidates: int) -> float:
    """The Jaccard index to expect of two random sets of `size` out of `candidates`: k / (2N - k)."""
    return size / (2 * candidates - size)


def jaccard(sets: Tensor, pairs: Tensor) -> Tensor:
    """Shared members over all members, of pairs of sets.

    Args:
        sets: `[set, member]` of booleans.
        pairs: which sets, `[pair, 2]`.

    Returns:
        `[pair]` float64; two empty sets are alike.
    """
    used = sets[:, sets.any(0)].float()  # counts below 2^24 are exact in float32
    shared = (used @ used.T).double()
    sizes = used.sum(1).double()
    both = shared[pairs[:, 0], pairs[:, 1]]
    union = sizes[pairs[:, 0]] + sizes[pairs[:, 1]] - both
    return torch.where(union > 0, both / union.clamp(min=1), 1.0)


def weighted_jaccard(weights: Tensor, pairs: Tensor) -> Tensor:
    """Sum of the smaller over the sum of the larger size of each score, of pairs of score vectors.

    Args:
        weights: `[vector, component]`; 0 where a component is not in the circuit.
        pairs: which vectors, `[pair, 2]`.

    Returns:
        `[pair]` float64; two vectors of zeros are alike.
    """
    sizes = weights.abs()
    sizes = sizes[:, (sizes > 0).any(0)]
    found = []
    for piece in pairs.split(max(1, _CELLS // max(1, sizes.shape[1]))):
        a, b = sizes[piece[:, 0]], sizes[piece[:, 1]]
        less, more = torch.minimum(a, b).double().sum(1), torch.maximum(a, b).double().sum(1)
        found.append(torch.where(more > 0, less / more.clamp(min=torch.finfo(more.dtype).tiny), 1.0))
    return torch.cat(found)


def kendall(estimates: Tensor, pairs: Tensor) -> Tensor:
    """Kendall's tau-b of pairs of score vectors `[vector, component]`, `[pair]` float64; NaN where one is constant."""
    rows = estimates.double().numpy()
    return torch.tensor([kendalltau(rows[i], rows[j]).statistic for i, j in pairs.tolist()], dtype=torch.float64)
