"""The word lists of the package: small tab-separated files that begin with `# source:` and `# license:` lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from mechanome.core.errors import CorruptFile


@dataclass(frozen=True)
class WordList:
    """Rows of words, with where they come from.

    Args:
        name: the file's name without its ending.
        columns: what each column holds.
        rows: one tuple of words a row, all distinct.
        source, license: from the file's header.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    source: str
    license: str

    @property
    def first(self) -> list[str]:
        """The first word of each row."""
        return [row[0] for row in self.rows]


@cache
def words(name: str) -> WordList:
    """A word list of the package.

    Raises:
        CorruptFile: no such list, or a row that repeats or has another number of words than there are columns.
    """
    file = resources.files("mechanome.tasks") / "data" / f"{name}.tsv"
    if not file.is_file():
        raise CorruptFile(f"word list '{name}'", "it is not in the installed package", "install mechanome again")
    return parse_words(name, file.read_text(encoding="utf-8"))


def parse_words(name: str, text: str) -> WordList:
    """Read a word list.

    Raises:
        CorruptFile: as `words` does, or a header that misses a line.
    """
    lines = text.splitlines()
    header = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    missing = [key for key in ("source", "license", "columns") if key not in header]
    if missing:
        raise CorruptFile(f"word list '{name}'", f"its header has no '# {missing[0]}:' line", "add it")
    columns = tuple(header["columns"].split())
    rows: dict[tuple[str, ...], None] = {}
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        row = tuple(line.split("\t"))
        if len(row) != len(columns) or not all(row) or row in rows:
            why = "it repeats an earlier row" if row in rows else f"it is not {len(columns)} words"
            raise CorruptFile(f"word list '{name}', line {number}", why, "correct the line")
        rows[row] = None
    return WordList(name, columns, tuple(rows), header["source"], header["license"])
