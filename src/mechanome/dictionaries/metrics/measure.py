"""One measured number: its definition, its interval, and how many rows are behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mechanome.core import Interval, NotFinite, TooFewRows, bootstrap
from mechanome.dictionaries.metrics.definitions import Definition, definition

RESAMPLES = 1_000
"""Of a bootstrap; there is one for each metric, split and dictionary."""


@dataclass(frozen=True)
class Measure:
    """A number and what it is.

    Args:
        definition: what it is.
        value: the number; None where the data do not determine it.
        lo, hi: a 95 % interval, None where there is none.
        n: rows (or tokens, features, groups) behind it.
    """

    definition: Definition
    value: float | None
    lo: float | None = None
    hi: float | None = None
    n: int = 0

    def __float__(self) -> float:
        if self.value is None:
            raise NotFinite(self.definition.name, "the data do not determine it", "measure more rows")
        return self.value


def measure(name: str, value: float | None, n: int, interval: Interval | None = None) -> Measure:
    """A number under a definition's name; infinity and NaN become None."""
    if value is None or not np.isfinite(value):
        return Measure(definition(name), None, n=n)
    lo, hi = (None, None) if interval is None else (interval.lo, interval.hi)
    return Measure(definition(name), float(value), lo, hi, n)


def ratio_interval(sums: np.ndarray, statistic: Callable[[np.ndarray], float], seed: int = 0) -> Interval | None:
    """A bootstrap interval of a function of sums, over units that belong together.

    Args:
        sums: `[unit, quantity]`, float64. statistic: from the totals `[quantity]` to one number. seed: of the draws.

    Returns:
        None where fewer than two units hold anything, or where too many resamples have no value.
    """
    try:
        return bootstrap(sums, lambda rows: statistic(rows.sum(0)), resamples=RESAMPLES, seed=seed)
    except (TooFewRows, NotFinite):
        return None
