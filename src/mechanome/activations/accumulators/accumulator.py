"""What all accumulators share: a state that grows row by row, merges, and can be kept.

An update is the merge with a small accumulator of the batch, so there is one rule of combination, and any split of the
rows and any order of merging end in the same state: bit for bit where it is made of counts, extremes and kept rows, and
within rounding (1e-12 of the largest value) where it is made of float64 sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, Self

import numpy as np

from mechanome.core.errors import BadInput, CorruptFile, ShapeMismatch


class Accumulator:
    """A mergeable statistic.

    Subclasses name their settings (constructor arguments, which must be equal to merge) and their fields (numpy arrays
    and counts) and their parts (which keep their own state), and say how those of two disjoint sets of rows combine.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()

    rows: int
    """How many rows have been seen."""

    def merge(self, other: Self) -> Self:
        """Take in what another accumulator has seen of other rows; the other one is left as it is.

        Raises:
            BadInput: another kind, or other settings. ShapeMismatch: another number of units.
        """
        if type(other) is not type(self):
            raise BadInput("merge", f"{type(other).__name__} into {type(self).__name__}", "merge equal kinds")
        for name in self.settings:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise BadInput("merge", f"{name} is {theirs!r} there and {mine!r} here", "use equal settings")
        if other.rows and not self.rows:
            self._take(other)
        elif other.rows:
            self._combine(other)
        return self

    def copy(self) -> Self:
        """An accumulator of its own with the same state."""
        return deepcopy(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain values and numpy arrays (`core.state.flatten` turns it into files)."""
        return {
            "kind": type(self).__name__,
            "settings": {name: getattr(self, name) for name in self.settings},
            "fields": {name: deepcopy(getattr(self, name)) for name in ("rows", *self.fields)},
            "parts": {name: getattr(self, name).state_dict() for name in self.parts},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of :meth:`state_dict`.

        Raises:
            CorruptFile: it is none. BadInput: it is one of another kind or of other settings.
        """
        whole = {"kind", "settings", "fields", "parts"}
        if set(state) != whole:
            raise CorruptFile("accumulator state", f"it holds {sorted(state)}", "use the state of this kind")
        mine = (type(self).__name__, {name: getattr(self, name) for name in self.settings})
        if (state["kind"], dict(state["settings"])) != mine:
            why = f"it is of {state['kind']} {dict(state['settings'])}, this is {mine[0]} {mine[1]}"
            raise BadInput("accumulator state", why, "make the accumulator with the same settings")
        if set(state["fields"]) != {"rows", *self.fields} or set(state["parts"]) != set(self.parts):
            found = sorted([*state["fields"], *state["parts"]])
            raise CorruptFile("accumulator state", f"it holds {found}", "use a whole state")
        for name, value in state["fields"].items():
            setattr(self, name, deepcopy(value))
        for name, part in state["parts"].items():
            getattr(self, name).load_state_dict(part)

    def _take(self, other: Self) -> None:
        for name in ("rows", *self.fields, *self.parts):
            setattr(self, name, deepcopy(getattr(other, name)))

    def _combine(self, other: Self) -> None:
        """Both have rows and equal settings."""
        raise NotImplementedError

    def _empty(self) -> Self:
        """An accumulator of the same settings without rows, to be filled with a batch."""
        return type(self)(**{name: getattr(self, name) for name in self.settings})


def same_shape(name: str, mine: np.ndarray, theirs: np.ndarray) -> None:
    """Refuse to combine statistics of different units.

    Raises:
        ShapeMismatch: the shapes differ.
    """
    if mine.shape != theirs.shape:
        raise ShapeMismatch(name, f"{list(theirs.shape)} after {list(mine.shape)}", "keep one accumulator a site")
