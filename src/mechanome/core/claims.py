"""Claims, and what measurement says of them.

A claim's threshold is a region of the number line, written as people write it (``>= 0.8``, ``in [-0.01, 0.01]``).
A measured interval that lies wholly inside makes the claim hold, wholly outside makes it fail; one that touches both
is inconclusive. No other judgment exists, so a verdict can always be recomputed from its row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mechanome.core.errors import BadInput, CorruptFile, NotFinite, UnknownName, nearest
from mechanome.core.statistics import Interval
from mechanome.core.tables import Table
from mechanome.core.tiers import TIERS, Tier


class Verdict(StrEnum):
    """What a measurement says of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    INCONCLUSIVE = "inconclusive"
    NOT_JUDGED = "not-judged"


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ONE_SIDED = re.compile(rf"\s*(>=|<=|>|<)\s*({_NUMBER})\s*")
_TWO_SIDED = re.compile(rf"\s*in\s*\[\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\]\s*")


@dataclass(frozen=True)
class Threshold:
    """A region of the number line: one side of a number, or a closed range.

    Args:
        lo: lower end, ``-inf`` where there is none.
        hi: upper end, ``inf`` where there is none.
        closed: whether the ends belong to the region.
    """

    lo: float = -math.inf
    hi: float = math.inf
    closed: bool = True

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """``">= 0.8"``, ``"> 0"``, ``"<= 1e-3"``, ``"< 2"`` or ``"in [-0.1, 0.1]"``.

        Raises:
            BadInput: anything else, or a range whose ends are the wrong way round.
        """
        if match := _ONE_SIDED.fullmatch(text):
            sign, value = match[1], float(match[2])
            closed = sign.endswith("=")
            return cls(lo=value, closed=closed) if sign.startswith(">") else cls(hi=value, closed=closed)
        if (match := _TWO_SIDED.fullmatch(text)) and float(match[1]) <= float(match[2]):
            return cls(lo=float(match[1]), hi=float(match[2]))
        raise BadInput(f"threshold {text!r}", "not a comparison", "write '>= 0.8', '< 2' or 'in [-0.1, 0.1]'")

    def __str__(self) -> str:
        if math.isfinite(self.lo) and math.isfinite(self.hi):
            return f"in [{_exact(self.lo)}, {_exact(self.hi)}]"
        sign, value = (">", self.lo) if math.isfinite(self.lo) else ("<", self.hi)
        return f"{sign}{'=' if self.closed else ''} {_exact(value)}"

    def __contains__(self, value: float) -> bool:
        if self.closed:
            return self.lo <= value <= self.hi
        return self.lo < value < self.hi

    def verdict(self, lo: float, hi: float) -> Verdict:
        """What an interval from ``lo`` to ``hi`` says: inside, outside, or both."""
        if lo in self and hi in self:
            return Verdict.HOLDS
        below = hi < self.lo or (hi == self.lo and not self.closed)
        above = lo > self.hi or (lo == self.hi and not self.closed)
        return Verdict.FAILS if below or above else Verdict.INCONCLUSIVE


@dataclass(frozen=True, init=False)
class Claim:
    """A statement that a number can settle.

    Args:
        id: short and stable, such as ``"sparse-beats-dense"``.
        statement: the claim in words, naming the quantity and its unit.
        threshold: the region the quantity must lie in; text is parsed.
    """

    id: str
    statement: str
    threshold: Threshold

    def __init__(self, id: str, statement: str, threshold: Threshold | str) -> None:
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "statement", statement)
        region = Threshold.parse(threshold) if isinstance(threshold, str) else threshold
        object.__setattr__(self, "threshold", region)


@dataclass(frozen=True)
class Finding:
    """A claim with its measurement and verdict.

    Args:
        claim: what was claimed.
        effect: the estimate, None where nothing was measured.
        lo: lower end of its interval.
        hi: upper end of its interval.
        n: independent units behind it.
        verdict: what follows.
        note: what a reader must know: how the interval was made, or why nothing was measured.
    """

    claim: Claim
    effect: float | None
    lo: float | None
    hi: float | None
    n: int
    verdict: Verdict
    note: str = ""

    def record(self) -> dict[str, Any]:
        """The row of a results file: ``id, statement, effect, lo, hi, n, threshold, verdict, note``."""
        return {
            "id": self.claim.id,
            "statement": self.claim.statement,
            "effect": self.effect,
            "lo": self.lo,
            "hi": self.hi,
            "n": self.n,
            "threshold": str(self.claim.threshold),
            "verdict": str(self.verdict),
            "note": self.note,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Finding:
        """The finding of a results row.

        Raises:
            CorruptFile: a field is missing or its value impossible.
        """
        try:
            claim = Claim(record["id"], record["statement"], record["threshold"])
            effect, lo, hi = (record[key] for key in ("effect", "lo", "hi"))
            return cls(claim, effect, lo, hi, record["n"], Verdict(record["verdict"]), record["note"])
        except (KeyError, TypeError, ValueError, BadInput) as error:
            raise CorruptFile("findings row", f"it cannot be read ({error})", "run the study again") from error


def judge(claim: Claim, interval: Interval | None, tier: Tier = "cpu", note: str = "") -> Finding:
    """What a measurement says of a claim.

    Args:
        claim: the claim.
        interval: its measurement; None where it could not be measured here, with ``note`` saying why.
        tier: ``"smoke"`` results are never judged.
        note: kept with the finding. Where all measurements were equal, a remark is added that the interval has no
            width.

    Raises:
        NotFinite: an estimate or end that is NaN or infinite.
        BadInput: nothing measured and no note.
        UnknownName: no such tier.
    """
    if tier not in TIERS:
        raise UnknownName(f"tier {tier!r}", "no such tier", nearest(tier, TIERS))
    if interval is None:
        if not note:
            raise BadInput(f"claim {claim.id!r}", "no measurement and no reason", "say in note why it was not measured")
        return Finding(claim, None, None, None, 0, Verdict.NOT_JUDGED, note)
    if not all(map(math.isfinite, (interval.estimate, interval.lo, interval.hi))):
        raise NotFinite(f"claim {claim.id!r}", f"measured {interval}", "a verdict needs finite numbers")
    verdict = Verdict.NOT_JUDGED if tier == "smoke" else claim.threshold.verdict(interval.lo, interval.hi)
    remarks = [note] if note else []
    if not interval.has_spread:
        remarks.append(f"all resamples of {interval.n} agree, so the interval has no width")
    return Finding(claim, interval.estimate, interval.lo, interval.hi, interval.n, verdict, "; ".join(remarks))


def findings_table(findings: Iterable[Finding], title: str = "") -> Table:
    """Findings as a table: claim, effect with interval, n, threshold, verdict, note."""
    columns = ["claim", "statement", "effect", "lo", "hi", "n", "threshold", "verdict", "note"]
    return Table(columns, [list(finding.record().values()) for finding in findings], title)


def _exact(value: float) -> str:
    """The shortest text that parses back to the same number."""
    return repr(value).removesuffix(".0")
