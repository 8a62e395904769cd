"""What taps do: capture a tensor, apply an edit, open a gradient. Each is an `Operation` of a `Plan`.

An operation receives the tensor in the point's own axes, `batch pos feature...` (queries are positions for
scores and patterns), and returns a new tensor, or None to leave it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed, ShapeMismatch, UnknownSite
from mechanome.engine.edits import Edit, FromRows, FromRun, Resample, Where
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


def selected(frame: Frame, where: Where, row: int) -> list[int]:
    """The real-token positions of one row that a `Where` names and this pass knows of."""
    length = frame.lengths[row]
    positions = frame.positions(where.pos, row)
    if where.phase is not None:
        positions = [p for p in positions if (p < length) == (where.phase == "prefill")]
    if where.steps is not None:
        steps = set(where.steps)
        positions = [p for p in positions if p - (length - 1) in steps]
    return positions


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
        if self.copy:
            part = part.clone()
        if self.move is not None:
            part = self.move(part)
        if self.sink is not None:
            self.sink(part)
        else:
            self.values.append(part)
            self._versions.append(part._version)

    def changed(self) -> bool:
        """Whether a captured tensor was changed in place since."""
        return any(v._version != n for v, n in zip(self.values, self._versions))


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
class ApplyEdit:
    """Carry out one `Edit`."""

    edit: Edit
    calls: int = 0

    def __call__(self, x: Tensor, call: Call) -> Tensor | None:
        edit, step = self.edit, self.calls
        self.calls += 1
        where = edit.where
        if edit.site.is_path and where.steps is not None:
            if step not in where.steps:
                return None
            where = Where(where.pos, where.rows, where.phase, None, where.keys)
        for name, index in edit.site.selector:
            axis_of(edit.site, x, name, index)
        frame = frame_of(edit.site, x, call)
        if where.everywhere:
            part = self._part(x, whole=True)
            return self._put(x, None, self._new(part, x, call, None))
        rows, columns, slots = _cells(frame, where)
        if not rows:
            return None
        index = tuple(torch.tensor(v, device=x.device, dtype=torch.long) for v in (rows, columns))
        part = self._part(x[index], whole=False)
        new = self._new(part, x, call, (rows, columns, slots, frame))
        if where.keys is not None:
            keys = _key_mask(key_frame(edit.site, x, call), where.keys, x.shape[-1]).to(x.device)[index[0]]
            new = torch.where(keys if new.dim() == 2 else keys[:, None], new, part)
        return self._put(x, index, new)

    def _part(self, x: Tensor, whole: bool) -> Tensor:
        for axis, i in self.edit.site.selector:
            x = x.select(2 if whole else 1, i) if axis in ("head", "kv") else x[..., i : i + 1]
        return x

    def _put(self, x: Tensor, index: tuple[Tensor, ...] | None, new: Tensor) -> Tensor:
        new = new.to(x.dtype)
        selector = dict(self.edit.site.selector)
        head = selector.get("head", selector.get("kv"))
        last = selector.get("neuron", selector.get("expert"))
        if index is None and head is None and last is None:
            return new
        x = x.clone()
        tail: tuple[object, ...] = () if head is None else (head,)
        if last is not None:
            tail = (..., slice(last, last + 1))
        target = (slice(None), slice(None)) if index is None else index
        if index is not None and last is not None:
            # Advanced indices followed by a slice keep their place: [N, 1].
            x[(*index, slice(last, last + 1))] = new
        else:
            x[(*target, *tail)] = new
        return x

    def _new(self, part: Tensor, x: Tensor, call: Call, cells: _CellList) -> Tensor:
        edit = self.edit
        if edit.op == "custom":
            assert edit.function is not None
            new = edit.function(part)
            if new.shape != part.shape:
                raise ShapeMismatch(
                    f"custom edit of {edit.site}",
                    f"it returned {list(new.shape)} for {list(part.shape)}",
                    "return the same shape",
                )
            return new
        basis = edit.basis
        old = part if basis is None else basis.encode(part)
        value = self._value(part, old, x, call, cells)
        if basis is not None and isinstance(edit.value, (FromRun, FromRows, Resample)):
            value = basis.encode(value)  # type: ignore[arg-type]
        new = _OPERATIONS[edit.op](old, value)
        if basis is None:
            return new.expand_as(part)
        return part + basis.decode(new) - basis.decode(old)

    def _value(self, part: Tensor, old: Tensor, x: Tensor, call: Call, cells: _CellList) -> object:
        value = self.edit.value
        if isinstance(value, (int, float, tuple)):
            return value
        if isinstance(value, Tensor):
            return self._aligned(value.to(device=part.device, dtype=part.dtype), old, cells)
        donor, donor_frame, donor_rows = self._donor(x, call)
        pos = value.pos if isinstance(value, (FromRows, FromRun)) else None
        if cells is None:
            source = donor[torch.tensor(donor_rows, device=x.device)]
            if source.shape != x.shape:
                raise ShapeMismatch(
                    f"donor for {self.edit.site}",
                    f"it is {list(source.shape)}, the target {list(x.shape)}",
                    "name positions",
                )
            return self._part(source, whole=True)
        rows, _, slots, frame = cells
        wanted = {r: donor_frame.positions(pos, donor_rows[r]) for r in set(rows)} if pos is not None else {}
        columns = []
        for row, column, slot in zip(rows, cells[1], slots):
            at = wanted[row][slot] if row in wanted and slot < len(wanted[row]) else None
            if pos is not None and at is None:
                raise ShapeMismatch(
                    f"donor positions for {self.edit.site}",
                    f"row {row} edits more than it is given",
                    "name equally many",
                )
            real = at if at is not None else column + frame.offset - frame.starts[row]
            found = donor_frame.column(real, donor_rows[row])
            if found is None or found >= donor.shape[1]:
                raise ShapeMismatch(
                    f"donor for {self.edit.site}",
                    f"it has no position {real} in row {donor_rows[row]}",
                    "check lengths",
                )
            columns.append(found)
        index = (
            torch.tensor([donor_rows[r] for r in rows], device=donor.device),
            torch.tensor(columns, device=donor.device),
        )
        return self._part(donor[index], whole=False).to(device=part.device, dtype=part.dtype)

    def _donor(self, x: Tensor, call: Call) -> tuple[Tensor, Frame, Sequence[int]]:
        """The donor's whole tensor, its frame, and the donor row of each row of this batch."""
        value, n = self.edit.value, x.shape[0]
        if isinstance(value, FromRun):
            donor, frame = value.run.source(self.edit.site)
            donor = donor.to(device=x.device, dtype=x.dtype)
            count = donor.shape[0]
            rows = value.rows if value.rows is not None else [0] if count == 1 else range(count)
        elif isinstance(value, FromRows):
            donor, frame, count, rows = x, frame_of(self.edit.site, x, call), n, value.rows
        else:
            assert isinstance(value, Resample)
            donor, frame, count = x, frame_of(self.edit.site, x, call), n
            rows = _derangement(n, value.seed)
        rows = list(rows)
        rows = rows * n if len(rows) == 1 else rows
        if len(rows) != n or any(not 0 <= r < count for r in rows):
            raise ShapeMismatch(
                f"donor rows for {self.edit.site}",
                f"{len(rows)} donors for {n} rows of a batch",
                "give one per row, or one",
            )
        return donor, frame, rows

    def _aligned(self, value: Tensor, old: Tensor, cells: _CellList) -> Tensor:
        """A tensor value broadcast to the coordinates it changes."""
        lead = 2 if cells is None else 1
        features = old.dim() - lead
        extra = value.dim() - features
        tail = value.shape[max(extra, 0) :]
        fits = all(a in (1, b) for a, b in zip(reversed(tail), reversed(old.shape[lead:])))
        if not fits or extra > 2:
            raise ShapeMismatch(
                f"value of shape {list(value.shape)} for {self.edit.site}",
                f"its features are {list(old.shape[lead:])}",
                "give [feature], [row, feature] or [row, pos, feature]",
            )
        if extra <= 0:
            return value
        if cells is None:
            return value.unsqueeze(1) if extra == 1 else value
        rows, _, slots, _ = cells
        if value.shape[0] <= max(rows) or (extra == 2 and value.shape[1] <= max(slots)):
            raise ShapeMismatch(
                f"value of shape {list(value.shape)} for {self.edit.site}",
                "it has too few rows or positions",
                "give one each",
            )
        index = torch.tensor(rows, device=value.device)
        return value[index] if extra == 1 else value[index, torch.tensor(slots, device=value.device)]


_CellList = tuple[list[int], list[int], list[int], Frame] | None


def _cells(frame: Frame, where: Where) -> tuple[list[int], list[int], list[int]]:
    """Row, column and ordinal (within the row's request) of every selected cell this pass sees."""
    rows: list[int] = []
    columns: list[int] = []
    slots: list[int] = []
    wanted = range(frame.rows) if where.rows is None else where.rows
    for row in wanted:
        if not 0 <= row < frame.rows:
            raise BadInput(f"row {row}", f"the batch has {frame.rows} rows", f"use 0 to {frame.rows - 1}")
        for slot, position in enumerate(selected(frame, where, row)):
            column = frame.column(position, row)
            if column is not None:
                rows.append(row)
                columns.append(column)
                slots.append(slot)
    return rows, columns, slots


def _key_mask(frame: Frame, keys: Positions, width: int) -> Tensor:
    mask = torch.zeros(frame.rows, width, dtype=torch.bool)
    for row in range(frame.rows):
        for position in frame.positions(keys, row):
            column = frame.column(position, row)
            if column is not None:
                mask[row, column] = True
    return mask


def _derangement(n: int, seed: int) -> list[int]:
    if n < 2:
        raise NotServed(
            "resampling", "the batch has one row, so there is no other to draw from", "give a batch of at least 2"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    donor = [0] * n
    for i, row in enumerate(order):
        donor[row] = order[(i + 1) % n]
    return donor


def _clamp(old: Tensor, value: object) -> Tensor:
    lo, hi = value  # type: ignore[misc]
    return old.clamp(lo, hi) if lo is not None or hi is not None else old


def _set(old: Tensor, value: object) -> Tensor:
    return torch.full_like(old, value) if isinstance(value, (int, float)) else value.expand_as(old)  # type: ignore[union-attr]


_OPERATIONS: dict[str, Callable[[Tensor, object], Tensor]] = {
    "set": _set,
    "ablate": _set,
    "add": lambda old, value: old + value,  # type: ignore[operator]
    "scale": lambda old, value: old * value,  # type: ignore[operator]
    "clamp": _clamp,
}


@dataclass
class OpenGradient:
    """Make a site's tensor the start of a gradient, and remember it.

    What downstream modules consume is the remembered tensor itself, so its gradient is never that of an unused view.
    """

    opened: list[Tensor] = field(default_factory=list)

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        x = x.view_as(x) if x.requires_grad else x.detach().clone().requires_grad_(True)
        self.opened.append(x)
        return x


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
