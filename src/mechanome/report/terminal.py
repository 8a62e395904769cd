"""Tables of the terminal, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def hanging(mark: str, body: Text) -> Table:
    """A line with a mark before it, below which no further line begins."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2, justify="right")
    grid.add_column()
    grid.add_row(Text(mark, style="dim"), body)
    return grid


def table(columns: Sequence[tuple[str, Any]]) -> Table:
    """An empty table without lines: names of the columns, and how each is justified."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in columns:
        made.add_column(name, justify=justify, header_style="bold", overflow="fold")
    return made
