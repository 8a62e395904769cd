"""The report card of a circuit method: numbers at every circuit size, as a table, a record and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mechanome.circuits.effects import Components
from mechanome.circuits.variation import SplitHalf, Variation
from mechanome.core import Interval, Table, UnknownName, nearest
from mechanome.report import HeatMap


@dataclass(frozen=True)
class Spread:
    """What circuits of resamples do, such as their faithfulness.

    Args:
        mean: over samples, with its interval over inputs.
        sd: over samples.
        cv: sd / |mean|; None where the interval of the mean reaches 0, because it then says nothing.
    """

    mean: Interval
    sd: float
    cv: float | None

    @classmethod
    def of(cls, values: Tensor, mean: Interval) -> Spread:
        """From the number of each sample, `[sample]`, and the interval of their mean."""
        sd = float(values.std())
        return cls(mean, sd, None if 0.0 in mean else sd / abs(mean.estimate))

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {"mean": _interval(self.mean), "sd": self.sd, "cv": self.cv}


@dataclass(frozen=True, eq=False)
class Point:
    """Circuits of one size.

    Args:
        named: the size that was asked for.
        size: components of a circuit, mean over samples.
        jaccard: mean Jaccard index of pairs of samples; of edges where these are edges, else of nodes.
        chance: what random sets of this size reach, k / (2N - k).
        nodes, node_chance: the same of the sources that send along chosen edges; None for circuits of nodes.
        weighted: sum of smaller over sum of larger scores within the circuits; None without scores.
        inclusion: share of samples that choose a component, `[source(, target)]`.
        quality: what the circuits do, by name.
    """

    named: str
    size: float
    jaccard: Interval
    chance: float
    nodes: Interval | None
    node_chance: float | None
    weighted: Interval | None
    inclusion: Tensor = field(repr=False)
    quality: Mapping[str, Spread] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        always = float((self.inclusion == 1).sum())
        ever = float((self.inclusion > 0).sum())
        return {
            "named": self.named,
            "size": self.size,
            "jaccard": _interval(self.jaccard),
            "chance": self.chance,
            "nodes": _interval(self.nodes),
            "node_chance": self.node_chance,
            "weighted": _interval(self.weighted),
            "always_included": always,
            "ever_included": ever,
            "quality": {name: spread.record() for name, spread in self.quality.items()},
        }


@dataclass(frozen=True, eq=False)
class StabilityReport:
    """How stable a circuit method is under other inputs.

    Args:
        components: what circuits are chosen from.
        n: inputs of a sample. inputs: how many there are. samples: how many resamples. draw: how they were drawn.
        aggregate: how scores of inputs became one; None for a method that does it itself.
        points: one a circuit size.
        tau: mean Kendall tau of the scores of two samples, over all components; None without scores, or where some are
            constant.
        variation: of single effects over inputs; None for a method. split_half: whether choosing flatters them.
        notes: what a reader must know.
    """

    components: Components
    n: int
    inputs: int
    samples: int
    draw: str
    aggregate: str | None
    points: tuple[Point, ...]
    tau: Interval | None
    variation: Variation | None
    split_half: SplitHalf | None
    notes: tuple[str, ...] = ()

    def at(self, size: int | str) -> Point:
        """The circuits of one size.

        Raises:
            UnknownName: it was not asked for.
        """
        found = {point.named: point for point in self.points}
        if str(size) not in found:
            raise UnknownName(f"size {size}", "it was not asked for", nearest(str(size), found))
        return found[str(size)]

    @property
    def kind(self) -> str:
        """What circuits are sets of."""
        return "edges" if self.components.edges else "nodes"

    def table(self) -> Table:
        """One row a size: similarities with intervals, chance levels, and what circuits do."""
        named = list(dict.fromkeys(name for point in self.points for name in point.quality))
        columns = ["size", self.kind, "Jaccard", "chance", "Jaccard of nodes", "chance of nodes", "weighted", *named]
        rows = [
            (
                p.named,
                p.size,
                _shown(p.jaccard),
                p.chance,
                _shown(p.nodes),
                p.node_chance,
                _shown(p.weighted),
                *(_shown(p.quality[name].mean if name in p.quality else None) for name in named),
            )
            for p in self.points
        ]
        return Table(columns, rows, repr(self))

    def inclusion(self, size: int | str, k: int | None = 20) -> Table:
        """The components that most samples choose, at one circuit size."""
        shares = self.at(size).inclusion[self.components.where]
        order = shares.argsort(descending=True, stable=True)[:k].tolist()
        rows = [(self.components.name(i), float(shares[i])) for i in order if shares[i] > 0]
        return Table(["component", "share of samples"], rows, f"In circuits of {size}")

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "components": len(self.components),
            "kind": self.kind,
            "n": self.n,
            "inputs": self.inputs,
            "samples": self.samples,
            "draw": self.draw,
            "aggregate": self.aggregate,
            "points": [point.record() for point in self.points],
            "kendall_tau": _interval(self.tau),
            "variation": None if self.variation is None else self.variation.record(),
            "split_half": None if self.split_half is None else self.split_half.record(),
            "notes": list(self.notes),
        }

    def picture(self) -> HeatMap:
        """Similarities over circuit sizes, with the level of chance below each."""
        lines: dict[str, list[float | None]] = {
            f"{self.kind}": [p.jaccard.estimate for p in self.points],
            "chance": [p.chance for p in self.points],
            "nodes used": [None if p.nodes is None else p.nodes.estimate for p in self.points],
            "chance, nodes": [p.node_chance for p in self.points],
            "weighted": [None if p.weighted is None else p.weighted.estimate for p in self.points],
        }
        kept = {name: values for name, values in lines.items() if any(v is not None for v in values)}
        sizes = [point.named for point in self.points]
        return HeatMap(list(kept), sizes, list(kept.values()), "circuit size", "Jaccard", ends=("", "always the same"))

    def __repr__(self) -> str:
        return (f"Stability of circuits of {self.kind}: {self.samples} {self.draw} samples of {self.n} out of "
                f"{self.inputs} inputs")  # fmt: skip

    def _repr_html_(self) -> str:
        return self.table().html()


def side_by_side(reports: Mapping[str, StabilityReport]) -> HeatMap:
    """The Jaccard index of several methods over circuit sizes, with the level of chance last.

    Args:
        reports: by the method's name, of the same components and sizes.
    """
    first = next(iter(reports.values()))
    sizes = [point.named for point in first.points]
    rows = {name: [point.jaccard.estimate for point in report.points] for name, report in reports.items()}
    rows["chance"] = [point.chance for point in first.points]
    return HeatMap(list(rows), sizes, list(rows.values()), "circuit size", "Jaccard", ends=("", "always the same"))


def _interval(at: Interval | None) -> dict[str, Any] | None:
    return None if at is None else {"estimate": at.estimate, "lo": at.lo, "hi": at.hi, "n": at.n, "level": at.level}


def _shown(at: Interval | None) -> str:
    return "" if at is None else f"{at.estimate:.3f} [{at.lo:.3f}, {at.hi:.3f}]"
