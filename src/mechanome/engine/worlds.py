"""Copies of rows: an edit written for the prompts acts on every copy of their rows as if it were the only one.

Beam search and option scoring repeat each prompt's row. An edit speaks of prompts (`rows=[1]`, one value a row,
a donor row), so its operation runs once per copy, each time on a batch that looks like the prompts alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mechanome.engine.edits import Edit, FromRows, FromRun, Resample
from mechanome.engine.frame import Frame
from mechanome.engine.operations import Capture
from mechanome.engine.plan import Call, Operation, Plan


@dataclass(frozen=True)
class PerCopy:
    """An operation that runs once per copy; rows lie prompt by prompt, the copies of a prompt side by side.

    Args:
        operation: written for the prompts' rows.
        calls: one per copy: frames of the prompts, and a scratch that copies do not share.
    """

    operation: Operation
    calls: Sequence[Call]

    def __call__(self, x: Tensor, call: Call) -> Tensor | None:
        copies = len(self.calls)
        if x.shape[0] != self.calls[0].rows * copies:
            return self.operation(x, self.calls[0])  # what runs before rows are repeated, such as an encoder
        changed: Tensor | None = None
        for i, own in enumerate(self.calls):
            part = x[i::copies]
            new = self.operation(part, own)
            if new is not None and new is not part:
                changed = x.clone() if changed is None else changed
                changed[i::copies] = new
        return changed


class Worlds:
    """Keeps the calls of a plan's copies in step with the plan.

    Args:
        plan: its operations, captures excepted, are rewritten to run per copy (nothing happens for one copy).
        rows: rows of the prompts. copies: of each row.
    """

    def __init__(self, plan: Plan, rows: int, copies: int) -> None:
        self.plan, self.rows = plan, rows
        self.calls = [Call() for _ in range(copies)] if copies > 1 else [plan.call]
        if copies > 1:
            slots = [s for slot in plan.attention.values() for s in slot.values()]
            for bounds in [*plan.inputs.values(), *plan.outputs.values(), *slots]:
                bounds[:] = [
                    b if isinstance(b.operation, Capture) else replace(b, operation=PerCopy(b.operation, self.calls))
                    for b in bounds
                ]

    def update(self, frames: Mapping[str | None, Frame], rows: int) -> None:
        """Tell every call where real tokens are; `rows` flow through the model in the coming pass."""
        for call in self.calls:
            call.rows, call.frames, call.step = self.rows, dict(frames), self.plan.call.step
        self.plan.call.rows = rows


_DONORS = (FromRows, FromRun, Resample)


def by_position(edits: Sequence[Edit]) -> list[Edit]:
    """The same edits, those with a donor paired by real-token position.

    Without positions a donor is taken as a whole tensor, column by column; here its padding may lie on the other side.
    """
    return [e.at(pos="all") if isinstance(e.value, _DONORS) and e.where.pos is None else e for e in edits]


def mixes_rows(edit: Edit) -> bool:
    """Whether an edit means something else when its batch is cut into pieces."""
    value: Any = edit.value
    per_row = isinstance(value, Tensor) and value.dim() > 1
    listed = not isinstance(edit.where.pos, (int, str, slice, type(None))) and any(
        not isinstance(p, int) for p in edit.where.pos
    )
    return edit.where.rows is not None or per_row or listed or isinstance(value, _DONORS) or edit.op == "custom"
