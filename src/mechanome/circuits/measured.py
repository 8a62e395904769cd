"""`Measured`: a number with its interval, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mechanome.core import Interval, NotFinite, TooFewRows, bootstrap

RESAMPLES = 2_000
"""Of intervals over examples."""


@dataclass(frozen=True)
class Measured:
    """One property of a circuit.

    Args:
        name: which.
        value: the number; None where it is not defined.
        interval: over examples; None where one example, or a denominator that may be zero, allows none.
        note: why there is no value or no interval, or what a reader must know of it.
        each: per example, None where it is not defined there; empty for what is no mean over examples.
    """

    name: str
    value: float | None
    interval: Interval | None = None
    note: str = ""
    each: tuple[float | None, ...] = ()

    def __float__(self) -> float:
        """The value.

        Raises:
            NotFinite: it is not defined, with the reason.
        """
        if self.value is None:
            raise NotFinite(self.name, self.note, "ask for .value and .note, or choose other examples")
        return self.value

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name}: not defined ({self.note})"
        shown = str(self.interval) if self.interval else f"{self.value:.4g}"
        return f"{self.name}: {shown}" + (f" ({self.note})" if self.note else "")


def mean(name: str, each: list[float | None], why: str = "") -> Measured:
    """The mean over those examples where a quantity is defined.

    Args:
        name: the quantity. each: per example. why: why it is not defined where it is not.
    """
    kept = [x for x in each if x is not None]
    if not kept:
        return Measured(name, None, note=why or "there are no examples", each=tuple(each))
    left = f"{len(each) - len(kept)} of {len(each)} examples left out: {why}" if len(kept) < len(each) else ""
    return over_examples(name, np.array(kept), lambda rows: float(rows.mean()), left, tuple(each))


def over_examples(
    name: str,
    rows: np.ndarray,
    statistic: Callable[[np.ndarray], float],
    note: str = "",
    each: tuple[float | None, ...] = (),
) -> Measured:
    """A statistic of examples `[example, ...]` with its bootstrap interval; NaN says that it is not defined."""
    value = statistic(rows)
    chosen = "mean" if rows.ndim == 1 else statistic
    try:
        interval = bootstrap(rows, chosen, resamples=RESAMPLES)  # type: ignore[arg-type]
    except TooFewRows:
        return Measured(name, value, note="; ".join(filter(None, [note, "one example: no interval"])), each=each)
    except NotFinite:
        why = "no interval: over resamples of the examples it is often not defined"
        return Measured(name, value, note="; ".join(filter(None, [note, why])), each=each)
    return Measured(name, value, interval, note, each)
