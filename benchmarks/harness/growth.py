"""How cost grows: the same comparison at several sizes, and the exponent of a power law fitted to the medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.pairing import Row, Timing


@dataclass(frozen=True)
class Growth:
    """A comparison along one axis.

    Attributes:
        axis: what grows.
        rows: by size, one comparison each.
    """

    axis: str
    rows: dict[int, Row]


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of `seconds ~ size ** p`, by least squares on logarithms.

    Raises:
        ValueError: fewer than two sizes.
    """
    if len(set(sizes)) < 2:
        raise ValueError("an exponent needs at least two sizes")
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def record(growth: Growth, timings: Sequence[Timing]) -> dict[str, Any]:
    """One entry of the results file: medians by size and both exponents."""
    sizes = list(growth.rows)
    ours, theirs = [t.ours_seconds for t in timings], [t.peer_seconds for t in timings]
    return {
        "work": timings[0].row.work,
        "peer": timings[0].row.peer,
        "axis": growth.axis,
        "sizes": sizes,
        "ours_seconds": [round(x, 6) for x in ours],
        "peer_seconds": [round(x, 6) for x in theirs],
        "ours_exponent": round(exponent(sizes, ours), 3),
        "peer_exponent": round(exponent(sizes, theirs), 3),
        "agree": float(f"{max(t.agree for t in timings):.3g}"),
    }
