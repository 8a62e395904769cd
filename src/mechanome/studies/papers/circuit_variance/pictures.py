"""Pictures of paper 40's study: similarity over inputs, heads that are found again, the small model, the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mechanome.circuits.stability import stability_report
from mechanome.circuits.stability_card import side_by_side
from mechanome.circuits.variance import PARTS
from mechanome.core import Table
from mechanome.report import HeatMap, Meter, Section, Sheet, number
from mechanome.studies.papers.circuit_variance import QUALITY

if TYPE_CHECKING:
    from mechanome.studies.papers.circuit_variance import Settings
    from mechanome.studies.papers.circuit_variance.measuring import Small, Stored


def sections(
    stored: Stored, small: Sequence[Small], curves: Mapping[str, list[float]], size: Settings
) -> tuple[Section, ...]:
    """The study's sections, in order."""
    inputs = len(stored.exact["near"])
    return (
        _curves(curves, [n for n in (1, 2, 4, 8, 16, 24) if n <= inputs]),
        _again(stored, size),
        _ways(small[0]),
        _parts(small[0]),
        _cut(small[0]),
        _quality(stored.trained[0]["quality"]),
    )


def _curves(curves: Mapping[str, list[float]], sizes: Sequence[int]) -> Section:
    picture = HeatMap(
        list(curves),
        [str(n) for n in sizes],
        list(curves.values()),
        "inputs of a sample",
        "Jaccard",
        ends=("", "always the same heads"),
    )
    lead = ("How alike the heads are that two bootstrap samples choose, by the number of inputs in a sample. Template "
            "'near'.",)  # fmt: skip
    return Section("More inputs, steadier circuits", lead, picture)


def _again(stored: Stored, size: Settings) -> Section:
    effects = stored.exact["near"]
    report = stability_report(effects, sizes=[size.few], samples=size.samples, quiet=True)
    found, shares = report.variation, report.at(size.few).inclusion
    assert found is not None
    chosen = shares.argsort(descending=True, stable=True)[: 2 * size.few].tolist()
    rows = [
        [
            stored.heads[i],
            Meter(float(shares[i])),
            number(float(found.mean[i])),
            number(float(found.cv[i])),
            Meter(float(found.agree[i])),
        ]
        for i in chosen
        if shares[i] > 0
    ]
    columns = (
        ("head", ""),
        ("chosen", f"share of bootstrap samples of {report.n} inputs whose top {size.few} hold it"),
        ("mean effect", "in logits"),
        ("CV", "over inputs"),
        ("sign", "share of inputs with the sign of the mean"),
    )
    half = report.split_half
    finding = () if half is None else (
        f"Chosen and judged on the same half of the inputs, the median CV of {half.size} heads is {half.same:.2f}; "
        f"judged on the other half, {half.other:.2f}.",
    )  # fmt: skip
    lead = ("The heads that most samples choose, and how their effect varies over inputs.",)
    return Section("Which heads are found again", lead, Sheet(columns, rows), finding)


def _ways(small: Small) -> Section:
    found = side_by_side(small.reports)
    across = [small.across[int(column)] for column in found.columns]
    picture = HeatMap(
        [*found.rows[:-1], "across the 16 ways", found.rows[-1]],
        found.columns,
        [*found.values[:-1], across, found.values[-1]],
        found.axis,
        found.row_axis,
        breaks=(len(found.rows) - 1,),
        ends=found.ends,
    )
    lead = ("How alike the edges are that two bootstrap samples choose, for each way to score; then how alike they are "
            "across ways, on the same inputs. First seed.",)  # fmt: skip
    return Section("Samples against hyperparameters: the small model", lead, picture)


def _parts(small: Small) -> Section:
    split = small.split
    rows: list[list[str | Meter]] = [[name, Meter(split.parts[name] / split.total)] for name in PARTS]
    rows.append(["sum of the parts", Meter(split.explained)])
    rows += [[f"analysis of variance: {name}", Meter(share)] for name, share in split.anova.items()]
    columns = (("where it comes from", ""), ("share", "of the total that resampling measured; of the variance"))
    lead = ("The mean squared distance of an edge's score, from a random sample and a random way to score, from its "
            "exact effect over all inputs. First seed.",)  # fmt: skip
    return Section("Where the variance comes from", lead, Sheet(columns, rows, numbers=split.table()))


def _cut(small: Small) -> Section:
    table: Table = small.split.structural_table()
    rows = [[str(row[0]), *(number(float(v)) for v in row[1:])] for row in table.rows]
    columns = tuple((name, "") for name in table.columns)
    lead = ("Scores are simulated as normal with the mean and covariance of the exact ones, cut to the largest, "
            "and compared: what is lost before the cut, what the cut adds, and what normal scores do not "
            "explain.",)  # fmt: skip
    return Section("What the cut costs", lead, Sheet(columns, rows, numbers=table))


def _quality(found: Mapping[str, Mapping[str, Sequence[float]]]) -> Section:
    rows = [
        [size, *(f"{number(mean)} \u00b1 {number(sd)}" for mean, sd in (measures[name] for name in QUALITY))]
        for size, measures in found.items()
    ]
    columns = (("edges", ""), *((name, what) for name, what in QUALITY.items()))
    lead = ("What the circuits of bootstrap samples do on the prompts they were found on: mean and standard deviation "
            "over samples, exact scores with patching. First seed.",)  # fmt: skip
    return Section("Circuits that differ, and what they do", lead, Sheet(columns, rows))
