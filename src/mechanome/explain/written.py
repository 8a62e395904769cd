"""A result that can be written: as JSON, as a page, in a notebook and in the terminal."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from typing import Any

from rich.console import Console

from mechanome.report import Page


class Written(ABC):
    """A result that knows its record, its page and its terminal page."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Everything as plain data: what `to_json` writes."""

    @abstractmethod
    def document(self, replay: str = "") -> Page:
        """The report page.

        Args:
            replay: the command that repeats this run, shown on the page.
        """

    @abstractmethod
    def __rich__(self) -> Any:
        """The terminal page."""

    def to_json(self) -> str:
        """Everything as JSON text."""
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    def html(self, replay: str = "") -> str:
        """The self-contained report page as HTML; `replay` as in `document`."""
        return self.document(replay).html()

    def _repr_html_(self) -> str:
        return self.document().framed()

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
