"""Measured numbers as plain data."""

from __future__ import annotations

from typing import Any

from mechanome.circuits.measured import Measured
from mechanome.core import Interval


def measured_record(found: Measured) -> dict[str, Any]:
    """A number with its interval, or why there is none."""
    return {"value": found.value, "interval": interval_record(found.interval), "note": found.note}


def interval_record(at: Interval | None) -> dict[str, Any] | None:
    """An interval without its estimate; None where there is none."""
    return None if at is None else {"lo": at.lo, "hi": at.hi, "n": at.n, "level": at.level}
