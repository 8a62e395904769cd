"""One long table for all results: a row is one metric of one dictionary on one split, with what it means beside it.

Tables of different runs and methods are simply put below each other; nothing is a column that only some methods have.
Written as JSON lines (one record a line, undefined numbers null) or CSV.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mechanome.core import BadInput, CorruptFile, Table, atomic_write, plain, read_jsonl
from mechanome.core.files import existing
from mechanome.dictionaries.metrics.measure import Measure


@dataclass(frozen=True)
class Result:
    """One row of the long table.

    Args:
        run: what measured it. method: how the dictionary came about (`fit`, `loaded` ...). arch: its architecture.
        site: where. dict_id: which dictionary. split: which rows.
        metric: name without version. definition: name with version, and its text.
        value: None where the data do not determine it. ci_lo, ci_hi: 95 % interval. n: rows behind it.
        seed: of the dictionary. seconds: spent on the pass that this came from. peak_mb: largest memory of the process.
    """

    run: str
    method: str
    arch: str
    site: str
    dict_id: str
    split: str
    metric: str
    definition: str
    value: float | None
    ci_lo: float | None
    ci_hi: float | None
    n: int
    seed: int | None
    seconds: float | None
    peak_mb: float | None


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(Result))
_NUMBERS = {"value": float, "ci_lo": float, "ci_hi": float, "n": int, "seed": int, "seconds": float, "peak_mb": float}


@dataclass(frozen=True)
class Source:
    """What all rows of one dictionary share; see `Result`."""

    run: str
    method: str
    arch: str
    site: str
    dict_id: str
    seed: int | None

    def result(self, split: str, found: Measure, seconds: float | None = None, peak_mb: float | None = None) -> Result:
        """One row."""
        return Result(
            self.run, self.method, self.arch, self.site, self.dict_id, split,
            found.definition.metric, str(found.definition), found.value, found.lo, found.hi, found.n,
            self.seed, seconds, peak_mb,
        )  # fmt: skip


def results_table(results: Iterable[Result], title: str = "") -> Table:
    """Results as a table of the columns `COLUMNS`."""
    return Table(COLUMNS, [[getattr(r, name) for name in COLUMNS] for r in results], title)


def write_results(table: Table, path: str | os.PathLike[str]) -> None:
    """Write a long table, whole or not at all: `.jsonl` or `.csv`.

    Raises:
        BadInput: another ending, or a table of other columns. NotFinite: NaN in a cell.
    """
    _long(table)
    kind = _kind(path)
    with atomic_write(path) as handle:
        handle.write(_WRITERS[kind](table).encode())


def read_results(path: str | os.PathLike[str]) -> Table:
    """Read what `write_results` wrote, numbers as numbers.

    Raises:
        BadInput: no such file, or another ending. CorruptFile: no such table.
    """
    return _READERS[_kind(path)](path)


def _long(table: Table) -> None:
    if table.columns != COLUMNS:
        missing = [name for name in COLUMNS if name not in table.columns]
        raise BadInput("a table of results", f"it lacks {missing or 'nothing, but has others'}", "give one of evaluate")


def _kind(path: str | os.PathLike[str]) -> str:
    ending = Path(path).suffix
    if ending not in _WRITERS:
        raise BadInput(f"results as {ending or 'a file without ending'}", "there is no such form", "use .jsonl or .csv")
    return ending


def _jsonl(table: Table) -> str:
    import json

    return "".join(json.dumps(plain(record, "result"), ensure_ascii=False) + "\n" for record in table.records())


def _csv(table: Table) -> str:
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(["" if cell is None else plain(cell) for cell in row] for row in table.rows)
    return page.getvalue()


def _from_jsonl(path: str | os.PathLike[str]) -> Table:
    return _checked(read_jsonl(path), path)


def _from_csv(path: str | os.PathLike[str]) -> Table:
    with io.StringIO(existing(path).read_text(encoding="utf-8"), newline="") as page:
        return _checked(({k: _cell(k, v, path) for k, v in row.items()} for row in csv.DictReader(page)), path)


def _cell(column: str, text: Any, path: str | os.PathLike[str]) -> Any:
    kind = _NUMBERS.get(column)
    if kind is None or text == "":
        return None if text == "" and kind is not None else text
    try:
        return kind(text)
    except (TypeError, ValueError) as error:
        raise CorruptFile(str(path), f"{column} is {text!r}", "write it again") from error


def _checked(records: Iterable[dict[str, Any]], path: str | os.PathLike[str]) -> Table:
    rows = []
    for record in records:
        if tuple(record) != COLUMNS:
            raise CorruptFile(str(path), f"its columns are {list(record)}", "write it with write_results")
        rows.append(list(record.values()))
    return Table(COLUMNS, rows)


_WRITERS = {".jsonl": _jsonl, ".csv": _csv}
_READERS = {".jsonl": _from_jsonl, ".csv": _from_csv}
