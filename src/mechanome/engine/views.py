"""Views turn the raw tensor that a module handles into the axes of a point, and back.

A projection may hold all heads in one axis, or query, key and value fused; a mixture flattens its tokens. A
view knows one such layout: `read` gives the point's axes, `write` returns a raw tensor with new content.
Position is always axis 1 of what `read` returns, so that operations treat all points alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from mechanome.core.errors import ShapeMismatch

if TYPE_CHECKING:
    from mechanome.engine.plan import Call


class View(Protocol):
    """One layout. `write(raw, x)` differs from `raw` only where `read` looks."""

    def read(self, raw: Tensor, call: Call) -> Tensor: ...

    def write(self, raw: Tensor, x: Tensor, call: Call) -> Tensor: ...


@dataclass(frozen=True)
class Plain:
    """The tensor as it is, `batch pos feature`; two axes mean that the module flattened or has no positions."""

    def read(self, raw: Tensor, call: Call) -> Tensor:
        return raw.reshape(call.rows, -1, raw.shape[-1]) if raw.dim() == 2 else raw

    def write(self, raw: Tensor, x: Tensor, call: Call) -> Tensor:
        return x.reshape(raw.shape) if raw.dim() == 2 else x


@dataclass(frozen=True)
class Columns:
    """A slice of the last axis, optionally split into heads: `batch pos [head] width`.

    Args:
        heads: number of heads, or 0 for no head axis.
        start, stop: the slice of the last axis; stop None means to the end.
        interleaved: the last axis is `head (part width)`: each head holds its own query, key and value, and
            start and stop count within a head.
    """

    heads: int = 0
    start: int = 0
    stop: int | None = None
    interleaved: bool = False

    def read(self, raw: Tensor, call: Call) -> Tensor:
        x = raw if self.interleaved else raw[..., self.start : self.stop]
        if not self.heads:
            return x
        if x.shape[-1] % self.heads:
            raise ShapeMismatch(
                f"a width of {x.shape[-1]}",
                f"it does not divide into {self.heads} heads",
                "correct the number of heads",
            )
        x = x.unflatten(-1, (self.heads, -1))
        return x[..., self.start : self.stop] if self.interleaved else x

    def write(self, raw: Tensor, x: Tensor, call: Call) -> Tensor:
        if self.interleaved:
            per_head = raw.unflatten(-1, (self.heads, -1))
            return self._join(per_head, x).flatten(-2)
        return self._join(raw, x.flatten(-2) if self.heads else x)

    def _join(self, raw: Tensor, x: Tensor) -> Tensor:
        stop = raw.shape[-1] if self.stop is None else self.stop
        if self.start == 0 and stop == raw.shape[-1]:
            return x
        return torch.cat([raw[..., : self.start], x, raw[..., stop:]], dim=-1)


@dataclass(frozen=True)
class HeadsFirst:
    """Inside attention: raw `batch head pos width`, read as `batch pos head width`.

    Scores and patterns too: their queries are positions and their keys are the width.
    """

    def read(self, raw: Tensor, call: Call) -> Tensor:
        return raw.transpose(1, 2)

    def write(self, raw: Tensor, x: Tensor, call: Call) -> Tensor:
        return x.transpose(1, 2)


@dataclass(frozen=True)
class Channels:
    """A convolution's feature map: raw `batch channel height width`, read as `batch (height width) channel`."""

    def read(self, raw: Tensor, call: Call) -> Tensor:
        return raw.flatten(2).transpose(1, 2)

    def write(self, raw: Tensor, x: Tensor, call: Call) -> Tensor:
        return x.transpose(1, 2).reshape(raw.shape)
