"""Cuts: how the tensor at a site falls into what each of a group of sources carries, and back.

Every cut is linear in what sources carry: the site's tensor is the sum of the parts that its groups make of it. So one
gradient at the site gives the gradients of all of them, however they are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mechanome.engine import Basis


class Cut(Protocol):
    """Between the tensor of a site, `[..., feature]` or `[..., unit, feature]`, and values `[..., unit, width]`."""

    def values(self, x: Tensor) -> Tensor:
        """What sources carry where the site holds `x`."""
        ...

    def slopes(self, gradient: Tensor) -> Tensor:
        """The gradient by what sources carry, from that at the site."""
        ...

    def part(self, values: Tensor) -> Tensor:
        """What sources with these values put at the site."""
        ...


@dataclass(frozen=True)
class Heads:
    """The site has an axis of units."""

    def values(self, x: Tensor) -> Tensor:
        return x

    def slopes(self, gradient: Tensor) -> Tensor:
        return gradient

    def part(self, values: Tensor) -> Tensor:
        return values


@dataclass(frozen=True)
class Whole:
    """One source carries all of the site."""

    def values(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2)

    def slopes(self, gradient: Tensor) -> Tensor:
        return gradient.unsqueeze(-2)

    def part(self, values: Tensor) -> Tensor:
        return values.squeeze(-2)


@dataclass(frozen=True)
class Each:
    """Each number of the site's last axis is a source: all neurons."""

    def values(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1)

    def slopes(self, gradient: Tensor) -> Tensor:
        return gradient.unsqueeze(-1)

    def part(self, values: Tensor) -> Tensor:
        return values.squeeze(-1)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Sources carry one coordinate each.

    Args:
        basis: the coordinates.
        vectors: what each adds at the site for a coordinate of 1, `[unit, feature]`.
    """

    basis: Basis
    vectors: Tensor

    def values(self, x: Tensor) -> Tensor:
        return self.basis.encode(x).unsqueeze(-1)

    def slopes(self, gradient: Tensor) -> Tensor:
        return (gradient @ self.vectors.to(gradient).T).unsqueeze(-1)

    def part(self, values: Tensor) -> Tensor:
        return self.basis.decode(values.squeeze(-1))


@dataclass(frozen=True, eq=False)
class Missed:
    """One source carries what a basis misses of the site."""

    basis: Basis

    def values(self, x: Tensor) -> Tensor:
        return (x - self.basis.decode(self.basis.encode(x))).unsqueeze(-2)

    def slopes(self, gradient: Tensor) -> Tensor:
        return gradient.unsqueeze(-2)

    def part(self, values: Tensor) -> Tensor:
        return values.squeeze(-2)
