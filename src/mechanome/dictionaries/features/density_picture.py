"""The chart of densities: how many latents fire how often, on logarithmic bins, with those on the page marked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mechanome.core import Table
from mechanome.report.charts import axis, chart, figure, plain
from mechanome.report.palette import LIGHT

_PER_DECADE = 4


@dataclass(frozen=True)
class DensityPicture:
    """Latents by density; a picture of `mechanome.report`.

    Args:
        fired: rows on which each latent is active. rows: seen.
    """

    fired: Sequence[int]
    rows: int

    def bins(self) -> list[tuple[float, float, int]]:
        """Lower end, upper end and number of latents; dead ones are in none."""
        steps = Counter(math.floor(_PER_DECADE * math.log10(n / self.rows) + 1e-9) for n in self.fired if n)
        every = range(min(steps, default=0), max(steps, default=-1) + 1)
        return [(10 ** (i / _PER_DECADE), 10 ** ((i + 1) / _PER_DECADE), steps[i]) for i in every]

    def figure(self) -> Any:
        """A Plotly figure: a bar a bin."""
        bins = self.bins()
        decades = range(math.floor(math.log10(bins[0][0])), math.ceil(math.log10(bins[-1][1])) + 1) if bins else ()
        marks = [n * 10.0**decade for decade in decades for n in (1, 3)]
        found = figure(
            240,
            xaxis=axis(
                "share of tokens on which a latent fires (logarithmic)",
                type="log",
                tickmode="array",
                tickvals=marks,
                ticktext=[f"{100 * mark:.3g}\u202f%" for mark in marks],
            ),
            yaxis=axis("latents", showgrid=True),
            bargap=0.06,
        )
        found.add_bar(
            x=[math.sqrt(low * high) for low, high, _ in bins],
            y=[n for _, _, n in bins],
            width=[high - low for low, high, _ in bins],
            marker={"color": LIGHT["for"]},
            text=[plain(f"{n} latents fire on {low:.3g} to {high:.3g} of tokens") for low, high, n in bins],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
        return found

    def html(self) -> Markup:
        """The chart."""
        return chart(self.figure(), "latents by density")

    def table(self) -> Table:
        """The bins."""
        return Table(["from", "to", "latents"], self.bins())
