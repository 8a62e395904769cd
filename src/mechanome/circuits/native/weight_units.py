"""A weight as a sum of units: each detects one direction of what comes in and writes one direction of what goes out.

    x W = sum_i (x . left_i) values_i right_i

Three ways to cut a weight so, all exact and all with orthonormal detectors: the singular value decomposition, in which
the directions that are written are orthonormal too; the rows of the weight as they are (neurons); and a random
orthonormal set of detectors, the control. Singular vectors have one free sign for each pair, fixed here so that the
largest entry of what is written is positive; where two singular values are nearly equal their vectors are not unique
(`unique`), whatever they seem to mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from mechanome.core import BadInput, NotFinite, ShapeMismatch

_GAP = 1.01
"""Singular values closer than this ratio share their vectors."""


@dataclass(frozen=True)
class Orthonormal:
    """Coordinates along orthonormal directions, from a decomposition that is at hand: a `Basis` for edits and nodes.

    `mechanome.SingularVectors` makes the decomposition itself, and so does not share one.

    Args:
        vectors: `[unit, d]`, rows orthonormal.

    Raises:
        BadInput: rows that are not orthonormal. ShapeMismatch, NotFinite: no such matrix.
    """

    vectors: Tensor

    def __post_init__(self) -> None:
        _checked(self.vectors, "orthonormal directions")
        gram = self.vectors @ self.vectors.T
        off = float((gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max())
        if off > 1e-3:
            raise BadInput("directions", f"they are not orthonormal ({off:.1g} off)", "use mechanome.Directions")

    def encode(self, x: Tensor) -> Tensor:
        """Activations `[..., d]` to coordinates `[..., unit]`.

        Raises:
            ShapeMismatch: activations of another width.
        """
        if x.shape[-1] != self.vectors.shape[1]:
            raise ShapeMismatch(
                f"directions of width {self.vectors.shape[1]}", f"the activations have {x.shape[-1]} features", "check"
            )
        return x @ self.vectors.to(x).T

    def decode(self, c: Tensor) -> Tensor:
        """Coordinates `[..., unit]` to activations `[..., d]`."""
        return c @ self.vectors.to(c)


@dataclass(frozen=True, eq=False)
class WeightUnits:
    """A weight as a sum of rank-one units.

    Args:
        left: detectors, `[unit, in]`, orthonormal.
        values: how strongly each unit writes, `[unit]`, not negative; for singular values largest first.
        right: effectors, `[unit, out]`, of length 1 (all zero where a unit writes nothing).
    """

    left: Tensor = field(repr=False)
    values: Tensor
    right: Tensor = field(repr=False)

    @classmethod
    def svd(cls, weight: Tensor) -> WeightUnits:
        """The singular value decomposition of `weight` `[in, out]`, in its own precision (fp32 at least).

        Raises:
            ShapeMismatch: no matrix. NotFinite: NaN or infinity in it.
        """
        matrix = _checked(weight, "weight")
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return cls._signed(left.T, values, right)

    @classmethod
    def svd_of_product(cls, first: Tensor, second: Tensor) -> WeightUnits:
        """The decomposition of `first @ second`, `[in, k]` and `[k, out]`, by way of a `[k, k]` core.

        The product, whose rank is at most k, is never made. As many units as k, or fewer where a factor is narrower.

        Raises:
            ShapeMismatch, NotFinite: as `svd`, or factors that do not fit.
        """
        a, b = _checked(first, "first factor"), _checked(second, "second factor")
        if a.shape[1] != b.shape[0]:
            raise ShapeMismatch(f"factors {list(a.shape)} and {list(b.shape)}", "they do not multiply", "transpose one")
        (qa, ra), (qb, rb) = torch.linalg.qr(a), torch.linalg.qr(b.T)
        left, values, right = torch.linalg.svd(ra @ rb.T, full_matrices=False)
        return cls._signed((qa @ left).T, values, right @ qb.T)

    @classmethod
    def neurons(cls, weight: Tensor) -> WeightUnits:
        """The rows of `weight` `[in, out]`: unit i detects input i alone."""
        matrix = _checked(weight, "weight")
        return cls._of_rows(torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device), matrix)

    @classmethod
    def rotated(cls, weight: Tensor, seed: int = 0) -> WeightUnits:
        """Random orthonormal detectors over all inputs of `weight` `[in, out]`, uniform over rotations: the control."""
        matrix = _checked(weight, "weight")
        turn = random_rotation(len(matrix), seed, matrix.dtype).to(matrix.device)
        return cls._of_rows(turn, turn @ matrix)

    @classmethod
    def rotated_within(cls, weight: Tensor, seed: int = 0) -> WeightUnits:
        """As many random units as there are singular values: the singular detectors, rotated among themselves."""
        found = cls.svd(weight)
        turn = random_rotation(len(found.values), seed, found.left.dtype).to(found.left.device)
        return cls._of_rows(turn @ found.left, turn @ (found.values[:, None] * found.right))

    @classmethod
    def _of_rows(cls, left: Tensor, rows: Tensor) -> WeightUnits:
        values = rows.norm(dim=1)
        return cls(left, values, rows / values.clamp(min=torch.finfo(rows.dtype).tiny)[:, None])

    @classmethod
    def _signed(cls, left: Tensor, values: Tensor, right: Tensor) -> WeightUnits:
        sign = right.gather(1, right.abs().argmax(1, keepdim=True)).sign()
        sign = torch.where(sign == 0, torch.ones_like(sign), sign)
        return cls((left * sign).contiguous(), values, (right * sign).contiguous())

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def reads(self) -> Orthonormal:
        """The detectors as a `Basis` for what the weight reads."""
        return Orthonormal(self.left)

    @cached_property
    def writes(self) -> Orthonormal:
        """The effectors as a `Basis` for what the weight writes; a decomposition into singular vectors only.

        Raises:
            BadInput: effectors that are not orthonormal.
        """
        return Orthonormal(self.right)

    @cached_property
    def unique(self) -> Tensor:
        """Which singular vectors are determined, `[unit]`: no neighbor's value is within 1 %, and theirs is not 0."""
        apart = self.values[:-1] > _GAP * self.values[1:]
        above = torch.ones(1, dtype=torch.bool, device=apart.device)
        alone = torch.cat([above, apart]) & torch.cat([apart, above])
        return alone & (self.values > 1e-6 * self.values.max())

    def take(self, units: Sequence[int] | Tensor) -> WeightUnits:
        """Some of the units, in the given order."""
        index = torch.as_tensor(units, dtype=torch.long, device=self.values.device)
        return WeightUnits(self.left[index], self.values[index], self.right[index])

    def weight(self) -> Tensor:
        """The sum of the units, `[in, out]`."""
        return (self.left.T * self.values) @ self.right

    def error(self, weight: Tensor) -> float:
        """How far the sum is from a weight: Frobenius norm of the difference over that of the weight."""
        exact = weight.double()
        return float((self.weight().double() - exact).norm() / exact.norm())


SPLITS: dict[str, Callable[[Tensor, int], WeightUnits]] = {
    "svd": lambda weight, seed: WeightUnits.svd(weight),
    "neurons": lambda weight, seed: WeightUnits.neurons(weight),
    "rotated": WeightUnits.rotated,
    "rotated-within": WeightUnits.rotated_within,
}
"""Ways to cut a weight into units, by name: from the weight and a seed (of the random ones)."""


def random_rotation(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A random orthogonal matrix `[n, n]`, uniform (Haar)."""
    q, r = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=dtype))
    return q * r.diagonal().sign()


def _checked(weight: Tensor, what: str) -> Tensor:
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        given = list(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ShapeMismatch(f"{what}: {given}", "it must be a matrix [in, out]", "give model.weight(name).value")
    if not bool(torch.isfinite(weight).all()):
        raise NotFinite(what, "it holds NaN or infinity", "check how it was computed")
    return weight.detach() if weight.dtype == torch.float64 else weight.detach().float()
