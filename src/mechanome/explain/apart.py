"""How far two records of the same run are apart: what `mechanome replay` says of a repetition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> float | None:
    """How far two records are apart, wall times and versions aside.

    Returns:
        the largest difference of two numbers, relative to the larger (absolute below 1); None where the records differ
        in anything but numbers.
    """
    return _apart(first, second)


_IGNORED = ("seconds", "processor_seconds", "machine", "versions")


def _apart(a: Any, b: Any) -> float | None:
    if isinstance(a, float | int) and isinstance(b, float | int) and not isinstance(a, bool):
        return abs(a - b) / max(1.0, abs(a), abs(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return _largest(_apart(a[key], b[key]) for key in a if key not in _IGNORED)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return _largest(map(_apart, a, b))
    return 0.0 if a == b else None


def _largest(parts: Any) -> float | None:
    found = list(parts)
    return None if None in found else max(found, default=0.0)
