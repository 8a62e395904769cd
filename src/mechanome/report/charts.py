"""Charts drawn by Plotly, whose script the page carries: packed, once, and only where there is a chart.

A figure is made in the light colors of the palette. The page exchanges them for dark ones where the reader's system is
dark. Plotly reads some HTML in its texts, so every text of a figure goes through `plain`. Plotly's script is 4.8 MB;
packed it is 2 MB, which a browser unpacks in a blink. That matters for a notebook, in which every output holds it, and
for a folder of many reports. Nothing is fetched: a page opens offline, and its security policy forbids the network.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from markupsafe import Markup

from mechanome.report.palette import LIGHT
from mechanome.report.rendering import render, visible

_LABEL = 16
"""Characters of a label on an axis."""
_FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def chart(figure: Any, label: str) -> Markup:
    """A figure as HTML; the page's script draws it.

    Args:
        figure: a `plotly.graph_objects.Figure` with a height.
        label: what is seen, for readers that cannot see it.
    """
    text = json.dumps(json.loads(figure.to_json()), separators=(",", ":"), ensure_ascii=False)
    return render(
        "chart.html.j2", figure=Markup(text.replace("<", "\\u003c")), label=label, height=figure.layout.height
    )


def has_chart(fragments: Sequence[Markup]) -> bool:
    """Whether any of these fragments holds a chart."""
    return any('<div class="chart"' in fragment for fragment in fragments)


@cache
def packed_plotly() -> str:
    """Plotly's script, deflated, in base 64."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(zlib.compress(get_plotlyjs().encode(), 9)).decode()


def figure(height: int, **layout: Any) -> Any:
    """An empty figure of the house: transparent, without a toolbar, and without zoom, which would trap a finger.

    Args:
        height: in pixels; the width is the page's.
        layout: what differs.
    """
    import plotly.graph_objects as go

    base = {
        "template": go.layout.Template(),  # none: all that is drawn is said here
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 12, "color": LIGHT["ink"]},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": LIGHT["ink"],
            "bordercolor": LIGHT["ink"],
            "font": {"color": LIGHT["paper"], "family": _FONT, "size": 13},
            "align": "left",
        },
    }
    return go.Figure(layout={**base, **layout})


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis of the house: thin, fixed, with room for its labels."""
    base = {
        "title": {"text": plain(title), "font": {"color": LIGHT["soft"], "size": 12.5}, "standoff": 8},
        "tickfont": {"color": LIGHT["soft"], "size": 11.5},
        "fixedrange": True,
        "zeroline": False,
        "showgrid": False,
        "automargin": True,
        "tickangle": 0,
        "gridcolor": LIGHT["faint"],
    }
    return {**base, **more}


def plain(text: str) -> str:
    """A text that Plotly shows as it is."""
    return text.translate(_ENTITIES)


def short(token: str) -> str:
    """A token as the label of an axis: visible, at most so long, and shown as it is."""
    seen = visible(token)
    return plain(seen if len(seen) <= _LABEL else f"{seen[: _LABEL - 1]}\u2026")


def ticks(labels: Sequence[str], places: Sequence[float], room: int = 44) -> dict[str, Any]:
    """Labels of a horizontal axis, every one or every n-th, so that they fit a narrow page side by side.

    Args:
        labels: one a column.
        places: where the columns are.
        room: characters that fit.
    """
    wide = room / max(1, len(labels))  # characters that fit a column
    usual = max((len(label) for label in labels[1:]), default=0) + 1
    step = max(1, math.ceil(usual / wide))
    overhang = (len(labels[0]) + 1 + usual) / 2 / wide if labels else 0.0  # columns that the first label needs
    chosen = [i for i in range(0, len(labels), step) if i == 0 or i >= overhang]
    return {
        "tickmode": "array",
        "tickvals": [places[i] for i in chosen],
        "ticktext": [plain(labels[i]) for i in chosen],
    }
