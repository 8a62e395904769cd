"""The affine map between activations and the space a dictionary works in: `(x - shift) * scale`.

It is an explicit part of a dictionary and travels with it, so that scaled inputs are never compared with unscaled
outputs; `fold` in :mod:`mechanome.dictionaries.folding` moves it into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import NotFinite, ShapeMismatch, TooFewRows, UnknownName, nearest


@dataclass(frozen=True, eq=False)
class Affine:
    """`x -> (x - shift) * scale`.

    Args:
        shift: `[d]`.
        scale: a number `[]`, numbers `[d]`, or a matrix `[d, d]` that multiplies rows from the right.
        kind: how it was made: "none", "scale", "center" or "whiten".
    """

    shift: Tensor
    scale: Tensor
    kind: str = "none"

    @classmethod
    def none(cls, d: int) -> Affine:
        """Leaves activations as they are."""
        return cls(torch.zeros(d), torch.ones(()))

    @classmethod
    def estimate(cls, x: Tensor, kind: str = "scale") -> Affine:
        """From rows of activations.

        Args:
            x: `[row, d]`; statistics are taken in float64.
            kind: "none"; "scale" (mean norm becomes sqrt(d)); "center" (mean 0, then "scale"); "whiten" (mean 0,
                covariance 1, of which directions with less than 1e-6 of the largest variance are left unscaled).

        Raises:
            UnknownName: another kind.
            TooFewRows: no rows, or fewer than d to whiten.
            NotFinite: NaN or infinity in the rows.
        """
        if kind not in KINDS:
            raise UnknownName(f"normalization {kind!r}", "it does not exist", nearest(kind, KINDS))
        if not isinstance(x, Tensor) or x.dim() != 2:
            shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ShapeMismatch(f"activations of shape {shape}", "they must be [row, d]", "flatten the rows")
        if len(x) < (x.shape[1] + 1 if kind == "whiten" else 1):
            raise TooFewRows(f"{len(x)} rows to estimate {kind!r}", f"d is {x.shape[1]}", "give more rows")
        if not bool(torch.isfinite(x).all()):
            raise NotFinite("activations", "NaN or infinity among the rows", "drop those rows")
        shift, scale = KINDS[kind](x.double())
        return cls(shift.float(), scale.float(), kind)

    @classmethod
    def cat(cls, parts: Sequence[Affine]) -> Affine:
        """The maps of several sites as one of their activations side by side."""
        if len(parts) == 1:
            return parts[0]
        shift = torch.cat([part.shift for part in parts])
        if any(part.scale.dim() == 2 for part in parts):
            return cls(shift, torch.block_diag(*(part.matrix() for part in parts)), parts[0].kind)
        return cls(shift, torch.cat([part.scale.expand(len(part.shift)) for part in parts]), parts[0].kind)

    def matrix(self) -> Tensor:
        """The scale as a matrix `[d, d]`."""
        return self.scale if self.scale.dim() == 2 else torch.diag(self.scale.expand(len(self.shift)))

    def __call__(self, x: Tensor) -> Tensor:
        """Activations `[..., d]` in the dictionary's space."""
        if self.kind == "none":
            return x
        centered = x if self.kind == "scale" else x - self.shift
        return centered @ self.scale if self.scale.dim() == 2 else centered * self.scale

    def invert(self, y: Tensor) -> Tensor:
        """Back to activations."""
        return y if self.kind == "none" else self.directions(y) + self.shift

    def directions(self, w: Tensor) -> Tensor:
        """Directions `[..., d]` of the dictionary's space as directions among activations (no shift)."""
        if self.kind == "none":
            return w
        if self.scale.dim() < 2:
            return w / self.scale
        return torch.linalg.solve(self.scale, w.reshape(-1, w.shape[-1]), left=False).view_as(w)

    def to(self, *args: Any, **kwargs: Any) -> Affine:
        """As `Tensor.to`."""
        return Affine(self.shift.to(*args, **kwargs), self.scale.to(*args, **kwargs), self.kind)


def _unit(norm: float, d: int) -> float:
    """What makes a mean norm sqrt(d); 1 where all activations are zero."""
    return math.sqrt(d) / norm if norm else 1.0


def _none(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_zeros(x.shape[1]), x.new_ones(())


def _scale(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_zeros(x.shape[1]), x.new_tensor(_unit(float(x.norm(dim=1).mean()), x.shape[1]))


def _center(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    return mean, _scale(x - mean)[1]


def _whiten(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), _root(torch.cov(x.T))


def _root(covariance: Tensor) -> Tensor:
    """The inverse square root of a covariance; directions that do not vary stay as they are."""
    variance, axes = torch.linalg.eigh(covariance)
    varies = variance > 1e-6 * variance.max()
    return (axes * torch.where(varies, variance.clamp_min(1e-300).rsqrt(), 1.0)) @ axes.T


KINDS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "none": _none,
    "scale": _scale,
    "center": _center,
    "whiten": _whiten,
}
