"""From shares per layer, head and query to one number per token.

Signed shares of heads that oppose each other cancel in a mean, so three means are offered; and the first position of a
causal model is left out of means over queries, because it sees only itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from mechanome.core import TooFewRows, UnknownName, nearest

Aggregate = Literal["signed", "absolute", "normalized"]


def _normalized(shares: Tensor) -> Tensor:
    return shares / shares.abs().sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "signed": lambda shares: shares,
    "absolute": torch.abs,
    "normalized": _normalized,
}
"""What is done to shares `[..., key]` before they are averaged: nothing, |c|, or c / sum_j |c_j|."""


def prepared(shares: Tensor, aggregate: str) -> Tensor:
    """Shares `[..., key]` as they enter a mean.

    Raises:
        UnknownName: no such aggregate.
    """
    if aggregate not in AGGREGATES:
        raise UnknownName(f"aggregate '{aggregate}'", "there is no such mean", nearest(aggregate, AGGREGATES))
    return AGGREGATES[aggregate](shares)


def mean_over_queries(shares: Tensor, queries: tuple[int, ...], causal: bool) -> Tensor:
    """The mean over the queries that can see a key, `[..., query, key]` to `[..., key]`.

    In a causal model query 0 is left out (it sees only itself), and a key is averaged over itself and later queries; a
    key that none of the queries can see is NaN.

    Raises:
        TooFewRows: only query 0 was read.
    """
    place = torch.tensor(queries, device=shares.device)
    keys = torch.arange(shares.shape[-1], device=shares.device)
    sees = torch.ones(len(place), len(keys), dtype=torch.bool, device=shares.device)
    if causal:
        sees = (place[:, None] >= keys) & (place[:, None] > 0)
    if not bool(sees.any()):
        raise TooFewRows("a mean over queries", "the first position sees only itself", "read more queries")
    total = torch.where(sees, shares, torch.zeros((), dtype=shares.dtype, device=shares.device)).sum(-2)
    return total / sees.sum(-2).to(shares.dtype)
