"""Fronts: which dictionaries nothing else beats in both sparsity and quality, and families compared at matched L0.

A single dictionary says little about its method, because less sparse is always better. So each method is the curve
through its dictionaries, and two methods are compared where both have one: at the same L0, read from the curve between
its two neighbors (on a logarithmic scale of L0). Outside a method's own range there is no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mechanome.core import BadInput, Table
from mechanome.dictionaries.metrics.definitions import DEFINITIONS
from mechanome.dictionaries.metrics.splits import EVERY


@dataclass(frozen=True)
class Dot:
    """One dictionary.

    Args:
        dict_id: which. x, y: its sparsity and quality. lo, hi: interval of y. best: whether nothing beats it in both.
    """

    dict_id: str
    x: float
    y: float
    lo: float | None = None
    hi: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Front:
    """The dictionaries of one method, by sparsity.

    Args:
        name: of the method. dots: ascending in x.
    """

    name: str
    dots: tuple[Dot, ...]

    def at(self, x: float) -> float | None:
        """Quality at a sparsity, read between the two dictionaries around it; None outside of them."""
        xs, ys = np.array([d.x for d in self.dots]), np.array([d.y for d in self.dots])
        if len(xs) == 0 or not xs[0] <= x <= xs[-1]:
            return None
        positive = xs[0] > 0
        scale = np.log(xs) if positive else xs
        return float(np.interp(np.log(x) if positive else x, scale, ys))


@dataclass(frozen=True)
class Pareto:
    """Fronts of methods on common axes.

    Args:
        x, y: metrics, names without version. better: which way y is good.
        fronts: one a method. split: which rows.
    """

    x: str
    y: str
    better: str
    fronts: tuple[Front, ...]
    split: str = field(default=EVERY)

    def table(self) -> Table:
        """Every dictionary, and whether nothing beats it."""
        rows = [(f.name, d.dict_id, d.x, d.y, d.lo, d.hi, "*" if d.best else "") for f in self.fronts for d in f.dots]
        return Table(["method", "dictionary", self.x, self.y, "lo", "hi", "front"], rows, f"{self.y} by {self.x}")

    def matched(self, at: Sequence[float] | None = None) -> Table:
        """Methods side by side at the same sparsity; empty where a method has no dictionaries around it.

        Args:
            at: sparsities; None for those of all dictionaries.
        """
        wanted = sorted({d.x for f in self.fronts for d in f.dots}) if at is None else sorted(at)
        rows = [(x, *(front.at(x) for front in self.fronts)) for x in wanted]
        return Table([self.x, *(front.name for front in self.fronts)], rows, f"{self.y} at matched {self.x}")


def pareto(
    results: Table | Iterable[Table],
    x: str = "l0",
    y: str = "fvu",
    *,
    split: str = EVERY,
    by: Sequence[str] = ("arch",),
) -> Pareto:
    """Fronts of the dictionaries in long tables.

    Args:
        results: of `evaluate` or `read_results`, one or several.
        x, y: metrics, names without version; a smaller x counts as better.
        split: which rows. by: the columns that make a method.

    Raises:
        BadInput: no dictionary has both metrics, one has a metric twice, or y has no better way.
    """
    tables = [results] if isinstance(results, Table) else list(results)
    records = [record for table in tables for record in table.records()]
    found: dict[tuple[str, str], dict[str, Mapping]] = {}
    for record in records:
        if record["metric"] not in (x, y) or record["value"] is None:
            continue
        if (record["metric"] == y and record["split"] != split) or (record["metric"] == x and record["split"] != EVERY):
            continue
        key = (", ".join(str(record[column]) for column in by), record["dict_id"])
        mine = found.setdefault(key, {})
        if record["metric"] in mine:
            raise BadInput(f"dictionary '{key[1]}'", f"{record['metric']} is there twice", "give each its own dict_id")
        mine[record["metric"]] = record
    whole = {key: pair for key, pair in found.items() if len(pair) == len({x, y})}
    if not whole:
        known = sorted({record["metric"] for record in records})
        raise BadInput(f"a front of {y} by {x}", "no dictionary has both", f"metrics here: {', '.join(known)}")
    better = {d.metric: d.better for d in DEFINITIONS.values()}.get(y, "neither")
    if better == "neither":
        raise BadInput(f"a front of {y}", "neither more nor less of it is better", "choose a metric of quality")
    dots = [_dot(key, pair, x, y) for key, pair in whole.items()]
    sign = 1.0 if better == "lower" else -1.0
    best = [not any(_beats(other, dot, sign) for _, other in dots) for _, dot in dots]
    fronts: dict[str, list[Dot]] = {}
    for (name, dot), is_best in zip(dots, best):
        fronts.setdefault(name, []).append(Dot(dot.dict_id, dot.x, dot.y, dot.lo, dot.hi, is_best))
    made = tuple(Front(name, tuple(sorted(each, key=lambda d: d.x))) for name, each in fronts.items())
    return Pareto(x, y, better, made, split)


def _dot(key: tuple[str, str], pair: Mapping[str, Mapping], x: str, y: str) -> tuple[str, Dot]:
    return key[0], Dot(key[1], pair[x]["value"], pair[y]["value"], pair[y]["ci_lo"], pair[y]["ci_hi"])


def _beats(other: Dot, dot: Dot, sign: float) -> bool:
    """Whether another is at least as good in both, and better in one."""
    gains = (dot.x - other.x, sign * (dot.y - other.y))
    return min(gains) >= 0 and max(gains) > 0
