"""Pictures with axes, drawn by Plotly: heat maps, layer lines, dots. Each is a `figure()` with its `table()`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from markupsafe import Markup

from mechanome.core import Table
from mechanome.report.charts import axis, chart, figure, plain, short, ticks
from mechanome.report.palette import LIGHT
from mechanome.report.rendering import render, share, visible

_FLOOR = -12
"""Probabilities below one in 10^12 are drawn there."""
_BREAK = 0.35
"""Rows of space above a row that is set off."""


@dataclass(frozen=True)
class HeatMap:
    """Signed shares over rows and columns.

    Args:
        rows: labels, top to bottom; tokens are shown with their spaces.
        columns: labels, left to right.
        values: `[row][column]`, shares of 1; None where not measured, which is drawn gray.
        axis: what the columns are.
        row_axis: what the rows are.
        breaks: rows that are set off from the one above.
        ends: what a share of -1 and one of 1 mean, for the scale.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    axis: str
    row_axis: str
    breaks: Sequence[int] = ()
    ends: tuple[str, str] = ("works against", "brings back all")

    def figure(self) -> Any:
        """A Plotly figure: one heat map of what was measured, over a gray one of what was not."""
        # A row of space is an empty row of the grid, so that cells stay where their values are.
        slots = [slot for i in range(len(self.rows)) for slot in ([None, i] if i in self.breaks else [i])]
        edges = list(accumulate((_BREAK if i is None else 1.0 for i in slots), initial=0.0))
        middles = {i: (low + high) / 2 for i, low, high in zip(slots, edges, edges[1:]) if i is not None}
        blank: list[None] = [None] * len(self.columns)
        across = [0.5 + i for i in range(len(self.columns))]
        height = 22 if len(self.rows) <= 16 else 16
        found = figure(
            round(height * edges[-1]) + 62,
            xaxis=axis(self.axis, range=[0, len(self.columns)], **ticks(self.columns, across)),
            yaxis=axis(
                range=[edges[-1], 0],
                tickmode="array",
                tickvals=[middles[i] for i in range(len(self.rows))],
                ticktext=[short(row) for row in self.rows],
                tickfont={"color": LIGHT["ink"], "size": 12},
                ticks="outside",
                ticklen=4,
                tickcolor="rgba(0,0,0,0)",
            ),
        )
        gray = [blank if i is None else [1 if v is None else None for v in self.values[i]] for i in slots]
        texts = [
            [""] * len(self.columns) if i is None else [self._tip(i, j) for j in range(len(self.columns))]
            for i in slots
        ]
        shared = {
            "x": list(range(len(self.columns) + 1)),
            "y": edges,
            "text": texts,
            "hovertemplate": "%{text}<extra></extra>",
            "hoverongaps": False,
            "showscale": False,
            "xgap": 1,
            "ygap": 1,
        }
        colors = [[0, LIGHT["against"]], [0.5, LIGHT["card"]], [1, LIGHT["for"]]]
        measured = [blank if i is None else list(self.values[i]) for i in slots]
        found.add_heatmap(z=gray, zmin=0, zmax=1, colorscale=[[0, LIGHT["line"]], [1, LIGHT["line"]]], **shared)
        found.add_heatmap(z=measured, zmin=-1, zmax=1, colorscale=colors, **shared)
        # Cells without an effect are the color of the card: the ground shows between them.
        start = 0.0
        for stop in [*(edges[k] for k, i in enumerate(slots) if i is None), edges[-1]]:
            ground = {"fillcolor": LIGHT["faint"], "line": {"width": 0}, "layer": "below"}
            found.add_shape(type="rect", x0=0, x1=len(self.columns), y0=start, y1=stop, **ground)
            start = stop + _BREAK
        return found

    def _tip(self, row: int, column: int) -> str:
        value = self.values[row][column]
        said = "not measured" if value is None else share(value, 1)
        return plain(f"{visible(self.rows[row])}, {self.axis} {self.columns[column]}: {said}")

    def html(self) -> Markup:
        """The chart and its scale."""
        gaps = any(v is None for row in self.values for v in row)
        drawn = chart(self.figure(), f"{self.row_axis} by {self.axis}")
        return render("heat.html.j2", chart=drawn, gaps=gaps, ends=self.ends)

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


_STROKES = {"answer": ("for", "solid"), "foil": ("against", "dash")}


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

    def figure(self) -> Any:
        """A Plotly figure: powers of ten over columns; what is below the scale lies at its foot."""
        lowest = min(min(s.values) for s in self.series) / math.log(10)
        floor = max(_FLOOR, min(-2, math.floor(lowest)))
        powers = range(0, floor - 1, -max(2, -(-abs(floor) // 5)))
        places = list(range(len(self.columns)))
        found = figure(
            290,
            xaxis=axis(self.axis, range=[-0.5, len(places) - 0.5], **ticks(self.columns, places)),
            yaxis=axis(
                range=[floor * 1.04, -0.05 * floor],
                showgrid=True,
                tickmode="array",
                tickvals=list(powers),
                ticktext=["\u2264\u202f" * (p == _FLOOR) + _one_in(p) for p in powers],
                tickfont={"color": LIGHT["ink"], "size": 12},
            ),
        )
        for series in reversed(self.series):
            role, dash = _STROKES[series.role]
            found.add_scatter(
                x=places,
                y=[max(floor, value / math.log(10)) for value in series.values],
                mode="lines+markers",
                name=short(series.name),
                line={"color": LIGHT[role], "width": 2.4, "dash": dash},
                marker={"color": LIGHT[role], "size": 7},
                text=[plain(tip) for tip in series.tips],
                hovertemplate="%{text}<extra></extra>",
                cliponaxis=False,
            )
        return found

    def html(self) -> Markup:
        """The chart and its legend."""
        lines = [{"name": visible(s.name), "role": s.role} for s in self.series]
        return render("lines.html.j2", chart=chart(self.figure(), f"probability by {self.axis}"), lines=lines)

    def table(self) -> Table:
        """A column of log-probabilities a line."""
        names = [f"log-probability of {visible(s.name)} (nats)" for s in self.series]
        rows = list(zip(self.columns, *(s.values for s in self.series), self.remarks))
        return Table([self.axis, *names, self.remark_name], rows)


def _one_in(power: int) -> str:
    return {0: "100\u202f%", -1: "10\u202f%", -2: "1\u202f%"}.get(power, f"1 in 10<sup>{-power}</sup>")


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

    def figure(self) -> Any:
        """A Plotly figure, one row a contest, its label above it."""
        every = [v for c in self.contests for v in (c.own, *c.others, 0.0, 1.0)]
        low, high = math.floor(10 * min(every)) / 10, math.ceil(10 * max(every)) / 10
        step = 0.25 if high - low <= 1.6 else 0.5 if high - low <= 3.2 else math.ceil((high - low) / 6)
        marks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        pad = 0.03 * (high - low)
        found = figure(
            78 * len(self.contests) + 52,
            xaxis=axis(
                self.axis,
                range=[low - pad, high + pad],
                showgrid=True,
                tickmode="array",
                tickvals=marks,
                ticktext=[share(v) for v in marks],
            ),
            yaxis=axis(range=[len(self.contests), 0], visible=False),
        )
        hover = {"hovertemplate": "%{text}<extra></extra>"}
        for row, contest in enumerate(self.contests):
            middle = row + 0.62
            # The golden ratio spreads the dots over the height without a random number.
            heights = [middle - 0.22 + 0.44 * (0.618034 * i % 1) for i in range(len(contest.others))]
            found.add_scatter(
                x=list(contest.others),
                y=heights,
                mode="markers",
                marker={"color": LIGHT["soft"], "size": 7, "opacity": 0.45},
                text=[f"a random set: {share(v, 1)}" for v in contest.others],
                **hover,
            )
            found.add_scatter(
                x=[contest.needed] * 2,
                y=[middle - 0.32, middle + 0.32],
                mode="lines",
                line={"color": LIGHT["ink"], "width": 1.5, "dash": "dash"},
                text=[f"needed: {share(contest.needed)}"] * 2,
                **hover,
            )
            found.add_scatter(
                x=[contest.own],
                y=[middle],
                mode="markers",
                marker={
                    "color": LIGHT["for" if contest.own >= contest.needed else "against"],
                    "size": 17,
                    "symbol": "diamond",
                    "line": {"color": LIGHT["card"], "width": 1.5},
                },
                text=[f"the named parts: {share(contest.own, 1)}"],
                **hover,
            )
            found.add_annotation(
                text=f"<b>{plain(contest.label)}</b>",
                x=0,
                xref="paper",
                xanchor="left",
                y=row + 0.14,
                yanchor="middle",
                showarrow=False,
                font={"size": 13},
            )
        return found

    def html(self) -> Markup:
        """The chart and its legend."""
        return render("dots.html.j2", chart=chart(self.figure(), self.axis))

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
