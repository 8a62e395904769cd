"""A `Frame` knows where each row's real tokens are, so that positions mean the same with and without padding.

Users count positions in real tokens: 0 is a row's first real token, -1 its last prompt token. A frame maps
them to columns of the padded tensor, also in the middle of a generation, where a forward pass sees only the
newest tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, UnknownName, nearest
from mechanome.engine import plain
from mechanome.engine.plain import Positions

__all__ = ["NAMES", "PHASES", "Frame", "Positions", "is_reserved"]

PHASES = ("prefill", "decode")

NAMES = ("all", "first", "generated", "last", "prompt")
"""Names of positions that every row has."""

_RANGE = re.compile(r"(-?\d+)?:(-?\d+)?", re.ASCII)


def is_reserved(name: str) -> bool:
    """Whether a name already means positions ("last", "2:5"), so that no span can have it."""
    return name in NAMES or _RANGE.fullmatch(name) is not None


@dataclass(frozen=True)
class Frame:
    """Where real tokens are in a padded batch.

    Args:
        starts: per row, the column of the first real token (0 with right padding).
        lengths: per row, the number of real prompt tokens.
        width: columns of this forward pass.
        offset: columns before the first one of this pass (those that earlier passes of a generation consumed).
        grown: tokens generated so far, up to and including this pass.
        spans: per row, labelled token positions such as `{"subject": [3, 4]}`.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int
    offset: int = 0
    grown: int = 0
    spans: tuple[Mapping[str, Sequence[int]], ...] = field(default=())

    @classmethod
    def full(cls, rows: int, width: int) -> Frame:
        """A frame without padding."""
        return cls((0,) * rows, (width,) * rows, width)

    @classmethod
    def unknown(cls, rows: int) -> Frame:
        """A frame for inputs whose number of positions only the model knows (images, audio)."""
        return cls((0,) * rows, (0,) * rows, 0)

    def resolved(self, rows: int, width: int) -> Frame:
        """This frame, or one without padding where positions were not known before the pass."""
        return self if self.width else Frame.full(rows, width)

    @classmethod
    def from_mask(cls, mask: Tensor, spans: Sequence[Mapping[str, Sequence[int]]] = ()) -> Frame:
        """A frame from an attention mask `[batch, pos]` of zeros and ones, padded on one side.

        Raises:
            BadInput: a row without a token, or with holes in its mask.
        """
        on = mask.detach().to("cpu").bool()
        lengths = on.sum(1)
        if bool((lengths == 0).any()):
            row = int((lengths == 0).nonzero()[0])
            raise BadInput(f"row {row}", "its attention mask has no token", "give every row at least one token")
        starts = on.int().argmax(1)
        columns = torch.arange(on.shape[1])
        inside = (columns >= starts[:, None]) & (columns < (starts + lengths)[:, None])
        if not torch.equal(inside, on):
            row = int((inside != on).any(1).nonzero()[0])
            raise BadInput(f"row {row}", "its attention mask has holes", "pad on one side only")
        return cls(tuple(starts.tolist()), tuple(lengths.tolist()), on.shape[1], spans=tuple(spans))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def padded(self) -> bool:
        """Whether any row has padding."""
        return any(s or n != self.width for s, n in zip(self.starts, self.lengths))

    @property
    def ragged(self) -> bool:
        """Whether the last prompt token of some row is not in the last column of this pass."""
        return any(s + n != self.offset + self.width for s, n in zip(self.starts, self.lengths))

    def at(self, offset: int, width: int, grown: int | None = None) -> Frame:
        """The frame of a later forward pass that sees `width` columns from column `offset` on."""
        return replace(self, offset=offset, width=width, grown=self.grown if grown is None else grown)

    def take(self, rows: Sequence[int]) -> Frame:
        """The frame of some rows, in the given order."""
        spans = tuple(self.spans[r] for r in rows) if self.spans else ()
        return replace(
            self,
            starts=tuple(self.starts[r] for r in rows),
            lengths=tuple(self.lengths[r] for r in rows),
            spans=spans,
        )

    def positions(self, wanted: Positions, row: int) -> list[int]:
        """Resolve a position request for one row, in real-token positions, in the order requested.

        Args:
            wanted: None or "all" (every token so far); an int (negative counts from the last prompt token);
                "first", "last"; a slice or "a:b"; a list of ints; a list of lists (one per row); "prompt";
                "generated" (tokens after the prompt so far); or the name of a labelled span.
            row: which row.

        Raises:
            BadInput: a position outside the prompt. UnknownName: a span that has no label.
        """
        if plain.once(wanted):
            raise BadInput("positions", "an iterator can be read only once, and every row reads them", "give a list")
        length = self.lengths[row]
        wanted = plain.positions(wanted)
        if wanted is None:
            return list(range(length + self.grown))
        if isinstance(wanted, int):
            return [self._inside(wanted, row)]
        if isinstance(wanted, slice):
            return list(range(length))[wanted]
        if isinstance(wanted, str):
            return self._named(wanted, row)
        items: Sequence[Any] = wanted
        if items and not isinstance(items[0], int):
            if len(items) != self.rows:
                raise BadInput(
                    f"positions for {len(items)} rows", f"the batch has {self.rows} rows", "give one list per row"
                )
            items = items[row]
        return [self._inside(p, row) for p in items]

    def _named(self, name: str, row: int) -> list[int]:
        length = self.lengths[row]
        meanings = {
            "all": range(length + self.grown),
            "first": range(1),
            "generated": range(length, length + self.grown),
            "last": range(length - 1, length),
            "prompt": range(length),
        }
        if name in meanings:
            return list(meanings[name])
        if between := _RANGE.fullmatch(name):
            lo, hi = (None if p is None else int(p) for p in between.groups())
            return list(range(length))[lo:hi]
        labels = self.spans[row] if self.spans else {}
        if name not in labels:
            raise UnknownName(
                f"position '{name}'", f"row {row} has no span with this label", nearest(name, [*NAMES, *labels])
            )
        return [self._inside(int(p), row) for p in labels[name]]

    def _inside(self, position: int, row: int) -> int:
        length = self.lengths[row]
        real = position + length if position < 0 else position
        if not 0 <= real < length:
            raise BadInput(f"position {position}", f"row {row} has {length} tokens", f"use {-length} to {length - 1}")
        return real

    def column(self, position: int, row: int) -> int | None:
        """The column of this pass that holds a real-token position, or None if this pass does not see it."""
        column = self.starts[row] + position - self.offset
        return column if 0 <= column < self.width else None
