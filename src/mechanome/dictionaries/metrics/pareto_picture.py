"""The chart of fronts: sparsity across, quality up, a line a method, intervals as bars."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mechanome.core import Table
from mechanome.dictionaries.metrics.pareto import Front, Pareto
from mechanome.report import Page, Section
from mechanome.report.charts import axis, chart, figure, plain
from mechanome.report.palette import LIGHT

_STROKES = (("for", "solid"), ("against", "dash"), ("soft", "dot"), ("ink", "dashdot"))
"""Color and dash of the first lines; more methods repeat them and are told apart by their labels."""


@dataclass(frozen=True)
class ParetoPicture:
    """Fronts on common axes; it is a picture of `mechanome.report`.

    Args:
        fronts: what `pareto` found.
    """

    fronts: Pareto

    def figure(self) -> Any:
        """A Plotly figure: filled marks are on the common front, open ones are beaten by another dictionary."""
        found = figure(
            380,
            xaxis=axis(self.fronts.x, type="log" if self._positive() else "linear", showgrid=True),
            yaxis=axis(f"{self.fronts.y} ({self.fronts.better} is better)", showgrid=True),
        )
        for i, front in enumerate(self.fronts.fronts):
            color, dash = _STROKES[i % len(_STROKES)]
            found.add_scatter(**_trace(front, LIGHT[color], dash, self.fronts))
            last = front.dots[-1]
            found.add_annotation(
                x=_place(last.x, self._positive()),
                y=last.y,
                text=plain(front.name),
                showarrow=False,
                xanchor="left",
                xshift=10,
                font={"color": LIGHT[color], "size": 12.5},
            )
        return found

    def _positive(self) -> bool:
        return all(dot.x > 0 for front in self.fronts.fronts for dot in front.dots)

    def html(self) -> Markup:
        """The chart."""
        return chart(self.figure(), f"{self.fronts.y} by {self.fronts.x}")

    def table(self) -> Table:
        """Every dictionary."""
        return self.fronts.table()


def pareto_page(found: Pareto) -> Page:
    """A page of its own: the fronts, and methods side by side at matched sparsity.

    Args:
        found: what `pareto` found.
    """
    count = sum(len(front.dots) for front in found.fronts)
    best = [(front.name, dot) for front in found.fronts for dot in front.dots if dot.best]
    names = ", ".join(dict.fromkeys(name for name, _ in best))
    section = Section(
        "Sparsity against quality",
        ("Each mark is a dictionary, each line a method. Filled marks: no other dictionary is as good in both.",),
        ParetoPicture(found),
        (f"On the common front: {names}.",),
        (f"Lines between dictionaries are for the eye. Rows: {found.split}. Bars are 95\u202f% intervals.",),
        ("Two methods compare where both have dictionaries of the same sparsity, not beyond.",),
    )
    return Page(
        name=f"{found.y} by {found.x}",
        kicker="Mechanome \u00b7 dictionaries",
        title=(f"{found.y} by {found.x}",),
        subtitle=(f"{count} dictionaries, {len(found.fronts)} methods",),
        verdict=(f"{len(best)} of {count} on the front", True, (f"Nothing is better in both: {names}.",)),
        story=(),
        sections=(section,),
        measured=(("Numbers come from the long table of `evaluate`, which says the definition of each.",),),
        limits=(("A front is of the data that it was measured on.",),),
    )


def _place(x: float, logarithmic: bool) -> float:
    """Where Plotly wants a note: on a logarithmic axis by the logarithm."""
    return math.log10(x) if logarithmic else x


def _trace(front: Front, color: str, dash: str, found: Pareto) -> dict[str, Any]:
    dots = front.dots
    tips = [f"{front.name}, {d.dict_id}: {found.x} {d.x:.4g}, {found.y} {d.y:.4g}" for d in dots]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if d.hi is None else d.hi - d.y for d in dots],
        "arrayminus": [0.0 if d.lo is None else d.y - d.lo for d in dots],
        "color": color,
        "thickness": 1.3,
        "width": 4,
    }
    return {
        "x": [d.x for d in dots],
        "y": [d.y for d in dots],
        "mode": "lines+markers",
        "name": plain(front.name),
        "line": {"color": color, "width": 2, "dash": dash},
        "marker": {"color": color, "size": 9, "symbol": ["circle" if d.best else "circle-open" for d in dots]},
        "error_y": bars,
        "text": [plain(tip) for tip in tips],
        "hovertemplate": "%{text}<extra></extra>",
    }
