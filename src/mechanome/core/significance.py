"""Tests against chance, by permutation: shuffle what the null hypothesis says does not matter, and count.

The p-value is ``(k + 1) / (resamples + 1)``, k being how many shuffles reach the observed statistic. Counting the
data themselves as one shuffle makes the test valid at every level and never returns 0. Many tests at once are
adjusted by :func:`holm` (no false claim at all) or :func:`benjamini_hochberg` (few among those claimed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from mechanome.core.errors import BadInput, ShapeMismatch, TooFewRows, UnknownName, nearest
from mechanome.core.numeric import numbers
from mechanome.core.tables import Table

Alternative = Literal["greater", "less", "two-sided"]

_EXCEEDS: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "greater": lambda draws, observed, slack: draws >= observed - slack,
    "less": lambda draws, observed, slack: draws <= observed + slack,
    "two-sided": lambda draws, observed, slack: np.abs(draws) >= abs(observed) - slack,
}


@dataclass(frozen=True)
class Permutation:
    """The outcome of a permutation test.

    Args:
        observed: the statistic of the data.
        p: the p-value, at least ``1 / (resamples + 1)``.
        n: rows (pairs, where paired).
        resamples: how many shuffles were drawn.
        alternative: which side counts as extreme.
    """

    observed: float
    p: float
    n: int
    resamples: int
    alternative: str

    def __str__(self) -> str:
        return f"{self.observed:.4g} (p={self.p:.3g}, {self.alternative}, n={self.n}, {self.resamples} shuffles)"

    def table(self) -> Table:
        """One row: statistic, p, n, shuffles, alternative."""
        columns = ["observed", "p", "n", "shuffles", "alternative"]
        return Table(columns, [[self.observed, self.p, self.n, self.resamples, self.alternative]])


def permutation_test(
    a: Any,
    b: Any,
    statistic: Literal["mean"] | Callable[[np.ndarray], float] = "mean",
    *,
    paired: bool = False,
    alternative: Alternative = "two-sided",
    resamples: int = 10_000,
    seed: int = 0,
) -> Permutation:
    """Do two sets of numbers differ? The statistic is ``statistic(a) - statistic(b)``.

    Args:
        a: numbers ``[row]``.
        b: numbers ``[row]``; the same rows as ``a`` where ``paired``.
        statistic: ``"mean"`` or a function from ``[row]`` to a float.
        paired: exchange within pairs (row i of ``a`` with row i of ``b``) instead of across all rows.
        alternative: ``"greater"`` asks whether ``a`` is larger.
        resamples: how many shuffles.
        seed: of the shuffles.

    Raises:
        TooFewRows: fewer than two rows on a side.
        ShapeMismatch: paired sides of unequal length, or several axes.
        NotFinite: NaN or infinity in the values.
    """
    first, second = numbers(a, "a"), numbers(b, "b")
    if first.ndim != 1 or second.ndim != 1 or (paired and first.shape != second.shape):
        raise ShapeMismatch("a and b", f"shapes {first.shape} and {second.shape}", "pass vectors, equal when paired")
    if min(len(first), len(second)) < 2:
        raise TooFewRows("permutation_test", f"{len(first)} and {len(second)} rows", "measure at least two a side")
    generator = np.random.default_rng(seed)
    cut = len(first)
    pooled = np.concatenate([first, second])
    if statistic == "mean":
        # Rounding would otherwise split ties between arrangements when the numbers are large against their spread.
        pooled = pooled - pooled.mean()

    def difference(values: np.ndarray) -> float:
        if statistic == "mean":
            return float(values[:cut].mean() - values[cut:].mean())
        return float(statistic(values[:cut])) - float(statistic(values[cut:]))

    def shuffled() -> np.ndarray:
        if not paired:
            return generator.permutation(pooled)
        swap = generator.random(cut) < 0.5
        upper, lower = pooled[:cut], pooled[cut:]
        return np.concatenate([np.where(swap, lower, upper), np.where(swap, upper, lower)])

    draws = np.array([difference(shuffled()) for _ in range(_positive(resamples))])
    rows = cut if paired else len(pooled)
    return _outcome(difference(pooled), draws, alternative, rows)


def label_permutation_test(
    statistic: Callable[[np.ndarray], float],
    labels: Sequence[Any],
    *,
    within: Sequence[Any] | None = None,
    alternative: Alternative = "greater",
    resamples: int = 1_000,
    seed: int = 0,
) -> Permutation:
    """Does a statistic depend on which row has which label? The shuffled-label control, with a p-value.

    Args:
        statistic: from labels ``[row]`` (an array in the given or a shuffled order) to a float, such as the
            cross-validated accuracy of a probe fitted to those labels.
        labels: one label a row.
        within: one stratum a row; labels are shuffled only inside their stratum, so that what the strata explain
            does not count.
        alternative: ``"greater"``, ``"less"`` or, for a statistic that is centered on 0 by chance, ``"two-sided"``.
        resamples: how many shuffles, each one evaluation of ``statistic``.
        seed: of the shuffles.

    Raises:
        TooFewRows: fewer than two rows.
        ShapeMismatch: ``within`` does not name a stratum for every row.
    """
    data = np.asarray(labels)
    strata = np.zeros(len(data), dtype=int) if within is None else np.unique(np.asarray(within), return_inverse=True)[1]
    if len(strata) != len(data):
        raise ShapeMismatch("within", f"{len(strata)} strata for {len(data)} labels", "give one stratum a row")
    if len(data) < 2:
        raise TooFewRows("label_permutation_test", f"{len(data)} rows", "measure at least two")
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]

    def shuffled() -> np.ndarray:
        order = np.arange(len(data))
        for rows in members:
            order[rows] = generator.permutation(rows)
        return data[order]

    draws = np.array([float(statistic(shuffled())) for _ in range(_positive(resamples))])
    return _outcome(float(statistic(data)), draws, alternative, len(data))


def holm(p_values: Any) -> np.ndarray:
    """Holm's adjusted p-values ``[test]``: claiming those below alpha makes any false claim with chance <= alpha.

    Args:
        p_values: ``[test]``, each in 0 to 1, in any order; the order is kept.

    Raises:
        BadInput: a value outside 0 to 1.
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return _restored(np.minimum(stepped, 1.0), order)


def benjamini_hochberg(p_values: Any) -> np.ndarray:
    """Benjamini-Hochberg adjusted p-values ``[test]``: among those claimed below q, at most q are false on average.

    Args:
        p_values: ``[test]``, each in 0 to 1, independent or positively dependent; the order is kept.

    Raises:
        BadInput: a value outside 0 to 1.
    """
    p = _p_values(p_values)
    order = np.argsort(p, kind="stable")
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    return _restored(np.minimum.accumulate(scaled[::-1])[::-1], order)


def _outcome(observed: float, draws: np.ndarray, alternative: str, n: int) -> Permutation:
    if alternative not in _EXCEEDS:
        raise UnknownName(f"alternative {alternative!r}", "no such side", nearest(alternative, _EXCEEDS))
    numbers(np.append(draws, observed), "statistic")
    slack = 1e-10 * float(np.abs(draws).max())
    reached = int(_EXCEEDS[alternative](draws, observed, slack).sum())
    return Permutation(observed, (reached + 1) / (len(draws) + 1), n, len(draws), alternative)


def _positive(resamples: int) -> int:
    if resamples < 1:
        raise BadInput("resamples", f"{resamples} is not a positive count", "use the default")
    return resamples


def _p_values(p_values: Any) -> np.ndarray:
    p = numbers(p_values, "p_values")
    if p.ndim != 1 or ((p < 0) | (p > 1)).any():
        raise BadInput("p_values", "not a vector of probabilities", "pass numbers between 0 and 1")
    return p


def _restored(ordered: np.ndarray, order: np.ndarray) -> np.ndarray:
    result = np.empty_like(ordered)
    result[order] = ordered
    return result
