"""Pictures made of plain HTML: tokens, bars and sheets. Each one knows its table; those with axes are in `plots`.

A picture is a frozen dataclass of numbers and texts. `html()` draws it, `table()` gives the same numbers in full.
Values are signed: one hue speaks for the answer, the other against it, and strength is opacity, so both color schemes
work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from markupsafe import Markup

from mechanome.core import Table
from mechanome.report.rendering import number, probability, render, share, visible


class Picture(Protocol):
    """What a section shows."""

    def html(self) -> Markup:
        """The drawing, as an HTML fragment."""

    def table(self) -> Table | None:
        """The numbers behind it, None where the picture is a table already."""


class Cell(Protocol):
    """A small picture within a table."""

    def html(self) -> Markup:
        """The drawing, as an HTML fragment."""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of probabilities, in columns side by side.

    Args:
        columns: per column, its title, labels and shares of 1.
        roles: labels that are colored: text to "answer" or "foil".
    """

    columns: Sequence[tuple[str, Sequence[str], Sequence[float]]]
    roles: dict[str, str] = field(default_factory=dict)

    def html(self) -> Markup:
        """One block of bars a column; the longest bar of all fills the width."""
        widest = max(max(values) for _, _, values in self.columns)
        columns = [
            (
                title,
                [(t, probability(v), 100 * v / widest, self.roles.get(t, "")) for t, v in zip(ts, vs)],
            )
            for title, ts, vs in self.columns
        ]
        return render("bars.html.j2", columns=columns)

    def table(self) -> Table:
        """Label and probability of every column."""
        names = [name for title, _, _ in self.columns for name in (title, "probability")]
        depth = max(len(labels) for _, labels, _ in self.columns)
        cells = [
            [cell for _, ts, vs in self.columns for cell in ((visible(ts[i]), vs[i]) if i < len(ts) else ("", None))]
            for i in range(depth)
        ]
        return Table(names, cells)


@dataclass(frozen=True)
class TokenStrip:
    """A text whose tokens are colored by a signed number.

    Args:
        tokens: the tokens in order.
        values: one a token; None where it was not measured.
        unit: what the number is, for tooltips and the table.
        marks: position to a remark shown under the token.
        limit: the value with the strongest color; None takes the largest.
        positions: of each in the whole text, where one stands for several; empty for 0, 1, 2 ...
    """

    tokens: Sequence[str]
    values: Sequence[float | None]
    unit: str
    marks: dict[int, str] = field(default_factory=dict)
    limit: float | None = None
    positions: Sequence[str] = ()

    def html(self) -> Markup:
        """A run of boxes that breaks like text."""
        limit = self.limit or max((abs(v) for v in self.values if v is not None), default=1.0) or 1.0
        items = [
            {
                "text": token,
                "tip": f"{self._place(i)}{visible(token)}: {self._said(value)}",
                "value": number(value, 1),
                "mark": self.marks.get(i, ""),
                **_ink(None if value is None else value / limit),
            }
            for i, (token, value) in enumerate(zip(self.tokens, self.values))
        ]
        return render("strip.html.j2", items=items)

    def table(self) -> Table:
        """Position, token, value."""
        places = self.positions or range(len(self.tokens))
        rows = [
            [place, visible(t), v, self.marks.get(i, "")]
            for i, (place, t, v) in enumerate(zip(places, self.tokens, self.values))
        ]
        return Table(["position", "token", self.unit, "remark"], rows)

    def _place(self, i: int) -> str:
        return f"positions {self.positions[i]}, " if self.positions else ""

    def _said(self, value: float | None) -> str:
        return "not measured" if value is None else f"{number(value)} {self.unit}"


@dataclass(frozen=True)
class Meter:
    """A cell that shows a share of 1 as a bar.

    Args:
        value: the share; the bar stops at 0 and 1, the text does not.
    """

    value: float

    def html(self) -> Markup:
        """The bar with its percentage."""
        width = 100 * min(1.0, abs(self.value))
        return render("meter.html.j2", width=width, text=share(self.value), against=self.value < 0)


@dataclass(frozen=True)
class Weights:
    """A cell that shows a short text with weights on its tokens.

    Args:
        tokens: the tokens in order.
        values: shares of 1.
    """

    tokens: Sequence[str]
    values: Sequence[float]

    def html(self) -> Markup:
        """The tokens, shaded."""
        items = [
            {"text": t, "tip": f"{visible(t)}: {share(v, 1)}", "alpha": f"{min(1.0, v):.3f}"}
            for t, v in zip(self.tokens, self.values)
        ]
        return render("weights.html.j2", items=items)


@dataclass(frozen=True)
class Passage:
    """A text as its tokens, some of them set off.

    Args:
        tokens: in order.
        chosen: positions of those that are set off.
        what: those are, for the table.
    """

    tokens: Sequence[str]
    chosen: Collection[int]
    what: str

    def html(self) -> Markup:
        """The tokens; a line of its own after each line break."""
        items = [{"text": t, "own": i in self.chosen, "ends": "\n" in t} for i, t in enumerate(self.tokens)]
        return render("passage.html.j2", items=items)

    def table(self) -> Table:
        """Position, token, and whether it is set off."""
        rows = [[i, visible(t), "*" if i in self.chosen else ""] for i, t in enumerate(self.tokens)]
        return Table(["position", "token", self.what], rows)


@dataclass(frozen=True)
class Sheet:
    """A table whose cells may be small pictures.

    Args:
        columns: names, with a one-line explanation each.
        rows: cells: texts, `Meter`s, `Weights`, `Link`s.
        muted: rows that are set aside.
        numbers: what the rows are cut or rounded from, None where they are all there is.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str | Cell]]
    muted: Sequence[int] = ()
    numbers: Table | None = None

    def html(self) -> Markup:
        """The table."""
        rows = [
            ([cell if isinstance(cell, str) else cell.html() for cell in row], i in self.muted)
            for i, row in enumerate(self.rows)
        ]
        return render("sheet.html.j2", columns=self.columns, rows=rows)

    def table(self) -> Table | None:
        """The numbers behind it; None where it shows them already."""
        return self.numbers


def _ink(strength: float | None) -> dict[str, str]:
    """Hue and opacity of a signed strength between -1 and 1."""
    if strength is None:
        return {"hue": "none", "alpha": "0"}
    return {"hue": "for" if strength >= 0 else "against", "alpha": f"{min(1.0, abs(strength)):.3f}"}
