"""`StudyResult`: what a study found, as a record, a table and a page; and the form in which it is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from mechanome.core import CorruptFile, Finding, Interval, Table, Verdict, read_json, write_json
from mechanome.report import Section
from mechanome.studies.plan import Plan
from mechanome.studies.study import Quantity

RESULTS = Path("results/studies")
"""Where records are committed, from the root of a checkout."""


@dataclass(frozen=True)
class Reported:
    """A quantity with its measurement, and no verdict.

    Args:
        quantity: what was measured.
        interval: the estimate; None where there is none.
        note: how it was made, or why there is none.
    """

    quantity: Quantity
    interval: Interval | None
    note: str = ""

    def record(self) -> dict[str, Any]:
        """``id, statement, effect, lo, hi, n, note``."""
        at = self.interval
        numbers = (None, None, None, 0) if at is None else (at.estimate, at.lo, at.hi, at.n)
        said = {"id": self.quantity.id, "statement": self.quantity.statement}
        return {**said, **dict(zip(("effect", "lo", "hi", "n"), numbers)), "note": self.note}


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Args:
        plan: what was run.
        findings: one a claim, in the study's order.
        reported: one a quantity without pass mark.
        remarks: lines about this measurement.
        sections: pictures.
        seconds, processor: of work, by the clock and of processor time, over all runs that contributed parts.
        machine, versions: that made it.
    """

    plan: Plan[Any]
    findings: tuple[Finding, ...]
    reported: tuple[Reported, ...]
    remarks: tuple[str, ...]
    sections: tuple[Section, ...] = field(repr=False)
    seconds: float
    processor: float
    machine: Mapping[str, Any] = field(repr=False)
    versions: Mapping[str, str] = field(repr=False)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """How many claims have which verdict."""
        return Counter(finding.verdict for finding in self.findings)

    @property
    def summary(self) -> str:
        """Such as ``"5 hold, 1 fails, 1 inconclusive"``."""
        return summary(str(finding.verdict) for finding in self.findings)

    @property
    def failed(self) -> bool:
        """Whether a judged claim failed."""
        return Verdict.FAILS in self.verdicts

    def record(self) -> dict[str, Any]:
        """The content of a results file."""
        study = self.plan.study
        return {
            "study": study.name,
            "paper": study.paper,
            "title": study.title,
            "source": study.source,
            "tier": self.plan.tier,
            "seeds": list(self.plan.seeds),
            "models": dict(self.plan.models),
            "seconds": round(self.seconds, 1),
            "processor_seconds": round(self.processor, 1),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "claims": [finding.record() for finding in self.findings],
            "reported": [item.record() for item in self.reported],
            "remarks": list(self.remarks),
        }

    def table(self) -> Table:
        """One row a claim: effect, interval, n, threshold, verdict."""
        rows = [(f.claim.id, f.effect, f.lo, f.hi, f.n, str(f.claim.threshold), str(f.verdict)) for f in self.findings]
        title = f"{self.plan.study.name}, tier {self.plan.tier}: {self.summary}"
        return Table(("claim", "effect", "lo", "hi", "n", "needed", "verdict"), rows, title)

    def reported_table(self) -> Table:
        """One row a quantity without pass mark."""
        rows = [tuple(item.record().values())[:-1] for item in self.reported]
        return Table(("shown beside", "what it is", "value", "lo", "hi", "n"), rows)

    def html(self, replay: str = "") -> str:
        """The page.

        Args:
            replay: the command that repeats the run.
        """
        from mechanome.studies.page import page

        return page(self, replay).html()

    def save(self, folder: str | Path = RESULTS) -> Path:
        """Write the record as ``<study>.json``, whole or not at all; returns its path."""
        path = Path(folder) / f"{self.plan.study.name}.json"
        write_json(path, self.record())
        return path

    def _repr_html_(self) -> str:
        return self.table().html()

    def __rich__(self) -> Group:
        """The terminal page: title, numbers, what each claim says, remarks."""
        study = self.plan.study
        head = Text(f"{study.title} (paper {study.paper:02d})\n", style="bold").append(study.source + "\n", "dim")
        said = [
            Text(f"{f.verdict}  ", style=_COLORS[f.verdict]).append(f.claim.id, "bold")
            + Text(f": {f.claim.statement}" + f" ({f.note})" * bool(f.note), style="none")
            for f in self.findings
        ]
        beside = [f"{len(self.reported)} quantities without a pass mark are in the report."] * bool(self.reported)
        return Group(head, self.table().rich(), *said, *(Text(x, style="dim") for x in (*beside, *self.remarks)))


def read_record(path: str | Path) -> dict[str, Any]:
    """Read a results file; every claim's verdict is checked to follow from its row.

    Raises:
        BadInput: no such file. CorruptFile: not a study's record, or a verdict that its numbers do not bear out.
    """
    record = read_json(path)
    missing = [k for k in _FORM if not isinstance(record, dict) or k not in record]
    if missing:
        raise CorruptFile(str(path), f"it has no {missing[0]!r}", "record the study again with --record")
    for row in record["claims"]:
        finding = Finding.from_record(row)
        if finding.verdict is Verdict.NOT_JUDGED or finding.lo is None or finding.hi is None:
            continue
        follows = finding.claim.threshold.verdict(finding.lo, finding.hi)
        if follows is not finding.verdict:
            why = f"claim {finding.claim.id!r} says {finding.verdict}, but its interval {follows}"
            raise CorruptFile(str(path), why, "record the study again with --record")
    return record


def summary(verdicts: Sequence[str] | Any) -> str:
    """Counts of verdicts in words, none of them left out: ``"2 hold, 1 fails"``."""
    counts = Counter(verdicts)
    words = {Verdict.HOLDS: ("holds", "hold"), Verdict.FAILS: ("fails", "fail")}
    said = []
    for verdict in Verdict:
        if n := counts[str(verdict)]:
            one, many = words.get(verdict, (str(verdict), str(verdict)))
            said.append(f"{n} {one if n == 1 else many}")
    return ", ".join(said)


_COLORS = {
    Verdict.HOLDS: "green",
    Verdict.FAILS: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.NOT_JUDGED: "dim",
}
_FORM = (
    "study",
    "paper",
    "tier",
    "seeds",
    "seconds",
    "processor_seconds",
    "machine",
    "versions",
    "claims",
    "reported",
    "remarks",
)
