"""Finished rows of a run, so that a benchmark that was stopped goes on where it was.

A long benchmark needs a quiet machine for an hour; this lets it take several quiet half hours. A row counts only under
the same conditions: machine, threads, clock, and the very code of what is measured and of the benchmark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.harness.environments import ROOT
from benchmarks.harness.pairing import Row, Timing
from mechanome.core.files import sha256
from mechanome.core.versions import machine, versions

_FOLDER = ROOT / "benchmarks" / ".journals"
_CODE = ("src/mechanome/core", "src/mechanome/engine", "benchmarks/harness")
_MEASURED = ("ours", "theirs", "ours_peak_mb", "peer_peak_mb", "agree", "note")


@dataclass
class Journal:
    """The rows measured so far.

    Attributes:
        path: one line a row.
        conditions: under which they were measured.
        load: the highest load of the machine, of all starts.
        packages: versions of the peers that were started.
    """

    path: Path
    conditions: Mapping[str, Any]
    load: float
    packages: dict[str, str] = field(default_factory=dict)
    _lines: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(
        cls, bench: str, conditions: Mapping[str, Any], load: float, code: Sequence[str] = (), fresh: bool = False
    ) -> Self:
        """The journal of a benchmark, with the rows that count.

        Args:
            conditions: what the caller chose: threads, clock, seconds a row.
            load: of the machine now.
            code: folders that the rows depend on, besides the engine and the harness.
            fresh: forget what was measured before.
        """
        here = {**conditions, "machine": machine(), "versions": versions(), "code": _code(code)}
        found = cls(_FOLDER / f"{bench}.jsonl", here, load)
        if fresh:
            found.close()
        for text in found.path.read_text().splitlines() if found.path.exists() else ():
            line = json.loads(text)
            if line["conditions"] == here:
                found._lines[line["key"]] = line
                found.load = max(found.load, line["load"])
                found.packages |= line["packages"]
        return found

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, row: Row) -> Timing | None:
        """What was measured of a row, None if nothing was."""
        line = self._lines.get(_key(row))
        if line is None:
            return None
        ours, theirs, *rest = (line[name] for name in _MEASURED)
        return Timing(row, tuple(ours), tuple(theirs), *rest)

    def add(self, timing: Timing, packages: Mapping[str, str]) -> None:
        """Keep a row that was just measured; written at once."""
        self.packages |= packages
        line = {
            "key": _key(timing.row),
            "conditions": self.conditions,
            "load": self.load,
            "packages": dict(packages),
            **{name: getattr(timing, name) for name in _MEASURED},
        }
        self._lines[line["key"]] = line
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("a") as handle:
            handle.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Remove the journal: its rows are recorded, or not wanted."""
        self.path.unlink(missing_ok=True)


def _key(row: Row) -> str:
    return hashlib.sha256(json.dumps(asdict(row), sort_keys=True).encode()).hexdigest()


def _code(folders: Sequence[str]) -> str:
    files = sorted(path for folder in (*_CODE, *folders) for path in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256("".join(sha256(path) for path in files).encode()).hexdigest()
