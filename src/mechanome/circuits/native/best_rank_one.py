"""The theorem behind it: which rank-one map tells best when two features meet.

Paper 28 (Franco, Loughridge & Crovella 2026), theorem 1. For features X `[feature, d]` on the query side and Y on the
key side, ask for Omega with x_i Omega y_j = 1 where i = j = 0 and 0 elsewhere. The best rank-one answer in the least
squares is u v^T with u proportional to (X^T X)^{-1} x_0 and v to (Y^T Y)^{-1} y_0. For isotropic features these are
x_0 and y_0 themselves: the singular vectors are the features.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.core import ShapeMismatch


def predicted(features: Tensor, which: int = 0) -> Tensor:
    """The direction that the theorem names, `[d]`, of length 1, float64.

    Args:
        features: `[feature, d]`, spanning all d dimensions. which: the one that is to be told.

    Raises:
        ShapeMismatch: features that do not span their space, so that the direction is not determined.
    """
    x = features.double()
    if x.dim() != 2 or int(torch.linalg.matrix_rank(x)) < x.shape[1]:
        raise ShapeMismatch(f"features {list(features.shape)}", "they do not span their space", "give more features")
    found = torch.linalg.solve(x.T @ x, x[which])
    return found / found.norm()


def fitted(query: Tensor, key: Tensor, seed: int = 0, starts: int = 4, steps: int = 200) -> tuple[Tensor, Tensor]:
    """The best rank-one map found by descent from random starts, knowing nothing of the theorem.

    Args:
        query, key: features of the two sides, `[feature, d]`; the first of each is the one that counts.
        seed: of the starts. starts: of which the best is kept: descent can end at the saddle where the map is 0.
        steps: of L-BFGS at most.

    Returns:
        the two directions, of length 1, float64.
    """
    x, y = query.double(), key.double()
    generator = torch.Generator().manual_seed(seed)
    ends = [_descended(x, y, generator, steps) for _ in range(starts)]
    _, u, v = min(ends, key=lambda end: end[0])
    return u / u.norm(), v / v.norm()


def _descended(x: Tensor, y: Tensor, generator: torch.Generator, steps: int) -> tuple[float, Tensor, Tensor]:
    u, v = (torch.randn(f.shape[1], generator=generator, dtype=torch.float64).requires_grad_() for f in (x, y))
    target = torch.zeros(len(x), len(y), dtype=torch.float64)
    target[0, 0] = 1.0
    optimizer = torch.optim.LBFGS(
        [u, v], max_iter=steps, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = (torch.outer(x @ u, y @ v) - target).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return float(loss().detach()), u.detach(), v.detach()
