"""Which cells of a batch a `Where` selects in one forward pass: rows, columns and, for scores, keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.where import Where


def selected(frame: Frame, where: Where, row: int) -> Iterator[tuple[int, int]]:
    """The real-token positions of one row that a `Where` names, each with its ordinal in the request.

    Where no position is named only those this pass sees are walked: a decode step sees one of thousands.
    """
    length = frame.lengths[row]
    if where.pos is None:
        first = max(0, frame.offset - frame.starts[row])
        end = min(length + frame.grown, frame.offset + frame.width - frame.starts[row])
        numbered: Iterable[tuple[int, int]] = ((p, p) for p in range(first, end))
    else:
        numbered = enumerate(frame.positions(where.pos, row))
    steps = None if where.steps is None else set(where.steps)
    for slot, position in numbered:
        if where.phase is not None and (position < length) != (where.phase == "prefill"):
            continue
        if steps is None or position - (length - 1) in steps:
            yield slot, position


def cells_of(frame: Frame, where: Where) -> tuple[list[int], list[int], list[int]]:
    """Row, column and ordinal (within the row's request) of every selected cell this pass sees."""
    rows: list[int] = []
    columns: list[int] = []
    slots: list[int] = []
    wanted = range(frame.rows) if where.rows is None else where.rows
    for row in wanted:
        if not 0 <= row < frame.rows:
            raise BadInput(f"row {row}", f"the batch has {frame.rows} rows", f"use 0 to {frame.rows - 1}")
        for slot, position in selected(frame, where, row):
            column = frame.column(position, row)
            if column is not None:
                rows.append(row)
                columns.append(column)
                slots.append(slot)
    return rows, columns, slots


def key_mask(frame: Frame, keys: Positions, width: int) -> Tensor:
    """Which keys a request names, as booleans `[row, key]`."""
    mask = torch.zeros(frame.rows, width, dtype=torch.bool)
    for row in range(frame.rows):
        for position in frame.positions(keys, row):
            column = frame.column(position, row)
            if column is not None:
                mask[row, column] = True
    return mask
