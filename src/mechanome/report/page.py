"""A report page: one HTML file that opens offline, with every number behind every picture.

The frame is the same for all reports: what was found (title, verdict, story), sections of pictures with their tables,
how it was measured, what it does not show, and what is needed to do it again. Texts are `Span`s, so that a token of a
model can be set off without ever becoming markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from markupsafe import Markup

from mechanome.report.charts import has_chart, packed_plotly
from mechanome.report.palette import DARK, variables
from mechanome.report.pictures import Picture
from mechanome.report.rendering import render, resource

Role = Literal["plain", "answer", "foil", "token", "strong", "dim"]


@dataclass(frozen=True)
class Span:
    """A piece of text.

    Args:
        text: as it is read.
        role: how it is set off: as the answer, the foil, another token, strong, dim or not at all.
    """

    text: str
    role: Role = "plain"


Line = Sequence[Span | str]
"""A line of text, plain pieces given as they are."""


def spans(line: Line) -> tuple[Span, ...]:
    """A line with every piece a `Span`."""
    return tuple(piece if isinstance(piece, Span) else Span(piece) for piece in line)


def text(line: Line) -> str:
    """A line without its roles."""
    return "".join(span.text for span in spans(line))


@dataclass(frozen=True)
class Section:
    """One question and its picture.

    Args:
        title: what is shown.
        lead: how to read it, one or two sentences.
        picture: the picture.
        finding: what it says here, in a line.
        method: how it was measured, in a few sentences.
        limit: what it does not show, in a sentence or two.
    """

    title: str
    lead: Line
    picture: Picture
    finding: Line = ()
    method: Line = ()
    limit: Line = ()


@dataclass(frozen=True)
class Page:
    """A report.

    Args:
        name: of the browser's tab.
        kicker: the small line above the title.
        title: the large line.
        subtitle: the line below it.
        verdict: a word or two, whether it is good news, and the sentence that says why.
        story: numbered lines: the finding, step by step.
        sections: the pictures.
        measured: paragraphs on how it was measured.
        limits: paragraphs on what it does not show.
        facts: names and values: model, hash, versions, seed, timings.
        command: what repeats it.
        back: text and relative path of the page that this one belongs to; None for a page of its own.
    """

    name: str
    kicker: str
    title: Line
    subtitle: Line
    verdict: tuple[str, bool, Line]
    story: Sequence[Line]
    sections: Sequence[Section]
    measured: Sequence[Line]
    limits: Sequence[Line]
    facts: Sequence[tuple[str, str]] = field(default=())
    command: str = ""
    back: tuple[str, str] | None = None

    def html(self) -> str:
        """The whole document."""
        word, good, why = self.verdict
        sections = [_shown(section) for section in self.sections]
        charts = has_chart([section["picture"] for section in sections])
        return render(
            "page.html.j2",
            page=self,
            title=spans(self.title),
            subtitle=spans(self.subtitle),
            verdict=(word, good, spans(why)),
            story=[spans(line) for line in self.story],
            sections=sections,
            measured=[spans(line) for line in self.measured],
            limits=[spans(line) for line in self.limits],
            colors=Markup(variables()),
            style=resource("style.css"),
            charts=_drawing() if charts else None,
            script=resource("page.js"),
        )

    def framed(self, height: int = 900) -> str:
        """The page in a frame of its own, for a notebook, where its styles cannot leak.

        It is the same page: with charts it holds Plotly's script, about 2 MB, so that it draws without a network and
        in a notebook that somebody else opens.

        Args:
            height: of the frame, in pixels.
        """
        return str(render("frame.html.j2", page=str(self.html()), height=height, name=self.name))


def _drawing() -> dict[str, str]:
    """What a page with charts needs in addition."""
    return {"dark": Markup(json.dumps(DARK)), "plotly": packed_plotly(), "script": resource("charts.js")}


def _shown(section: Section) -> dict[str, Any]:
    table = section.picture.table()
    return {
        "title": section.title,
        "lead": spans(section.lead),
        "finding": spans(section.finding),
        "method": spans(section.method),
        "limit": spans(section.limit),
        "picture": section.picture.html(),
        "table": None if table is None else Markup(table.html()),
    }
