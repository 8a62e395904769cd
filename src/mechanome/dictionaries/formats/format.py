"""What a format is: how to know a file of it, how to read it, and how to write it where that is served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told


@dataclass(frozen=True)
class Format:
    """One row of the table of formats.

    Args:
        title: what it is, for people.
        detect: whether a file or folder is of this format, from names and small settings alone.
        read: the dictionary in it.
        write: fill an empty folder with a dictionary; None where only reading is served.
    """

    title: str
    detect: Callable[[Path], bool]
    read: Callable[[Path, Told], Dictionary]
    write: Callable[[Dictionary, Path], None] | None = None
