"""A `Basis` says in which coordinates an edit works: directions, a subspace, neurons, singular vectors, latents.

Every basis maps activations to coordinates (`encode`) and coordinates back to activations (`decode`). An edit
adds `decode(new) - decode(old)`, so whatever a basis cannot express stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite, ShapeMismatch
from mechanome.engine.plain import integers, whole


@runtime_checkable
class Basis(Protocol):
    """Coordinates for activations; anything with these two methods is one (a sparse autoencoder is)."""

    def encode(self, x: Tensor) -> Tensor:
        """Activations `[..., d]` to coordinates `[..., k]`."""
        ...

    def decode(self, c: Tensor) -> Tensor:
        """Coordinates `[..., k]` to activations `[..., d]`."""
        ...


def as_basis(given: Any) -> Any:
    """What has a basis as that basis: a dictionary, whose own codes are sparse, gives its latents as coordinates."""
    make = None if isinstance(given, type) else getattr(given, "basis", None)
    return make() if callable(make) else given


def _matrix(vectors: Any, what: str) -> Tensor:
    try:
        given = torch.as_tensor(vectors)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(what, f"a {type(vectors).__name__} is not a matrix ({error})", "give a tensor") from error
    if given.is_complex():
        raise BadInput(what, "its numbers are complex", "give real numbers, [k, d] or [d]")
    matrix = given.to(torch.float32)
    matrix = matrix.unsqueeze(0) if matrix.dim() == 1 else matrix
    if matrix.dim() != 2:
        raise ShapeMismatch(f"{what} of shape {list(matrix.shape)}", "it must be [k, d] or [d]", "reshape it")
    if not bool(torch.isfinite(matrix).all()):
        raise NotFinite(what, "it holds NaN or infinity", "check how it was computed")
    return matrix


def _fitting(x: Tensor, width: int, what: str) -> Tensor:
    if x.shape[-1] != width:
        raise ShapeMismatch(
            f"{what} of width {width}", f"the activations have {x.shape[-1]} features", f"give d = {x.shape[-1]}"
        )
    return x


@dataclass(frozen=True)
class Directions:
    """Named directions, not necessarily orthogonal: coordinate i is what direction i contributes.

    Args:
        vectors: `[k, d]` or `[d]`, linearly independent.

    Raises:
        BadInput: zero or linearly dependent vectors.
    """

    vectors: Tensor
    _dual: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        matrix = _matrix(self.vectors, "directions")
        if int(torch.linalg.matrix_rank(matrix)) < matrix.shape[0]:
            raise BadInput("directions", "a vector is zero or depends on the others", "drop it, or use Subspace")
        object.__setattr__(self, "vectors", matrix)
        object.__setattr__(self, "_dual", torch.linalg.pinv(matrix))

    def encode(self, x: Tensor) -> Tensor:
        return _fitting(x, self.vectors.shape[1], "directions") @ self._dual.to(x)

    def decode(self, c: Tensor) -> Tensor:
        return c @ self.vectors.to(c)


@dataclass(frozen=True)
class Subspace:
    """The span of some vectors, in an orthonormal basis of it.

    Args:
        vectors: `[k, d]`; dependent vectors only lower the dimension.
    """

    vectors: Tensor
    _basis: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        matrix = _matrix(self.vectors, "subspace")
        _, values, right = torch.linalg.svd(matrix, full_matrices=False)
        rank = int((values > values.max() * 1e-6).sum())
        if values.max() == 0:
            raise BadInput("subspace", "all its vectors are zero", "give at least one direction")
        object.__setattr__(self, "vectors", matrix)
        object.__setattr__(self, "_basis", right[:rank])

    def encode(self, x: Tensor) -> Tensor:
        return _fitting(x, self._basis.shape[1], "subspace") @ self._basis.to(x).T

    def decode(self, c: Tensor) -> Tensor:
        return c @ self._basis.to(c)


@dataclass(frozen=True)
class Neurons:
    """Some units of the last axis.

    Args:
        indices: which units.
        width: size of the last axis.
    """

    indices: Sequence[int]
    width: int

    def __post_init__(self) -> None:
        if whole(self.width) is None:
            raise BadInput(f"width {self.width!r}", "it is not an integer", "give the size of the last axis")
        object.__setattr__(self, "indices", integers(self.indices, "neurons"))
        wrong = [i for i in self.indices if not 0 <= i < self.width]
        if wrong or len(set(self.indices)) != len(self.indices) or not self.indices:
            raise BadInput(
                f"neurons {list(self.indices)[:5]}", f"indices must be distinct, 0 to {self.width - 1}", "check them"
            )

    def encode(self, x: Tensor) -> Tensor:
        return _fitting(x, self.width, "neurons")[..., list(self.indices)]

    def decode(self, c: Tensor) -> Tensor:
        x = c.new_zeros(*c.shape[:-1], self.width)
        x[..., list(self.indices)] = c
        return x


@dataclass(frozen=True)
class SingularVectors:
    """Right singular vectors of a weight matrix that reads (or left ones of a matrix that writes) the activations.

    Args:
        weight: `[d, m]` reading `x @ weight`, or with `writes=True` `[m, d]` writing `h @ weight`.
        k: how many, largest singular values first; None for all.
        writes: which side of the matrix the activations are on.
    """

    weight: Tensor
    k: int | None = None
    writes: bool = False
    _basis: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weight = _matrix(self.weight, "weight")
        left, _, right = torch.linalg.svd(weight, full_matrices=False)
        rows = right if self.writes else left.T
        if self.k is not None and not 0 < self.k <= rows.shape[0]:
            raise BadInput(f"k = {self.k}", f"there are {rows.shape[0]} singular vectors", "choose fewer")
        object.__setattr__(self, "_basis", rows[: self.k].contiguous())

    def encode(self, x: Tensor) -> Tensor:
        return _fitting(x, self._basis.shape[1], "singular vectors") @ self._basis.to(x).T

    def decode(self, c: Tensor) -> Tensor:
        return c @ self._basis.to(c)
