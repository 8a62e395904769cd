"""Dictionaries against known features and against each other: one-to-one matches of directions.

A match is the assignment with the largest sum of cosines (Hungarian algorithm, exact). Cosines are signed, because a
sparse code that cannot be negative makes an atom and its opposite different features; `signed=False` compares lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from mechanome.core import BadInput, NotFinite, ShapeMismatch
from mechanome.dictionaries.metrics.measure import Measure, measure

RECALLED = 0.9
"""A planted feature counts as found from this cosine on."""
MOST = 6_000
"""Latents up to which the exact assignment is made; it grows with their cube."""
_ROWS = 2_048


@dataclass(frozen=True)
class Match:
    """A one-to-one match between two sets of directions.

    Args:
        first, second: `[pair]`, indices of what is matched.
        cosine: `[pair]`, float64.
        count: of the first set; what is beyond the pairs has no partner.
    """

    first: Tensor
    second: Tensor
    cosine: Tensor
    count: int


def unit(directions: Tensor, what: str) -> Tensor:
    """Directions `[direction, d]` of length 1, float64; a direction of length 0 stays 0.

    Raises:
        ShapeMismatch: not a matrix. NotFinite: NaN or infinity.
    """
    if directions.dim() != 2 or not directions.numel():
        raise ShapeMismatch(f"{what} of shape {list(directions.shape)}", "they must be [direction, d]", "reshape them")
    rows = directions.detach().to("cpu", torch.float64)
    if not bool(torch.isfinite(rows).all()):
        raise NotFinite(what, "they hold NaN or infinity", "check how they were computed")
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)


def match(first: Tensor, second: Tensor, *, signed: bool = True) -> Match:
    """Match two sets of directions, `[direction, d]` each.

    Raises:
        ShapeMismatch: of different width. NotFinite: NaN or infinity.
        BadInput: more directions than `MOST` on both sides.
    """
    a, b = unit(first, "directions"), unit(second, "directions")
    if a.shape[1] != b.shape[1]:
        raise ShapeMismatch("directions", f"widths {a.shape[1]} and {b.shape[1]}", "compare those of one site")
    if min(len(a), len(b)) > MOST:
        why = f"{len(a)} and {len(b)} are too many for an exact assignment"
        raise BadInput("a one-to-one match", why, "use nearest_stability, or compare the latents that are alive")
    cosines = a @ b.T if signed else (a @ b.T).abs()
    rows, columns = linear_sum_assignment(cosines.numpy(), maximize=True)
    rows, columns = torch.from_numpy(rows), torch.from_numpy(columns)
    return Match(rows, columns, cosines[rows, columns], len(a))


def planted_mcc(features: Tensor, atoms: Tensor, *, signed: bool = True) -> tuple[Measure, Measure]:
    """Whether a dictionary found planted features: mean matched cosine, and recall.

    Args:
        features: the planted ones `[feature, d]`. atoms: of the dictionary `[latent, d]`.
        signed: whether a direction and its opposite differ.

    Returns:
        `planted_mcc.v1` and `planted_recall.v1`.
    """
    found = match(features, atoms, signed=signed)
    n = found.count
    recalled = int((found.cosine >= RECALLED).sum())
    return measure("planted_mcc.v1", float(found.cosine.sum()) / n, n), measure("planted_recall.v1", recalled / n, n)


def seed_stability(first: Tensor, second: Tensor, *, signed: bool = True) -> Measure:
    """How much two dictionaries have in common: mean matched cosine of their atoms `[latent, d]`."""
    found = match(first, second, signed=signed)
    return measure("seed_stability.v1", float(found.cosine.mean()), len(found.cosine))


def nearest_stability(first: Tensor, second: Tensor) -> Measure:
    """Mean over atoms of the first of the largest cosine to the second; several may share a partner.

    For dictionaries too large to match one to one. It is never below `seed_stability` of equally large ones.
    """
    a, b = unit(first, "atoms"), unit(second, "atoms")
    if a.shape[1] != b.shape[1]:
        raise ShapeMismatch("atoms", f"widths {a.shape[1]} and {b.shape[1]}", "compare those of one site")
    best = torch.cat([(part @ b.T).amax(1) for part in a.split(_ROWS)])
    return measure("nearest_stability.v1", float(np.mean(best.numpy())), len(best))
