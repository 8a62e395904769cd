"""Fields of recipes in their one canonical form: what a field may be follows from its annotation.

Recipes are made from Python, from the command line and from files, so a value of another kind is refused here, by name,
before anything is built from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from mechanome.core.errors import BadInput
from mechanome.engine.plain import number, whole

_REFUSED = object()


def canonical(owner: str, name: str, annotation: str, value: Any) -> Any:
    """A field's value, NumPy numbers as plain ones and lists as tuples; fields of other annotations as they are.

    Args:
        owner: whose field it is. name: what it is called. annotation: of the field, such as `"int | None"`.

    Raises:
        BadInput: a value of another kind, NaN or infinity.
    """
    kind, _, optional = annotation.partition(" | ")
    if kind not in KINDS or (optional and value is None):
        return value
    convert, wanted = KINDS[kind]
    found = convert(value)
    if found is _REFUSED:
        raise BadInput(f"{name} = {value!r} of {owner!r}", f"it must be {wanted}", f"give {wanted}")
    return found


def _whole(value: Any) -> Any:
    found = whole(value)
    return _REFUSED if found is None else found


def _number(value: Any) -> Any:
    try:
        found = float(number(value, ""))
    except (BadInput, OverflowError):
        return _REFUSED
    return found if math.isfinite(found) else _REFUSED


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return _REFUSED
    found = tuple(_whole(item) for item in value)
    return _REFUSED if _REFUSED in found else found


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else _REFUSED


def _word(value: Any) -> Any:
    return value if isinstance(value, str) else _REFUSED


KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "int": (_whole, "a whole number"),
    "float": (_number, "a finite number"),
    "tuple[int, ...]": (_whole_numbers, "a list of whole numbers"),
    "bool": (_flag, "true or false"),
    "str": (_word, "a word"),
}
"""Per annotation: from a value to its canonical form, and what it must be."""
