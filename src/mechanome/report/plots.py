"""Pictures with axes, drawn as SVG. Layer pictures share one geometry, so that they line up under each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mechanome.core import Table
from mechanome.report.pictures import _ink
from mechanome.report.rendering import render, share, visible

WIDTH = 960
LEFT = 120
RIGHT = 16
"""Units of the drawing: its width, and the margins around the plot."""
_FLOOR = -12
"""Probabilities below one in 10^12 are drawn there."""


def _columns(n: int) -> tuple[float, list[float]]:
    """Width of a column, and the left edge of each."""
    width = (WIDTH - LEFT - RIGHT) / n
    return width, [LEFT + i * width for i in range(n)]


def _ticks(labels: Sequence[str], centers: Sequence[float], most: int = 16) -> list[tuple[str, float]]:
    """Labels of an axis, thinned so that they do not touch."""
    step = -(-len(labels) // most)
    return [(label, x) for i, (label, x) in enumerate(zip(labels, centers)) if i % step == 0]


@dataclass(frozen=True)
class HeatMap:
    """Signed shares over rows and columns.

    Args:
        rows: labels, top to bottom; tokens are shown with their spaces.
        columns: labels, left to right.
        values: `[row][column]`, shares of 1; None where not measured, which is drawn hatched.
        axis: what the columns are.
        row_axis: what the rows are.
        breaks: rows that are set off from the one above.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    axis: str
    row_axis: str
    breaks: Sequence[int] = ()

    def html(self) -> Markup:
        """The grid, its axes and its scale."""
        width, lefts = _columns(len(self.columns))
        height = 22 if len(self.rows) <= 16 else 16
        y, tops = 6.0, []
        for i in range(len(self.rows)):
            y += 8 if i in self.breaks else 0
            tops.append(y)
            y += height
        cells = [
            {
                "x": f"{left:.2f}",
                "y": f"{top:.2f}",
                "tip": f"{visible(row)}, {self.axis} {column}: {'not measured' if v is None else share(v, 1)}",
                **_ink(v),
            }
            for row, top, values in zip(self.rows, tops, self.values)
            for column, left, v in zip(self.columns, lefts, values)
        ]
        return render(
            "heat.html.j2",
            width=WIDTH,
            height=y + 40,
            bottom=y,
            left=LEFT,
            cell=(f"{width - 1.5:.2f}", height - 1.5),
            cells=cells,
            rows=[(visible(row), top + height / 2 + 4) for row, top in zip(self.rows, tops)],
            ticks=_ticks(self.columns, [x + width / 2 for x in lefts]),
            axis=self.axis,
            middle=(LEFT + WIDTH - RIGHT) / 2,
        )

    def table(self) -> Table:
        """One line a row, one column a column, in percent."""
        rows = [
            [visible(row), *(None if v is None else round(100 * v, 1) for v in values)]
            for row, values in zip(self.rows, self.values)
        ]
        return Table([f"{self.row_axis} / {self.axis}", *self.columns], rows)


@dataclass(frozen=True)
class Series:
    """One line.

    Args:
        name: of the line.
        role: "answer" or "foil".
        values: log-probabilities in nats, one a column.
        tips: remark of each point.
    """

    name: str
    role: str
    values: Sequence[float]
    tips: Sequence[str]


@dataclass(frozen=True)
class Lines:
    """Probabilities over layers, on a logarithmic scale.

    Args:
        columns: labels, left to right.
        series: the lines.
        axis: what the columns are.
        remarks: a remark for each column, for the table.
        remark_name: what the remarks are.
    """

    columns: Sequence[str]
    series: Sequence[Series]
    axis: str
    remarks: Sequence[str]
    remark_name: str

    def html(self) -> Markup:
        """The curves with points to hover over."""
        width, lefts = _columns(len(self.columns))
        lowest = min(min(s.values) for s in self.series) / math.log(10)
        floor = max(_FLOOR, min(-2, math.floor(lowest)))
        top, bottom = 14.0, 214.0

        def y(value: float) -> float:
            return bottom + (top - bottom) * (1 - max(floor, value / math.log(10)) / floor)

        lines = []
        for series in self.series:
            points = [(left + width / 2, y(v)) for left, v in zip(lefts, series.values)]
            path = " ".join(f"{'M' if i == 0 else 'L'}{px:.1f},{py:.1f}" for i, (px, py) in enumerate(points))
            dots = [(f"{px:.1f}", f"{py:.1f}", tip) for (px, py), tip in zip(points, series.tips)]
            lines.append({"name": visible(series.name), "role": series.role, "path": path, "dots": dots})
        step = max(2, -(-abs(floor) // 5))
        powers = range(0, floor - 1, -step)
        grid = [("\u2264 " * (p == _FLOOR) + _one_in(p), y(p * math.log(10))) for p in powers]
        return render(
            "lines.html.j2",
            width=WIDTH,
            height=bottom + 46,
            bottom=bottom,
            left=LEFT,
            right=WIDTH - RIGHT,
            grid=grid,
            lines=lines,
            ticks=_ticks(self.columns, [x + width / 2 for x in lefts]),
            axis=self.axis,
            middle=(LEFT + WIDTH - RIGHT) / 2,
        )

    def table(self) -> Table:
        """A column of log-probabilities a line."""
        names = [f"log-probability of {visible(s.name)} (nats)" for s in self.series]
        rows = list(zip(self.columns, *(s.values for s in self.series), self.remarks))
        return Table([self.axis, *names, self.remark_name], rows)


def _one_in(power: int) -> str:
    return {0: "100\u202f%", -1: "10\u202f%", -2: "1\u202f%"}.get(power, f"1 in 10{_superscript(-power)}")


def _superscript(number: int) -> str:
    return str(number).translate(
        str.maketrans("0123456789", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    )


@dataclass(frozen=True)
class Contest:
    """One measured share against those of random sets.

    Args:
        label: what was done.
        own: the share of the named parts.
        others: of each random set.
        needed: the share that passes.
    """

    label: str
    own: float
    others: Sequence[float]
    needed: float


@dataclass(frozen=True)
class Dots:
    """Contests on a common scale: each random set a dot, the named parts a diamond, what is needed a line.

    Args:
        contests: one a row.
        axis: what the scale is.
    """

    contests: Sequence[Contest]
    axis: str

    def html(self) -> Markup:
        """The rows."""
        every = [v for c in self.contests for v in (c.own, *c.others, 0.0, 1.0)]
        low, high = math.floor(10 * min(every)) / 10, math.ceil(10 * max(every)) / 10
        left = 190

        def x(value: float) -> float:
            return left + (value - low) / (high - low) * (WIDTH - RIGHT - 14 - left)

        rows = []
        for i, contest in enumerate(self.contests):
            middle = 34 + 64 * i
            # The golden ratio spreads the dots over the height without a random number.
            dots = [
                (f"{x(v):.1f}", f"{middle - 17 + 34 * (0.618034 * j % 1):.1f}", share(v, 1))
                for j, v in enumerate(contest.others)
            ]
            rows.append(
                {
                    "label": contest.label,
                    "y": middle,
                    "dots": dots,
                    "own": (f"{x(contest.own):.1f}", share(contest.own, 1)),
                    "needed": f"{x(contest.needed):.1f}",
                    "needed_text": share(contest.needed),
                    "passed": contest.own >= contest.needed,
                }
            )
        bottom = 34 + 64 * len(self.contests) - 24
        step = 0.25 if high - low <= 2.5 else 0.5
        ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return render(
            "dots.html.j2",
            width=WIDTH,
            height=bottom + 44,
            bottom=bottom,
            left=left,
            rows=rows,
            ticks=[(share(v), f"{x(v):.1f}") for v in ticks],
            axis=self.axis,
            middle=(left + WIDTH - RIGHT) / 2,
        )

    def table(self) -> Table:
        """Own share, and the random sets' quartiles and extremes, in percent."""
        rows = []
        for contest in self.contests:
            ordered = sorted(contest.others)
            spread = [ordered[round(q * (len(ordered) - 1))] for q in (0, 0.25, 0.5, 0.75, 1)]
            rows.append(
                [contest.label, *(round(100 * v, 1) for v in (contest.own, contest.needed, *spread)), len(ordered)]
            )
        columns = ["test", "named parts %", "needed %", "random min %", "25th %", "median %", "75th %", "max %", "sets"]
        return Table(columns, rows)
