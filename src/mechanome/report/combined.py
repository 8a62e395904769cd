"""Pictures made of pictures: several below each other, or several of which a reader chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from mechanome.core import Table
from mechanome.report.pictures import Picture
from mechanome.report.rendering import render


@dataclass(frozen=True)
class Option:
    """One picture of a choice.

    Args:
        label: on its button.
        picture: what is shown when it is chosen.
        note: below the picture, in a sentence.
    """

    label: str
    picture: Picture
    note: str = ""


@dataclass(frozen=True)
class Choice:
    """Several pictures of one thing; the first is shown, and a reader chooses another by mouse or keyboard.

    Args:
        name: of what is chosen; no two choices of a page may have the same.
        options: the pictures.
        numbers: those behind all of them.
    """

    name: str
    options: Sequence[Option]
    numbers: Table

    def html(self) -> Markup:
        """Buttons, and every picture, all but the first hidden."""
        options = [(option.label, option.note, option.picture.html()) for option in self.options]
        return render("choice.html.j2", name=self.name, options=options)

    def table(self) -> Table:
        """The numbers behind all options."""
        return self.numbers


@dataclass(frozen=True)
class Stack:
    """Pictures below each other.

    Args:
        pictures: top to bottom; at most one of them has a table of its own.
    """

    pictures: Sequence[Picture]

    def html(self) -> Markup:
        """All of them."""
        return render("stack.html.j2", pictures=[picture.html() for picture in self.pictures])

    def table(self) -> Table | None:
        """The table of the one that has one."""
        return next((table for picture in self.pictures if (table := picture.table()) is not None), None)
