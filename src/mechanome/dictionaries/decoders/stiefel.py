"""Back to orthonormal columns after a step: the QR retraction of the Stiefel manifold, made unique by its diagonal."""

from __future__ import annotations

import torch
from torch import Tensor

VANISHED, FAINT, JITTER = 1e-6, 1e-4, 1e-6
"""Norms below which a block is left alone, or mended by the jitter first (paper 42, section 3)."""


def retract(block: Tensor, against: Tensor | None = None) -> Tensor:
    """The orthonormal columns nearest in the sense of QR.

    Args:
        block: `[m, r]`, r at most m less the columns of `against`.
        against: orthonormal columns `[m, s]` the result must be orthogonal to.

    Returns:
        `[m, r]`; the block itself where it has vanished.
    """
    norm = float(block.norm())
    if norm < VANISHED:
        return block
    if norm < FAINT:
        block = block + JITTER * torch.eye(*block.shape, dtype=block.dtype, device=block.device)
    if against is not None and against.shape[1]:
        for _ in range(2):  # twice is enough in floating point
            block = block - against @ (against.T @ block)
    q, r = torch.linalg.qr(block)
    return q * torch.where(r.diagonal() < 0, -1.0, 1.0)
