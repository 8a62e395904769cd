"""What callers may write for positions, rows and values, made plain: ints, tuples and tensors, or a refusal.

Requests come as Python or NumPy numbers, tensors, arrays, ranges, iterators. They are read once, where they are
given, so an iterator cannot run dry halfway and a wrong type is named before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.core.errors import BadInput

Positions = int | str | slice | Sequence[int] | Sequence[Sequence[int]] | None
"""How a request names positions; see `Frame.positions`."""

_COUNTS = "give an int, or a list, range or integer tensor of ints"
_PLACES = "give an int, a list of ints (or one list per row), a slice, or a name such as 'last'"


def whole(value: Any) -> int | None:
    """An integer of any make as an int; None for everything else (bools and whole floats are not integers)."""
    if isinstance(value, (bool, np.bool_)):
        return None
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0 and is_integral(value):
        return int(value.item())
    return None


def is_integral(value: Tensor | np.ndarray[Any, Any]) -> bool:
    """Whether a tensor or array holds integers."""
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return value.dtype.kind in "iu"


def integers(value: Any, what: str, fix: str = _COUNTS) -> tuple[int, ...]:
    """One integer or several, as a tuple; a set is sorted.

    Raises:
        BadInput: anything else; `what` names it.
    """
    one = whole(value)
    if one is not None:
        return (one,)
    found = []
    for item in _items(value, what, fix):
        number = whole(item)
        if number is None:
            raise BadInput(what, f"{item!r} is not an integer", fix)
        found.append(number)
    return tuple(sorted(found) if isinstance(value, (set, frozenset)) else found)


def chosen(value: Any, what: str, fix: str = _COUNTS) -> tuple[int, ...] | None:
    """`integers` of a selection, where None means all.

    Raises:
        BadInput: not integers, or none at all.
    """
    if value is None:
        return None
    found = integers(value, what, fix)
    if not found:
        raise _empty(what)
    return found


def positions(value: Any, what: str = "positions") -> Positions:
    """A request for positions as None, an int, a name, a slice, a tuple of ints or a tuple of tuples.

    Raises:
        BadInput: anything else; `what` names it.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, slice):
        return _slice(value, what)
    one = whole(value)
    if one is not None:
        return one
    items = value if isinstance(value, (set, frozenset)) else _items(value, what, _PLACES)
    if items and all(whole(item) is None and isinstance(item, Iterable) for item in items):
        return tuple(integers(item, f"{what} of row {row}", _PLACES) for row, item in enumerate(items))
    return integers(items, what, _PLACES)


def somewhere(value: Any, what: str) -> Positions:
    """`positions` of an edit, which must name some.

    Raises:
        BadInput: not positions, or none at all.
    """
    found = positions(value, what)
    if isinstance(found, tuple) and not any(isinstance(p, int) or p for p in found):
        raise _empty(what)
    return found


def number(value: Any, what: str, fix: str = "give a number") -> float:
    """A real number of any make as an int or float.

    Raises:
        BadInput: anything else; `what` names it.
    """
    found = value.item() if isinstance(value, (Tensor, np.ndarray, np.generic)) and value.ndim == 0 else value
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise BadInput(what, f"{value!r} is not a real number", fix)
    return found


def array(value: np.ndarray[Any, Any], what: str) -> Tensor:
    """A NumPy array as a tensor of its own.

    Raises:
        BadInput: an array of strings or objects.
    """
    if value.dtype.kind not in "biufc":
        raise BadInput(what, f"an array of {value.dtype} holds no numbers", "give an array of floats")
    return torch.tensor(np.ascontiguousarray(value))


def _items(value: Any, what: str, fix: str) -> list[Any]:
    if isinstance(value, (Tensor, np.ndarray)):
        if not is_integral(value) or not value.ndim:
            raise BadInput(what, f"its {value.dtype} values are not integers", fix)
        return list(value.tolist())
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise BadInput(what, f"{value!r} of type {type(value).__name__} names none", fix)
    return list(value)


def once(value: Any) -> bool:
    """Whether a value can be read only once."""
    return isinstance(value, Iterator)


def _slice(value: slice, what: str) -> slice:
    parts = [None if p is None else whole(p) for p in (value.start, value.stop, value.step)]
    given = (value.start, value.stop, value.step)
    if any(p is None and g is not None for p, g in zip(parts, given)) or parts[2] == 0:
        raise BadInput(what, f"{value} is not a slice of ints", "use slice(start, stop) with ints or None")
    return slice(*parts)


def _empty(what: str) -> BadInput:
    return BadInput(what, "the list is empty, so nothing would be chosen", "leave it out to mean all")
