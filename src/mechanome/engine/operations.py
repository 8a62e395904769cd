"""What taps do: capture a tensor, open a gradient, write through to a stream. Each is an `Operation` of a `Plan`.

An operation receives the tensor in the point's own axes, `batch pos feature...` (queries are positions for
scores and patterns), and returns a new tensor, or None to leave it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core.errors import ShapeMismatch, UnknownSite
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.plan import Call
from mechanome.engine.site import Site

_OVER_KEYS = frozenset({"k", "v"})


def frame_of(site: Site, x: Tensor, call: Call) -> Frame:
    """Where real tokens are along axis 1 of a site's tensor."""
    cross_keys = site.point in ("cross_k", "cross_v")
    tower = "encoder" if cross_keys else site.tower
    frame = call.frames.get(tower)
    if frame is None or (site.is_path and frame.width != x.shape[1]):
        return Frame.full(x.shape[0], x.shape[1])
    frame = frame.resolved(x.shape[0], x.shape[1])
    if site.point in _OVER_KEYS:
        seen = frame.offset + frame.width
        return frame.at(seen - x.shape[1], x.shape[1])
    return frame if frame.width == x.shape[1] else Frame.full(x.shape[0], x.shape[1])


def key_frame(site: Site, x: Tensor, call: Call) -> Frame:
    """Where real tokens are along the key axis of scores and patterns."""
    tower = "encoder" if site.point.startswith("cross_") else site.tower
    frame = call.frames.get(tower)
    if frame is None:
        return Frame.full(x.shape[0], x.shape[-1])
    frame = frame.resolved(x.shape[0], x.shape[-1])
    return frame.at(frame.offset + frame.width - x.shape[-1], x.shape[-1])


def axis_of(site: Site, x: Tensor, name: str, index: int, heads: int = 2) -> int:
    """The axis of `x` that a coordinate of a site selects from.

    Args:
        site: for the message. x: the tensor of the whole site. name: `head`, `kv`, `neuron` or `expert`.
        index: what is selected. heads: the axis of heads.

    Raises:
        UnknownSite: an index outside this axis (only the tensor tells how many neurons there are).
    """
    axis = heads if name in ("head", "kv") else x.dim() - 1
    if index >= x.shape[axis]:
        raise UnknownSite(
            f"site '{site}'", f"{name} {index} does not exist", f"it has {name}s 0 to {x.shape[axis] - 1}"
        )
    return axis


@dataclass
class Capture:
    """Keep a copy of a site's tensor.

    Args:
        site: which site; its head, neuron or expert is taken out.
        pos: positions, None for all. A single position drops the axis; ragged positions are padded with NaN.
        keep_graph: whether the copy stays attached to the autograd graph.
        move: applied to each copy (to another device or dtype, or a reduction), at capture time.
        sink: receives each captured tensor instead of the list `values`.
        copy: copy at once, for tensors that the model changes in place later.
    """

    site: Site
    pos: Positions = None
    keep_graph: bool = False
    move: Callable[[Tensor], Tensor] | None = None
    sink: Callable[[Tensor], None] | None = None
    copy: bool = False
    values: list[Tensor] = field(default_factory=list)
    calls: int = 0
    _versions: list[int] = field(default_factory=list)

    def __call__(self, x: Tensor, call: Call) -> None:
        self.calls += 1
        part = x
        for name, index in self.site.selector:
            part = part.select(axis_of(self.site, part, name, index), index)
        if self.pos is not None:
            part = take_positions(part, frame_of(self.site, x, call), self.pos)
        if not self.keep_graph:
            part = part.detach()
        if self.copy or part.is_inference():  # inference tensors do not tell whether they are changed later
            part = part.clone()
        if self.move is not None:
            part = self.move(part)
        if self.sink is not None:
            self.sink(part)
        else:
            self.values.append(part)
            self._versions.append(0 if part.is_inference() else part._version)

    def changed(self) -> bool:
        """Whether a captured tensor was changed in place since."""
        return any(not v.is_inference() and v._version != n for v, n in zip(self.values, self._versions))


def take_positions(x: Tensor, frame: Frame, pos: Positions) -> Tensor:
    """Positions of `x` `[batch, pos, ...]` in real-token terms.

    Returns:
        `[batch, ...]` for a single position, else `[batch, n, ...]`; rows with fewer positions end in NaN.
    """
    single = isinstance(pos, int) or (isinstance(pos, str) and pos in ("first", "last"))
    columns = [[frame.column(p, row) for p in frame.positions(pos, row)] for row in range(frame.rows)]
    flat = [[c for c in row if c is not None] for row in columns]
    width = max(map(len, flat), default=0)
    index = torch.tensor([row + [0] * (width - len(row)) for row in flat], device=x.device, dtype=torch.long)
    taken = x[torch.arange(len(flat), device=x.device)[:, None], index]
    if any(len(row) < width for row in flat):
        if not x.is_floating_point():
            raise ShapeMismatch("these positions", "rows have different numbers of them", "choose equally many per row")
        for row, kept in enumerate(flat):
            taken[row, len(kept) :] = float("nan")
    return taken[:, 0] if single else taken


@dataclass
class OpenGradient:
    """Make a site's tensor the start of a gradient, and remember it.

    What downstream modules consume is made from the remembered tensor, so its gradient is never that of an unused view;
    it is a copy, because a model may go on to change it in place.
    """

    opened: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        x = x.view_as(x) if x.requires_grad else x.detach().clone().requires_grad_(True)
        self.opened.append(x)
        return x.clone()


@dataclass
class Remember:
    """Keep the stream a part adds to, for `Through`."""

    key: object

    def __call__(self, x: Tensor, call: Call) -> None:
        call.scratch[self.key] = x


@dataclass
class Through:
    """Run an operation on `stream + part` at the tap of the part, and fold the change into the part."""

    key: object
    operation: Callable[[Tensor, Call], Tensor | None]

    def __call__(self, x: Tensor, call: Call) -> Tensor | None:
        stream = call.scratch[self.key]
        after = self.operation(stream + x, call)
        return None if after is None else after - stream
