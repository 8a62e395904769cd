"""How targets turn a changed stream into what they read: each with its own norm and its own projection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mechanome.circuits.masked_streams import Base
from mechanome.circuits.wiring import Reads


@dataclass(frozen=True, eq=False)
class Reader:
    """How a group of targets turns its stream into what it reads, in terms of changes.

    Norm and projection are one product: with the norm's gain and centering folded into the weights, only the scale of
    each token is left to compute.
    """

    base: Base
    reads: Reads

    @classmethod
    def of(cls, base: Base, reads: Reads) -> Reader:
        """The reader of a group of targets; the same one for all passes over a base."""
        return base.readers.setdefault(reads, cls(base, reads))

    @cached_property
    def folded(self) -> Tensor:
        """The weights behind the norm, `[unit, d_model, width]`."""
        assert self.reads.weight is not None
        if self.reads not in self.base.folded:
            norm = self.reads.norm
            self.base.folded[self.reads] = self.reads.weight if norm is None else norm.readers(self.reads.weight)
        return self.base.folded[self.reads]

    @cached_property
    def stream(self) -> Tensor | None:
        """The base's stream before the norm, `[token, d_model]`; None where changes are read as they are."""
        return None if self.reads.norm is None else self.base.flat(self.reads.stream)  # type: ignore[arg-type]

    @cached_property
    def constant(self) -> Tensor:
        """What is added to the product, biases mostly, `[token, unit, width]`."""
        value = self.base.flat(self.reads.site)
        if self.reads.norm is None:
            return value
        assert self.stream is not None
        own = torch.einsum("td,udw->tuw", self.stream, self.folded) * self.scale(self.stream)[:, None]
        return value - own

    def scale(self, x: Tensor) -> Tensor:
        """What the norm multiplies a stream by, `[..., 1]` for `[..., d_model]`."""
        assert self.reads.norm is not None
        squares = x.var(-1, correction=0, keepdim=True) if self.reads.norm.centered else _mean_square(x)
        return (squares + self.reads.norm.eps).rsqrt()

    def projected(self, x: Tensor, scale: Tensor | None, unit: int) -> Tensor:
        """What one target reads, without the constant.

        Args:
            x: its stream (its change, where there is no norm), `[row, token, d_model]`. scale: of the norm.
        """
        found = (x.flatten(0, 1) @ self.folded[unit]).unflatten(0, x.shape[:2])
        return found if scale is None else found * scale

    def plain(self, change: Tensor) -> Tensor:
        """What targets without a projection of their own read, `[..., token, d_model]`."""
        value = self.base.flat(self.reads.site)
        if self.reads.norm is None:
            return value + change
        return value + self.base.through(self.reads.norm, self.reads.stream, change)  # type: ignore[arg-type]


def _mean_square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1]
