"""Estimates with intervals: no number leaves Mechanome without one.

Everything here resamples *units*. A unit is one row or, where rows belong together (the tokens of one document,
the prompts of one template), one group of rows; drawing whole groups keeps the interval honest when rows are not
independent. A statistic is a function of drawn unit indices, so the bootstrap, its BCa correction and the
jackknife behind it are a few lines that never ask what is being estimated. All arithmetic is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import rankdata

from mechanome.core.errors import BadInput, NotFinite, ShapeMismatch, TooFewRows
from mechanome.core.numeric import numbers
from mechanome.core.tables import Table

Method = Literal["bca", "percentile"]
Statistic = Literal["mean"] | Callable[[np.ndarray], float]
Draw = Callable[[np.ndarray], np.ndarray]
"""Unit indices ``[draw, unit]`` to the statistic of each draw ``[draw]``."""

_CELLS = 2**22
"""How many indices are held at once; larger requests are drawn in pieces, with the same numbers."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the range that would cover the true value in ``level`` of repeated experiments.

    Args:
        estimate: the statistic of the data as measured.
        lo: lower end.
        hi: upper end.
        n: independent units behind it (groups, where rows were grouped).
        level: nominal coverage, 0 to 1.
        method: how it was made; a remark follows a semicolon where the data forced one.
    """

    estimate: float
    lo: float
    hi: float
    n: int
    level: float = 0.95
    method: str = "bca"

    def __str__(self) -> str:
        return f"{self.estimate:.4g} [{self.lo:.4g}, {self.hi:.4g}] ({100 * self.level:g} %, n={self.n})"

    def __contains__(self, value: float) -> bool:
        return self.lo <= value <= self.hi

    @property
    def has_spread(self) -> bool:
        """False where every resample gave the same number, so that the width says nothing about uncertainty."""
        return self.hi - self.lo > 1e-12 * max(abs(self.lo), abs(self.hi))

    def table(self, name: str = "estimate") -> Table:
        """One row: the quantity's name, estimate, ends, n and method."""
        columns = ["quantity", "estimate", "lo", "hi", "n", "method"]
        return Table(columns, [[name, self.estimate, self.lo, self.hi, self.n, self.method]])


def bootstrap(
    values: Any,
    statistic: Statistic = "mean",
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    groups: Sequence[Any] | None = None,
    method: Method = "bca",
) -> Interval:
    """A bootstrap interval of any statistic, over rows or over groups of rows.

    Args:
        values: numbers ``[row]``; for a callable statistic also ``[row, ...]``. Array, tensor or list.
        statistic: ``"mean"``, or a function from rows (the shape of ``values``) to one float.
        level: nominal coverage.
        resamples: how many resampled data sets.
        seed: of the draws; the same seed gives the same interval.
        groups: one label a row; rows with the same label are drawn together (cluster bootstrap), and ``n``
            counts groups.
        method: ``"bca"`` corrects bias and skew; ``"percentile"`` is the plain quantiles. Where BCa does not exist
            (every resample on one side of the estimate, or a flat jackknife) the percentile interval is returned
            and ``method`` says so. Identical values give an interval without width: no resampling can see
            variation that the data do not show. For outcomes of 0 and 1, :func:`binomial` can.

    Returns:
        the interval; resamples on which the statistic is NaN are left out and counted in ``method``.

    Raises:
        TooFewRows: fewer than two rows or groups.
        NotFinite: NaN or infinity in the values, in the estimate, or in over a tenth of the resamples.
    """
    data = numbers(values)
    units = _units(len(data), groups)
    if statistic != "mean":
        return _resample(_draw(data, statistic, units), len(units), None, level, resamples, seed, method)
    if data.ndim != 1:
        raise ShapeMismatch("values", f"a mean needs one axis, got shape {data.shape}", "pass a callable statistic")
    counts = np.array([len(unit) for unit in units], dtype=np.float64)
    sums = np.array([data[unit].sum() for unit in units])

    def mean(index: np.ndarray) -> np.ndarray:
        return sums[index].sum(-1) / counts[index].sum(-1)

    # The jackknife of a mean has a closed form; without it BCa would cost units squared.
    left_out = (sums.sum() - sums) / (counts.sum() - counts) if len(units) > 1 else None
    return _resample(mean, len(units), left_out, level, resamples, seed, method)


def paired_bootstrap(a: Any, b: Any, statistic: Statistic = "mean", **options: Any) -> Interval:
    """The interval of a statistic of ``a - b``, row by row: use it whenever both were measured on the same rows.

    Args:
        a: numbers ``[row]``.
        b: numbers ``[row]``, measured on the same rows.
        statistic: of the differences, as in :func:`bootstrap`.
        options: ``level``, ``resamples``, ``seed``, ``groups``, ``method`` of :func:`bootstrap`.

    Raises:
        ShapeMismatch: the two differ in shape.
    """
    return bootstrap(_difference(a, b), statistic, **options)


def binomial(successes: int, n: int, level: float = 0.95) -> Interval:
    """The exact (Clopper-Pearson) interval of a proportion: coverage is never below ``level``.

    Args:
        successes: how many of ``n`` trials succeeded.
        n: independent trials.
        level: nominal coverage.

    Raises:
        TooFewRows: no trial.
        BadInput: ``successes`` is not a count between 0 and ``n``.
    """
    _check_level(level)
    if n < 1:
        raise TooFewRows("binomial", "no trials", "measure at least one")
    if not 0 <= successes <= n or int(successes) != successes:
        raise BadInput("successes", f"{successes} is not a count between 0 and {n}", "count the successes")
    tail = (1 - level) / 2
    lo = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    hi = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Interval(successes / n, lo, hi, int(n), level, "clopper-pearson")


def spearman(
    x: Any,
    y: Any,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    groups: Sequence[Any] | None = None,
    method: Method = "bca",
) -> Interval:
    """Spearman's rank correlation (ties get their average rank) with a bootstrap interval over pairs.

    Args:
        x: numbers ``[row]``.
        y: numbers ``[row]``.
        level, resamples, seed, groups, method: as in :func:`bootstrap`.

    Raises:
        ShapeMismatch: ``x`` and ``y`` differ in shape or have several axes.
        NotFinite: one of them is constant (its ranks do not vary), or so few values differ that over a tenth of the
            resamples are constant.
    """
    first, second = numbers(x, "x"), numbers(y, "y")
    if first.shape != second.shape or first.ndim != 1:
        raise ShapeMismatch("spearman", f"shapes {first.shape} and {second.shape}", "pass two equally long vectors")
    pairs = np.stack([first, second], axis=-1)
    units = _units(len(pairs), groups)
    draw = _draw(pairs, _rank_correlation, units, vectorized=groups is None)
    return _resample(draw, len(units), None, level, resamples, seed, method)


def _difference(a: Any, b: Any) -> np.ndarray:
    first, second = numbers(a, "a"), numbers(b, "b")
    if first.shape != second.shape:
        why = f"paired rows need equal shapes, got {first.shape} and {second.shape}"
        raise ShapeMismatch("a and b", why, "measure both on the same rows")
    return first - second


def _units(rows: int, groups: Sequence[Any] | None) -> list[np.ndarray]:
    """Row indices of each unit; units are in order of first appearance, so labels' names never matter."""
    if groups is None:
        return list(np.arange(rows)[:, None])
    labels = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    if len(labels) != rows:
        raise ShapeMismatch("groups", f"{len(labels)} labels for {rows} rows", "give one label a row")
    members: dict[Any, list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault(label, []).append(row)
    return [np.array(unit) for unit in members.values()]


def _draw(
    data: np.ndarray, statistic: Callable[[np.ndarray], Any], units: list[np.ndarray], vectorized: bool = False
) -> Draw:
    """The statistic as a function of unit indices; ``vectorized`` where it maps ``[draw, row, ...]`` to ``[draw]``."""
    if vectorized:
        return lambda index: np.asarray(statistic(data[index]), dtype=np.float64)
    if len(units) == len(data):
        return lambda index: np.array([float(statistic(data[draw])) for draw in index])
    return lambda index: np.array(
        [float(statistic(data[np.concatenate([units[u] for u in draw])])) for draw in index], dtype=np.float64
    )


def _resample(
    draw: Draw, units: int, jackknife: np.ndarray | None, level: float, resamples: int, seed: int, method: Method
) -> Interval:
    """The bootstrap itself: draw, take quantiles, and say what could not be done."""
    _check_level(level)
    if method not in ("bca", "percentile"):
        raise BadInput("method", f"{method!r} is not known", "use 'bca' or 'percentile'")
    if resamples < 1:
        raise BadInput("resamples", f"{resamples} is not a positive count", "use the default of 10,000")
    if units < 2:
        raise TooFewRows("bootstrap", f"{units} independent rows or groups", "measure at least two")
    estimate = float(draw(np.arange(units)[None])[0])
    if not np.isfinite(estimate):
        raise NotFinite("statistic", f"it is {estimate} on the data", "the data do not determine it")
    generator = np.random.default_rng(seed)
    piece = max(1, _CELLS // units)
    sizes = [min(piece, resamples - start) for start in range(0, resamples, piece)]
    draws = np.concatenate([draw(generator.integers(0, units, size=(size, units))) for size in sizes])
    defined = draws[np.isfinite(draws)]
    undefined = resamples - len(defined)
    if undefined > resamples / 10:
        raise NotFinite("statistic", f"undefined on {undefined} of {resamples} resamples", "measure more rows")

    remarks = [f"{undefined} of {resamples} resamples undefined"] if undefined else []
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if method == "bca":
        left_out = _leave_one_out(draw, units) if jackknife is None else jackknife
        corrected = _bca_tails(defined, estimate, left_out, tails)
        if corrected is None:
            method = "percentile"
            remarks.append("bca undefined")
        else:
            tails = corrected
    lo, hi = (float(end) for end in np.quantile(defined, tails))
    return Interval(estimate, lo, hi, units, level, "; ".join([method, *remarks]))


def _leave_one_out(draw: Draw, units: int) -> np.ndarray:
    """The statistic without each unit in turn, ``[unit]``."""
    piece = max(1, _CELLS // units)
    kept = np.arange(units - 1)
    blocks = (np.arange(units)[start : start + piece, None] for start in range(0, units, piece))
    return np.concatenate([draw(kept + (kept >= block)) for block in blocks])


def _bca_tails(draws: np.ndarray, estimate: float, left_out: np.ndarray, tails: np.ndarray) -> np.ndarray | None:
    """Efron's bias-corrected and accelerated quantile levels, or None where they are undefined."""
    deviation = left_out.mean() - left_out
    spread = float((deviation**2).sum())
    bias = ndtri(((draws < estimate).mean() + (draws <= estimate).mean()) / 2)
    if not (np.isfinite(bias) and np.isfinite(spread) and spread > 0):
        return None
    acceleration = (deviation**3).sum() / (6 * spread**1.5)
    shifted = bias + ndtri(tails)
    return np.asarray(ndtr(bias + shifted / (1 - acceleration * shifted)))


def _rank_correlation(pairs: np.ndarray) -> np.ndarray:
    """Pearson's correlation of ranks; pairs ``[..., row, 2]`` to ``[...]``, NaN where a column is constant."""
    ranks = rankdata(pairs, axis=-2)
    ranks -= ranks.mean(-2, keepdims=True)
    cross = (ranks[..., 0] * ranks[..., 1]).sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(cross / np.sqrt((ranks**2).sum(-2).prod(-1)))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise BadInput("level", f"{level} is not between 0 and 1", "use 0.95")
