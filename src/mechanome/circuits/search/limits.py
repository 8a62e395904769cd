"""Where a search stops: at a number of edges, or at what an edge must be worth."""

from __future__ import annotations

from math import isfinite
from typing import Any

from mechanome.core import BadInput
from mechanome.engine.asked import count
from mechanome.engine.plain import number


def one_limit(size: Any, threshold: Any) -> None:
    """Check that there is one limit.

    Raises:
        BadInput: none, or both.
    """
    if (size is None) == (threshold is None):
        why = "neither says where to stop" if size is None else "both say where to stop"
        raise BadInput(f"size={size!r}, threshold={threshold!r}", why, "give one of size= (edges) and threshold=")


def size_up_to(size: Any, available: int, what: str = "edges with a score") -> int:
    """A number of edges.

    Raises:
        BadInput: no positive whole number, or more than there are.
    """
    found = count("size", size)
    if found > available:
        raise BadInput(f"size={found}", f"there are {available} {what}", f"give at most {available}")
    return found


def worth(threshold: Any, what: str = "threshold", zero: bool = False) -> float:
    """What an edge must be worth.

    Args:
        threshold: the number. what: its name. zero: whether it may be 0.

    Raises:
        BadInput: no finite number, or one below (or at) 0.
    """
    found = number(threshold, what)
    if not isfinite(found) or found < 0 or (found == 0 and not zero):
        least = "0 or more" if zero else "positive"
        raise BadInput(f"{what}={threshold!r}", f"it must be a finite number, {least}", "give one such as 0.01")
    return float(found)
