"""Texts in files: each kind of file is scanned from any of its marks, so that nothing need be held in memory.

A mark is a number that says where an item begins: a byte of a JSON lines file, a row of a parquet file, a paragraph
of a text file. Scanning from a mark costs what follows it, not what came before.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from mechanome.activations.text_items import Item, field_of, item_of
from mechanome.core.errors import BadInput, CorruptFile, NotServed
from mechanome.core.files import existing

_FILE_BITS = 44  # marks inside one file of a folder lie below this power of two: 16 TiB


class Source(Protocol):
    """Where texts come from."""

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        """Items from a mark on, each with its own mark; items that are blank are left out."""

    def stamp(self) -> Any:
        """Changes if the content may have changed."""


@dataclass(frozen=True)
class InMemory:
    """Items at hand, checked; the mark is the index."""

    items: Sequence[Item]

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        for i in range(mark, len(self.items)):
            yield i, self.items[i]

    def stamp(self) -> Any:
        return None


@dataclass(frozen=True)
class TextFile:
    """A plain text: paragraphs, separated by blank lines; the mark is the number of the paragraph.

    Where form feeds or lines ``<|endoftext|>`` separate documents, those count instead. ``whole``: one document.
    """

    path: Path
    whole: bool = False

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        try:
            text = existing(self.path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise CorruptFile(str(self.path), f"not UTF-8 ({error})", "convert it to UTF-8") from error
        documents = re.split(r"\f|^<\|endoftext\|>$", text, flags=re.MULTILINE)
        if self.whole:
            parts = [text]
        else:
            parts = documents if len(documents) > 1 else re.split(r"\n[^\S\n]*\n\s*", text)
        for i in range(mark, len(parts)):
            if part := parts[i].strip():
                yield i, part

    def stamp(self) -> Any:
        return _stamp(self.path)


@dataclass(frozen=True)
class JsonLines:
    """A JSON object, or a string, a line; the mark is the byte where the line begins."""

    path: Path
    field: str | None = None

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        with existing(self.path).open("rb") as handle:
            handle.seek(mark)
            while line := handle.readline():
                place = f"{self.path}, byte {mark}"
                if line.strip() and (item := self._item(line, place)) is not None:
                    yield mark, item
                mark += len(line)

    def _item(self, line: bytes, place: str) -> Item | None:
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise CorruptFile(place, f"the line is not JSON ({error})", "write one JSON object a line") from error
        if isinstance(record, Mapping):
            record = record[field_of(record, self.field, place)]
        return item_of(record, place)

    def stamp(self) -> Any:
        return _stamp(self.path)


@dataclass(frozen=True)
class Parquet:
    """A column of a parquet file; the mark is the row."""

    path: Path
    field: str | None = None

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            why = "reading parquet needs pyarrow, which is not installed"
            raise NotServed(str(self.path), why, "run `python -m pip install pyarrow`") from error
        try:
            with parquet.ParquetFile(existing(self.path)) as file:
                column = field_of(dict.fromkeys(file.schema_arrow.names), self.field, str(self.path))
                row = 0
                for group in range(file.num_row_groups):
                    count = file.metadata.row_group(group).num_rows
                    if row + count > mark:
                        values = file.read_row_group(group, columns=[column]).column(column)
                        for k in range(max(0, mark - row), count):
                            item = item_of(values[k].as_py() or "", f"{self.path}, row {row + k}")
                            if item is not None:
                                yield row + k, item
                    row += count
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise CorruptFile(
                str(self.path), f"not a whole parquet file ({error})", "fetch or write it again"
            ) from error

    def stamp(self) -> Any:
        return _stamp(self.path)


@dataclass(frozen=True)
class Files:
    """Several files one after another."""

    parts: tuple[Source, ...]

    def scan(self, mark: int = 0) -> Iterator[tuple[int, Item]]:
        first, inside = mark >> _FILE_BITS, mark & ((1 << _FILE_BITS) - 1)
        for k in range(first, len(self.parts)):
            for at, item in self.parts[k].scan(inside if k == first else 0):
                yield (k << _FILE_BITS) + at, item

    def stamp(self) -> Any:
        return [part.stamp() for part in self.parts]


READERS: dict[str, Callable[[Path, str | None], Source]] = {
    ".txt": lambda path, field: TextFile(path),
    ".jsonl": JsonLines,
    ".parquet": Parquet,
}


def file_source(path: Path, field: str | None) -> Source:
    """The source of one file, by its ending.

    Raises:
        NotServed: an ending that is not known. BadInput: no such file, or a field for a file that has none.
    """
    existing(path)
    if path.suffix not in READERS:
        why = f"{path.suffix or 'no ending'} is not a kind of text that is known"
        raise NotServed(str(path), why, f"convert it to {', '.join(READERS)}")
    if field is not None and path.suffix == ".txt":
        raise BadInput("field", f"{path} is plain text, which has no fields", "leave it out")
    return READERS[path.suffix](path, field)


def folder_source(folder: Path, field: str | None) -> Source:
    """All known files of a folder and the folders in it, in the order of their names; a text file is one document.

    Raises:
        BadInput: there is none.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix in READERS and path.is_file())
    if not found:
        raise BadInput(str(folder), f"it holds no {', '.join(READERS)} file", "name a folder with texts")
    return Files(tuple(TextFile(p, whole=True) if p.suffix == ".txt" else file_source(p, field) for p in found))


def held(items: Iterable[Any], limit: int | None) -> InMemory:
    """Items of any iterable, checked and copied once so that they can be read again; no more than ``limit`` are taken.

    Raises:
        BadInput: one that is neither a text nor a chat.
    """
    if isinstance(items, Mapping):
        raise BadInput("texts", "a mapping is no list of texts", "pass its texts as a list")
    if not isinstance(items, Iterable):
        raise BadInput(f"texts={items!r}", f"a {type(items).__name__} is no list of texts", "give strings, or a path")
    checked = (item_of(value, f"text {i}") for i, value in enumerate(items))
    return InMemory(tuple(islice((item for item in checked if item is not None), limit)))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116  # one call for both
    except FileNotFoundError:
        return (-1, -1)
    return status.st_size, status.st_mtime_ns
