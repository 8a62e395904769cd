"""One small table type: what every result prints, shows in a notebook and hands to a report.

A :class:`Table` holds typed cells, not strings; each rendering (terminal, HTML, records) is made from them,
so a number looks the same everywhere and is still a number for a machine.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from mechanome.core.errors import ShapeMismatch


def show(cell: object) -> str:
    """A cell as text: four significant digits for floats, nothing for ``None``."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


@dataclass(frozen=True)
class Table:
    """Named columns over rows of cells.

    Args:
        columns: column names, in order.
        rows: one tuple of cells a row, as long as ``columns``; any objects, numbers stay numbers.
        title: shown above the table.

    Raises:
        ShapeMismatch: a row has another number of cells than there are columns.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                why = f"row {i} has {len(row)} cells for {len(self.columns)} columns"
                raise ShapeMismatch("table", why, "give every row one cell per column")

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]], title: str = "") -> Table:
        """A table from records; columns appear in the order in which their names are first seen."""
        records = list(records)
        columns = list(dict.fromkeys(name for record in records for name in record))
        return cls(columns, [[record.get(name) for name in columns] for record in records], title)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self.text()

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries, cells untouched."""
        return [dict(zip(self.columns, row)) for row in self.rows]

    def rich(self) -> Group:
        """The table as a rich renderable, for a console that is already open."""
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name, numeric in zip(self.columns, self._numeric()):
            table.add_column(Text(name), justify="right" if numeric else "left")
        for row in self.rows:
            table.add_row(*(Text(show(cell)) for cell in row))
        return Group(*[Text(self.title, style="bold")] * bool(self.title), table)

    def text(self, width: int = 120) -> str:
        """The table as plain text, at most ``width`` characters wide."""
        page = io.StringIO()
        Console(file=page, width=width, color_system=None).print(self.rich())
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines()).strip("\n")

    def html(self) -> str:
        """The table as an HTML fragment; every cell is escaped, number columns carry ``class="number"``."""
        kinds = [' class="number"' if numeric else "" for numeric in self._numeric()]
        caption = f"<caption>{escape(self.title)}</caption>" if self.title else ""
        head = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, self.columns))
        body = "\n".join(
            "<tr>" + "".join(f"<td{kind}>{escape(show(cell))}</td>" for kind, cell in zip(kinds, row)) + "</tr>"
            for row in self.rows
        )
        return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"

    def _repr_html_(self) -> str:
        return self.html()

    def _numeric(self) -> list[bool]:
        """Which columns hold only numbers (and gaps), and at least one."""
        filled = [[row[c] for row in self.rows if row[c] is not None] for c in range(len(self.columns))]
        return [bool(cells) and all(isinstance(cell, int | float) for cell in cells) for cells in filled]
