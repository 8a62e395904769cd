"""Charts of a discovery: faithfulness over circuit size, and exact effects against their estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import SizeCurve
from mechanome.core import Table
from mechanome.report.charts import axis, chart, figure, plain
from mechanome.report.palette import LIGHT
from mechanome.report.rendering import number, share

_TIP = "%{text}<extra></extra>"


@dataclass(frozen=True)
class CurvePicture:
    """Faithfulness over circuit size, on both halves of the examples; it is a picture of `mechanome.report`.

    Args:
        finding, held_out: the curves, of the same sizes.
        chosen: size of the chosen circuit as a share of all edges.
        own: its faithfulness on the held-out half.
        needed: what it must keep.
    """

    finding: SizeCurve
    held_out: SizeCurve
    chosen: float
    own: Measured
    needed: float

    def figure(self) -> Any:
        """A Plotly figure: sizes on a logarithmic scale, intervals as bars."""
        sizes = [size for size in self.held_out.sizes if size > 0]  # a logarithmic scale has no room for no edge
        values = [m.value for curve in (self.finding, self.held_out) for m in curve.faithfulness if m.value is not None]
        low, high = min([0.0, *values]), max([1.0, *values])
        pad = 0.08 * (high - low)
        found = figure(
            340,
            xaxis=axis(
                "share of all edges in the circuit (logarithmic)",
                type="log",
                tickmode="array",
                tickvals=sizes,
                ticktext=[_percent(size) for size in sizes],
            ),
            yaxis=axis(
                "share of the effect kept",
                range=[low - pad, high + pad],
                showgrid=True,
                tickformat=".0%",
                tickfont={"color": LIGHT["ink"], "size": 12},
            ),
        )
        line = {"color": LIGHT["ink"], "width": 1.5, "dash": "dash"}
        found.add_shape(type="line", x0=0, x1=1, xref="paper", y0=self.needed, y1=self.needed, line=line)
        found.add_scatter(**_trace(self.finding, "found on", LIGHT["soft"], "dot", 5))
        found.add_scatter(**_trace(self.held_out, "held out", LIGHT["for"], "solid", 7, bars=True))
        if self.own.value is not None:
            found.add_scatter(
                x=[self.chosen],
                y=[self.own.value],
                mode="markers",
                marker={
                    "color": LIGHT["for"],
                    "size": 17,
                    "symbol": "diamond",
                    "line": {"color": LIGHT["card"], "width": 1.5},
                },
                text=[f"the circuit: {_percent(self.chosen)} of all edges keep {share(self.own.value, 1)}, held out"],
                hovertemplate=_TIP,
            )
        return found

    def html(self) -> Markup:
        """The chart and its legend."""
        names = (
            ("", "examples held out, with 95\u202f% intervals"),
            ("dotted", "examples that it was found on"),
            ("diamond", "the circuit of this page"),
            ("needed", f"needed: {share(self.needed)}"),
        )
        return _legend(names) + chart(self.figure(), "share of the effect kept by share of edges")

    def table(self) -> Table:
        """Both curves, with intervals of the held-out one."""
        rows = [
            (size, a.value, b.value, *((None, None) if b.interval is None else (b.interval.lo, b.interval.hi)), b.note)
            for size, a, b in zip(self.held_out.sizes, self.finding.faithfulness, self.held_out.faithfulness)
        ]
        return Table(["share of edges", "found on", "held out", "lo", "hi", "note"], rows)


def _trace(curve: SizeCurve, name: str, color: str, dash: str, size: int, bars: bool = False) -> dict[str, Any]:
    points = [(at, m) for at, m in zip(curve.sizes, curve.faithfulness) if m.value is not None and at > 0]
    values = [float(m) for _, m in points]
    ends = [(m.interval.lo, m.interval.hi) if m.interval else (v, v) for v, (_, m) in zip(values, points)]
    tips = [
        f"{_percent(at)} of all edges keep {share(v, 1)}, {name} ({share(lo)} to {share(hi)})"
        for (at, _), v, (lo, hi) in zip(points, values, ends)
    ]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [hi - v for v, (_, hi) in zip(values, ends)],
        "arrayminus": [v - lo for v, (lo, _) in zip(values, ends)],
        "color": color,
        "thickness": 1.4,
        "width": 4,
    }
    return {
        "x": [at for at, _ in points],
        "y": values,
        "mode": "lines+markers",
        "line": {"color": color, "width": 2.2, "dash": dash},
        "marker": {"color": color, "size": size},
        "text": [plain(tip) for tip in tips],
        "hovertemplate": _TIP,
        "cliponaxis": False,
        **({"error_y": error} if bars else {}),
    }


@dataclass(frozen=True)
class AgreementPicture:
    """Exact effects against estimates, one dot an edge or source; on the line both are equal.

    Args:
        names: of the edges, or sources.
        estimates, exact: in units of the metric.
        one: what a dot is: "edge" or "source".
        method: how they were estimated.
        unit: of the metric.
    """

    names: Sequence[str]
    estimates: Sequence[float]
    exact: Sequence[float]
    one: str
    method: str
    unit: str

    def figure(self) -> Any:
        """A Plotly figure on equal scales."""
        every = [*self.estimates, *self.exact, 0.0]
        low, high = min(every), max(every)
        pad = 0.05 * (high - low) or 1.0
        reach = [low - pad, high + pad]
        zero = {"zeroline": True, "zerolinecolor": LIGHT["line"], "showgrid": True}
        found = figure(
            380,
            xaxis=axis(f"estimate by {self.method} ({self.unit})", range=reach, **zero),
            yaxis=axis(f"exact effect ({self.unit})", range=reach, **zero),
        )
        line = {"color": LIGHT["soft"], "width": 1.2, "dash": "dash"}
        found.add_shape(type="line", x0=reach[0], x1=reach[1], y0=reach[0], y1=reach[1], line=line, layer="below")
        for agree, color in ((True, LIGHT["for"]), (False, LIGHT["against"])):
            some = [i for i, (a, b) in enumerate(zip(self.estimates, self.exact)) if (a * b >= 0) == agree]
            found.add_scatter(
                x=[self.estimates[i] for i in some],
                y=[self.exact[i] for i in some],
                mode="markers",
                marker={"color": color, "size": 8, "opacity": 0.75},
                text=[
                    plain(
                        f"{self.names[i]}: {number(self.estimates[i], 3)} estimated, {number(self.exact[i], 3)} exact"
                    )
                    for i in some
                ],
                hovertemplate=_TIP,
                cliponaxis=False,
            )
        return found

    def html(self) -> Markup:
        """The chart and its legend."""
        a = "an edge" if self.one == "edge" else "a source"
        names = (("dot", a), ("dot against", f"{a} whose sign the estimate has wrong"))
        return _legend(names) + chart(self.figure(), "exact effect by estimate")

    def table(self) -> Table:
        """One row a dot."""
        return Table([self.one, "estimate", "exact"], list(zip(self.names, self.estimates, self.exact)))


_DOT = "width:9px;height:9px;border:0;border-radius:50%;background:rgb(var({}))"
_STYLES = {
    "dotted": "border-top:3px dotted var(--soft)",
    "dot": _DOT.format("--for-rgb"),
    "dot against": _DOT.format("--against-rgb"),
}
"""Signs of a legend that the page's style sheet has none for."""


def _legend(names: Sequence[tuple[str, str]]) -> Markup:
    parts = [
        Markup('<span><span class="swatch {}" style="{}"></span>{}</span>').format(sign, _STYLES.get(sign, ""), name)
        for sign, name in names
    ]
    return Markup('<div class="legend">{}</div>').format(Markup("").join(parts))


def _percent(size: float) -> str:
    """A share with as many digits as it needs."""
    return share(size, 2 if size < 0.001 else 1 if size < 0.01 else 0)
