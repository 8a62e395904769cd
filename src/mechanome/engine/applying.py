"""Carry out one `Edit`: find its cells, work out its value there, write the result back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite, NotServed, ShapeMismatch
from mechanome.engine.cells import cells_of, key_mask
from mechanome.engine.edits import Edit, FromRows, FromRun, Resample, Where
from mechanome.engine.frame import Frame, Positions, is_reserved
from mechanome.engine.operations import axis_of, frame_of, key_frame
from mechanome.engine.plan import Call, activate


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
        for name, at in edit.site.selector:
            axis_of(edit.site, x, name, at)
        frame = frame_of(edit.site, x, call)
        if where.everywhere and self._same_columns(frame, x, call):
            part = self._part(x, whole=True)
            return self._put(x, None, self._new(part, x, call, None))
        rows, columns, slots = cells_of(frame, where)
        if not rows:
            return None
        index = tuple(torch.tensor(v, device=x.device, dtype=torch.long) for v in (rows, columns))
        part = self._part(x[index], whole=False)
        new = self._new(part, x, call, (rows, columns, slots, frame))
        if where.keys is not None:
            keys = key_mask(key_frame(edit.site, x, call), where.keys, x.shape[-1]).to(x.device)[index[0]]
            new = torch.where(keys if new.dim() == 2 else keys[:, None], new, part)
        return self._put(x, index, new)

    def _same_columns(self, frame: Frame, x: Tensor, call: Call) -> bool:
        """Whether the value's real tokens lie in the same columns, so that whole tensors can be taken."""
        if not isinstance(self.edit.value, (FromRun, FromRows, Resample)):
            return True
        if not isinstance(self.edit.value, Resample) and self.edit.value.pos is not None:
            return False
        value, donor, rows = self._donor(x, call)
        cells = zip(rows, frame.starts, frame.lengths)
        same = all(donor.starts[d] == start and donor.lengths[d] == n for d, start, n in cells)
        return same and donor.offset == frame.offset and value.shape[1] == x.shape[1]

    def _part(self, x: Tensor, whole: bool) -> Tensor:
        for axis, i in self.edit.site.selector:
            x = x.select(2 if whole else 1, i) if axis in ("head", "kv") else x[..., i : i + 1]
        return x

    def _put(self, x: Tensor, cells: tuple[Tensor, ...] | None, new: Tensor) -> Tensor:
        old, new = x, new.to(x.dtype)
        selector = dict(self.edit.site.selector)
        if cells is None and not selector:
            # The model may go on to change this tensor in place, so it must not be the caller's own.
            return self._hidden(old, new.clone() if self.edit.op in ("set", "ablate", "custom") else new)
        x = x.clone()
        target: tuple[Any, ...] = (slice(None), slice(None)) if cells is None else cells
        head = selector.get("head", selector.get("kv"))
        last = selector.get("neuron", selector.get("expert"))
        if last is not None:
            x[(*target, slice(last, last + 1))] = new
        else:
            x[target if head is None else (*target, head)] = new
        return self._hidden(old, x)

    def _hidden(self, old: Tensor, new: Tensor) -> Tensor:
        """A key that the mask hides from a query stays hidden, whatever is written to the scores."""
        if not self.edit.site.point.endswith("scores"):
            return new
        return torch.where(old <= torch.finfo(old.dtype).min / 2, old, new)

    def _new(self, part: Tensor, x: Tensor, call: Call, cells: _CellList) -> Tensor:
        edit = self.edit
        if edit.op == "custom":
            assert edit.function is not None
            with activate(None):  # a module of the model that the function calls runs as it is, not edited again
                new = edit.function(part)
            return _like(new, part, f"custom edit of {edit.site}")
        basis = edit.basis
        old = part if basis is None else basis.encode(part)
        value = self._value(part, old, x, call, cells)
        if basis is not None and isinstance(edit.value, (FromRun, FromRows, Resample)):
            value = basis.encode(value)
        new = _OPERATIONS[edit.op](old, value)
        if basis is None:
            return new.expand_as(part)
        what = f"basis {type(basis).__name__} at {edit.site}"
        return part + _like(basis.decode(new), part, what) - basis.decode(old)

    def _value(self, part: Tensor, old: Tensor, x: Tensor, call: Call, cells: _CellList) -> Any:
        value = self.edit.value
        if isinstance(value, (int, float, tuple)):
            return value
        if isinstance(value, Tensor):
            given = self._aligned(value.to(device=part.device, dtype=part.dtype), old, cells)
            if self.edit.gaps and bool(given.isnan().any()):
                raise NotFinite(
                    f"value for {self.edit.site}", "it holds NaN at a position that is edited", "name fewer positions"
                )
            return given
        donor, donor_frame, donor_rows = self._donor(x, call)
        if donor.shape[2:] != x.shape[2:]:
            raise ShapeMismatch(
                f"donor for {self.edit.site}",
                f"its features are {list(donor.shape[2:])}, the target's {list(x.shape[2:])}",
                "take it from a run of the same model and width",
            )
        here = frame_of(self.edit.site, x, call)
        if self.edit.site.point.endswith(("scores", "pattern")) and any(
            donor_frame.starts[d] != start for d, start in zip(donor_rows, here.starts)
        ):
            raise ShapeMismatch(
                f"donor for {self.edit.site}", "its keys are padded on another side", "pad both runs alike"
            )
        pos = value.pos if isinstance(value, (FromRows, FromRun)) else None
        if cells is None:
            return self._part(donor[torch.tensor(donor_rows, device=x.device)], whole=True)
        rows, _, slots, frame = cells
        wanted = {r: donor_frame.positions(pos, donor_rows[r]) for r in set(rows)} if pos is not None else {}
        self._as_many(wanted, pos, frame)
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

    def _as_many(self, given: Mapping[int, Sequence[int]], pos: Positions, frame: Frame) -> None:
        """Refuse donor positions left over, but for spans (of any length) and requests that grow with a generation."""
        asked = self.edit.where.pos
        grows = asked in (None, "all") and pos in ("all", "generated")
        if grows or asked == "generated" or (isinstance(pos, str) and not is_reserved(pos)):
            return
        for row, donors in given.items():
            edited = len(frame.positions(asked, row))
            if len(donors) > edited:
                raise ShapeMismatch(
                    f"donor positions for {self.edit.site}",
                    f"row {row} is given {len(donors)} positions and edits {edited}",
                    "name as many as are edited",
                )

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
        edited = self.edit.where.rows
        if edited is not None and len(rows) == len(edited):
            named = dict(zip(edited, rows))
            rows = [named.get(row, rows[0]) for row in range(n)]
        if wrong := [r for r in rows if not 0 <= r < count]:
            raise ShapeMismatch(
                f"donor row {wrong[0]} for {self.edit.site}",
                f"the donor has {count} row{'s' if count > 1 else ''}",
                f"use 0 to {count - 1}",
            )
        if len(rows) != n:
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
            count_fits = value.shape[:extra] == old.shape[:extra]
        else:
            rows, _, slots, frame = cells
            count_fits = value.shape[0] > max(rows) and (extra == 1 or self._enough(value.shape[1], slots, frame))
        if not count_fits:
            raise ShapeMismatch(
                f"value of shape {list(value.shape)} for {self.edit.site}",
                "it has other rows or positions than it is for",
                "give one each",
            )
        if cells is None:
            return value.unsqueeze(1) if extra == 1 else value
        index = torch.tensor(rows, device=value.device)
        return value[index] if extra == 1 else value[index, torch.tensor(slots, device=value.device)]

    def _enough(self, given: int, slots: Sequence[int], frame: Frame) -> bool:
        """Whether a value has a slice per position: exactly, except for positions that generation goes on to add."""
        pos = self.edit.where.pos
        if pos is None or pos in ("all", "generated"):
            return given > max(slots)
        return given == max(len(frame.positions(pos, row)) for row in range(frame.rows))


def _like(new: Any, part: Tensor, what: str) -> Tensor:
    """What a caller's function returned, if it can stand in the place of what it received."""
    fix = f"return real numbers of shape {list(part.shape)} on {part.device}"
    if not isinstance(new, Tensor):
        raise BadInput(what, f"it returned {type(new).__name__}, not a tensor", fix)
    if new.shape != part.shape:
        raise ShapeMismatch(what, f"it returned {list(new.shape)} for {list(part.shape)}", fix)
    if new.device != part.device or new.is_complex():
        raise BadInput(what, f"it returned {new.dtype} on {new.device}", fix)
    return new


_CellList = tuple[list[int], list[int], list[int], Frame] | None


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


def _clamp(old: Tensor, value: Any) -> Tensor:
    lo, hi = value
    return old.clamp(lo, hi) if lo is not None or hi is not None else old


def _set(old: Tensor, value: Any) -> Tensor:
    return value.expand_as(old) if isinstance(value, Tensor) else torch.full_like(old, value)


_OPERATIONS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "set": _set,
    "ablate": _set,
    "add": lambda old, value: old + value,
    "scale": lambda old, value: old * value,
    "clamp": _clamp,
}
