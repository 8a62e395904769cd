"""What planted features are made of: frequencies, directions, a hierarchy, correlations, each checked when given."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch, UnknownName, nearest
from mechanome.core.numeric import numbers


def block_correlation(n_features: int, size: int, rho: float) -> Tensor:
    """Correlations ``[feature, feature]``: ``rho`` inside consecutive blocks of ``size`` features, 0 between blocks.

    Raises:
        BadInput: no such correlation exists (``rho`` must lie between -1 / (size - 1) and 1).
    """
    if size < 2 or not -1 / (size - 1) <= rho <= 1:
        raise BadInput("correlation", f"{rho} in blocks of {size}", "use blocks of 2 or more and rho between 0 and 1")
    block = torch.arange(n_features) // size
    matrix = (block[:, None] == block).double() * rho
    return matrix.fill_diagonal_(1.0)


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator of its own for each purpose: 128 bits of key, so that no two batches share their numbers."""
    key = hashlib.sha256(json.dumps([seed, *purpose]).encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def power_law(n: int, active: float, decay: float, given: Any) -> np.ndarray:
    """How often each feature is active, ``[feature]`` float64: as given, or a power law with ``active`` in sum."""
    if given is not None:
        chosen = numbers(given, "frequencies")
        if chosen.shape != (n,):
            raise ShapeMismatch("frequencies", f"shape {chosen.shape} for {n} features", "give one a feature")
        if chosen.min() < 0 or chosen.max() > 1:
            raise BadInput("frequencies", "a probability outside 0 to 1", "give probabilities")
        return chosen.copy()
    if not 0 < active <= n:
        raise BadInput("active", f"{active} of {n} features", f"give a number above 0, up to {n}")
    weights = np.arange(1, n + 1, dtype=np.float64) ** -decay
    always = 0  # the most frequent features that the power law would push past 1
    while True:
        rest = weights[always:] * ((active - always) / weights[always:].sum()) if always < n else weights[:0]
        passed = int((rest > 1).sum())
        if not passed:
            return np.concatenate([np.ones(always), rest])
        always += passed


def directions(n: int, d: int, features: Any, seed: int) -> Tensor:
    """Directions ``[feature, d]``: as given, or drawn with norm 1."""
    if isinstance(features, str):
        if features not in ("random", "orthogonal"):
            raise UnknownName(
                f"features {features!r}", "no such directions", nearest(features, ("random", "orthogonal"))
            )
        drawn = generator(seed, "features").standard_normal((n, d))
        if features == "orthogonal":
            if n > d:
                raise BadInput("features", f"{n} directions cannot be orthogonal in {d} dimensions", "use 'random'")
            drawn = np.linalg.qr(drawn.T)[0].T
        return torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).float()
    chosen = numbers(features, "features")
    if chosen.shape != (n, d):
        raise ShapeMismatch("features", f"shape {chosen.shape}, expected {(n, d)}", "give one direction a row")
    return torch.from_numpy(chosen).float()


def offset(d: int, bias: Any, seed: int) -> Tensor:
    """The vector ``[d]`` that every row carries: as given, or of that norm."""
    if isinstance(bias, int | float):
        drawn = generator(seed, "bias").standard_normal(d)
        return torch.from_numpy(drawn * (bias / np.linalg.norm(drawn))).float()
    chosen = numbers(bias, "bias")
    if chosen.shape != (d,):
        raise ShapeMismatch("bias", f"shape {chosen.shape}, expected {(d,)}", "give a norm, or one number a coordinate")
    return torch.from_numpy(chosen).float()


def parents_of(hierarchy: Mapping[int, int], frequencies: np.ndarray) -> np.ndarray:
    """The parent of each feature, -1 for none; every chain ends, and nobody is more frequent than the parent."""
    n = len(frequencies)
    parents = np.full(n, -1, dtype=np.int64)
    if not isinstance(hierarchy, Mapping):
        raise BadInput("hierarchy", f"a {type(hierarchy).__name__} is no mapping", "give {child: parent}")
    for child, parent in hierarchy.items():
        if not (0 <= child < n and 0 <= parent < n):
            raise BadInput("hierarchy", f"{child} -> {parent} with {n} features", f"name features 0 to {n - 1}")
        if frequencies[child] > frequencies[parent]:
            why = f"child {child} ({frequencies[child]:.3g}) is more frequent than parent {parent}"
            raise BadInput("hierarchy", why, "let the more frequent feature be the parent")
        parents[child] = parent
    for start in hierarchy:
        if start in ancestors(parents, start):
            raise BadInput("hierarchy", f"feature {start} is its own ancestor", "break the circle")
    return parents


def ancestors(parents: np.ndarray, start: int) -> list[int]:
    """Parent, parent's parent and so on; a circle is walked once."""
    found: list[int] = []
    at = int(parents[start])
    while at >= 0 and at not in found:
        found.append(at)
        at = int(parents[at])
    return found


def downwards(parents: np.ndarray) -> list[int]:
    """Features with parents, every parent before its children."""
    return sorted(np.flatnonzero(parents >= 0).tolist(), key=lambda child: len(ancestors(parents, child)))


def conditional(frequencies: np.ndarray, parents: np.ndarray) -> np.ndarray:
    """The probability of being active where the parent is, so that the named frequency is the one of all rows."""
    above = np.where(parents >= 0, frequencies[parents], 1.0)
    return np.divide(frequencies, above, out=np.zeros_like(frequencies), where=above > 0)


def square_root(correlation: Any, n: int, parents: np.ndarray) -> np.ndarray:
    """A square root of the correlation matrix, which may be singular."""
    matrix = numbers(correlation, "correlation")
    if matrix.shape != (n, n):
        raise ShapeMismatch("correlation", f"shape {matrix.shape} for {n} features", "give a square of that size")
    if not (np.allclose(matrix, matrix.T) and np.allclose(np.diag(matrix), 1)):
        raise BadInput("correlation", "not symmetric with ones on the diagonal", "give a correlation matrix")
    sizes, vectors = np.linalg.eigh(matrix)
    if sizes.min() < -1e-8:
        raise BadInput("correlation", f"an eigenvalue is {sizes.min():.3g}", "give a positive semidefinite matrix")
    for child in downwards(parents):
        if any(matrix[child, above] != 0 for above in ancestors(parents, child)):
            why = f"feature {child} is correlated with an ancestor, so its frequency could not be kept"
            raise BadInput("correlation", why, "set that correlation to 0: the hierarchy already ties them")
    return np.asarray(vectors * np.sqrt(sizes.clip(0)))
