"""A cell that leads to another page of the same run folder."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from mechanome.report.rendering import render


@dataclass(frozen=True)
class Link:
    """A cell with a link.

    Args:
        text: what is read.
        href: a relative path; empty for plain text.
    """

    text: str
    href: str

    def html(self) -> Markup:
        """The link, or the text alone."""
        return render("link.html.j2", text=self.text, href=self.href) if self.href else Markup.escape(self.text)
