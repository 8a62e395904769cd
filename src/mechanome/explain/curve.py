"""A curve: what circuits of rising size keep, on a logarithmic axis of edges, with what is enough as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mechanome.core import Table
from mechanome.report import number
from mechanome.report.charts import axis, chart, figure, plain
from mechanome.report.palette import LIGHT


@dataclass(frozen=True)
class Curve:
    """NDF over the size of a circuit.

    Args:
        sizes: edges of each circuit, rising.
        values: NDF of each, 0 to 1.
        needed: what is enough.
        tips: remark of each point.
        numbers: the table behind it.
    """

    sizes: Sequence[int]
    values: Sequence[float]
    needed: float
    tips: Sequence[str]
    numbers: Table

    def figure(self) -> Any:
        """A Plotly figure: points that are enough in the color of the answer, the others in the other one."""
        found = figure(
            280,
            xaxis=axis(
                "edges in the circuit",
                type="log",
                showgrid=True,
                tickmode="array",
                tickvals=list(self.sizes),
                ticktext=[str(n) if n < 1000 else f"{n / 1000:g}k" for n in self.sizes],
            ),
            yaxis=axis("NDF", range=[-0.04, 1.06], showgrid=True, tickmode="array", tickvals=[0, 0.25, 0.5, 0.75, 1]),
        )
        hover = {"hovertemplate": "%{text}<extra></extra>", "cliponaxis": False}
        found.add_scatter(
            x=[self.sizes[0], self.sizes[-1]],
            y=[self.needed] * 2,
            mode="lines",
            line={"color": LIGHT["ink"], "width": 1.5, "dash": "dash"},
            text=[f"enough: {number(self.needed)}"] * 2,
            **hover,
        )
        found.add_scatter(
            x=list(self.sizes),
            y=list(self.values),
            mode="lines+markers",
            line={"color": LIGHT["soft"], "width": 2},
            marker={
                "color": [LIGHT["for" if value >= self.needed else "against"] for value in self.values],
                "size": 10,
            },
            text=[plain(tip) for tip in self.tips],
            **hover,
        )
        return found

    def html(self) -> Markup:
        """The chart."""
        return chart(self.figure(), "NDF over the number of edges in the circuit")

    def table(self) -> Table:
        """One row a size."""
        return self.numbers
