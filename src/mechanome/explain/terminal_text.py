"""Texts and tables of the terminal: tokens in quotes and in color, never broken within the quotes."""

from __future__ import annotations

import re

from rich.console import Console, JustifyMethod, OverflowMethod
from rich.containers import Lines
from rich.text import Text

from mechanome.explain.tokens import quoted
from mechanome.report import Line, spans

STYLES = {"plain": "", "answer": "bold green", "foil": "yellow", "token": "cyan", "strong": "bold", "dim": "dim"}
SHOWN = 60
"""Characters of a token in a table."""

_INSIDE = re.compile(r"(?<=(?<!\w)') (?=[^\s']+')|(?<=\d) (?=%)")
"""The space with which a quoted token begins, and that of a percentage."""
_HELD = "\ue000"
"""Stands for that space while lines are broken; a private-use character."""


class Unbroken(Text):
    """A text whose lines do not break after a token's opening quote, or before a percent sign; within a group."""

    def wrap(
        self,
        console: Console,
        width: int,
        *,
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        tab_size: int = 8,
        no_wrap: bool | None = None,
    ) -> Lines:
        """The lines; arguments as those of `rich.text.Text`."""
        held = Text.copy(self)
        held.plain = _INSIDE.sub(_HELD, self.plain)
        lines = Text.wrap(held, console, width, justify=justify, overflow=overflow, tab_size=tab_size, no_wrap=no_wrap)
        for found in lines:
            found.plain = found.plain.replace(_HELD, " ")
        return lines


def line(pieces: Line) -> Unbroken:
    """A line with tokens in quotes and in color."""
    found = Unbroken()
    for span in spans(pieces):
        set_off = span.role in ("answer", "foil", "token")
        found.append(quoted(span.text) if set_off else span.text, style=STYLES[span.role])
    return found


def token(text: str, most: int = SHOWN) -> str:
    """A token in quotes, of a long one its beginning."""
    return quoted(text[:most])
