"""The page of a fit: how it ended at a glance, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mechanome.core import Table
from mechanome.core.tables import show
from mechanome.report import Page, Section
from mechanome.report.charts import axis, chart, figure, plain
from mechanome.report.palette import LIGHT
from mechanome.report.pictures import Sheet
from mechanome.report.rendering import number, share

if TYPE_CHECKING:
    from mechanome.dictionaries.commands.fitting import Fits

_INKS = ("for", "against", "soft", "ink")
_DASHES = ("solid", "dash", "dot", "dashdot")


def at_a_glance(found: Fits) -> Table:
    """One line a dictionary, by the last record of its history."""
    rows = []
    for name, fitted in found.fits.items():
        last = fitted.history[-1] if fitted.history else {}
        ends = (last.get(key) for key in ("fvu", "l0", "dead"))
        said = fitted.report
        rows.append((name, said["steps"], said["rows"], *ends, said["learning_rate"]))
    return Table(["dictionary", "steps", "rows", "FVU", "L0", "dead", "rate"], rows)


@dataclass(frozen=True)
class Curves:
    """One metric over the rows seen, a line a dictionary; it is a picture of `mechanome.report`.

    Args:
        metric: a key of histories. words: what it is. lines: name to points (rows, value).
    """

    metric: str
    words: str
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]

    @classmethod
    def of(cls, found: Fits, metric: str, words: str) -> Curves:
        """From the histories of a fit."""
        return cls(
            metric,
            words,
            tuple(
                (name, tuple((record["rows"], record[metric]) for record in fitted.history))
                for name, fitted in found.fits.items()
            ),
        )

    def figure(self) -> Any:
        """A Plotly figure."""
        top = {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"}
        found = figure(
            320,
            xaxis=axis("rows seen", showgrid=True),
            yaxis=axis(self.words, showgrid=True, rangemode="tozero"),
            showlegend=len(self.lines) > 1,
            legend=top,
        )
        for i, (name, points) in enumerate(self.lines):
            color = LIGHT[_INKS[i % len(_INKS)]]
            found.add_scatter(
                x=[x for x, _ in points],
                y=[y for _, y in points],
                mode="lines",
                name=plain(name),
                line={"color": color, "dash": _DASHES[i // len(_INKS) % len(_DASHES)], "width": 2},
                hovertemplate=f"{plain(name)}<br>%{{x}} rows: %{{y:.4g}}<extra></extra>",
            )
        return found

    def html(self) -> Markup:
        """The chart."""
        return chart(self.figure(), f"{self.words} by rows seen")

    def table(self) -> Table:
        """Every point."""
        rows = [(name, x, y) for name, points in self.lines for x, y in points]
        return Table(["dictionary", "rows", self.metric], rows)


def document(found: Fits, command: str) -> Page:
    """The page.

    Args:
        found: what was fitted. command: what repeats it.
    """
    glance = at_a_glance(found)
    best = min((row for row in glance.rows if row[3] is not None), key=lambda row: row[3], default=None)
    said = (
        "Nothing was recorded."
        if best is None
        else (f"The lowest FVU is {best[3]:.3f}, by {best[0]}, with {best[4]:.3g} active latents.")
    )
    died = any(record["dead"] > 0 for fitted in found.fits.values() for record in fitted.history)
    spec = next(iter(found.fits.values())).dictionary.spec
    sections = [
        Section(
            "How did it end?",
            ("Each line is a dictionary; numbers are of the last batch alone, so that they scatter.",),
            Sheet([(name, "") for name in glance.columns], list(map(_cells, glance.rows)), numbers=glance),
            () if died or best is None else ("No latent died.",),
        )
    ]
    if best is not None:
        sections.append(Section("What is left unexplained?", ("Lower is better.",), Curves.of(found, "fvu", "FVU")))
    if died:
        dead = Curves.of(found, "dead", "dead")
        sections.append(Section("How many latents died?", ("Share that no row used for long.",), dead))
    many = len(found.fits)
    return Page(
        name="Fit of dictionaries",
        kicker="Mechanome \u00b7 fit",
        title=(f"{many} dictionar{'y' if many == 1 else 'ies'} of {', '.join(spec.sites_out) or 'activations'}",),
        subtitle=(f"from {found.acts}",),
        verdict=("doubtful" if found.notes else "fitted", not found.notes, (" ".join((said, *found.notes)),)),
        story=(),
        sections=sections,
        measured=(
            ("FVU: squared error of the batch over its variance about the mean of all rows so far.",),
            ("L0: active latents a row. Dead: no row used it for as many rows as the recipe says.",),
            ("Rate: the peak learning rate.",),
        ),
        limits=(("These are numbers of training batches: measure held-out rows with mechanome eval.",),),
        facts=tuple(
            (name, f"seed {fitted.report['seed']}, {fitted.report['seconds']:.0f} s")
            for name, fitted in found.fits.items()
        ),
        command=command,
    )


def _cells(row: Sequence[Any]) -> list[str]:
    name, steps, rows, fvu, l0, dead, rate = row
    return [name, f"{steps:,}", f"{rows:,}", number(fvu, 3), number(l0, 1), share(dead, 1), show(rate)]
