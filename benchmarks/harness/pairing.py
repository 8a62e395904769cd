"""Paired timing: ours and the peer's in turn, in two warm processes, so that what the machine does hits both alike.

The order swaps every round. A row holds medians, their ratio, and the largest relative difference of the results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.worker import Answer, Workers

_LONG_SECONDS = 60.0
_FEWEST, _FEWEST_LONG = 5, 3


@dataclass(frozen=True)
class Side:
    """What one side of a row does.

    Attributes:
        engine, task: who does what.
        args: the request.
        warm: replaces parts of the request in the untimed first call, where a small one will do.
        model: replaces parts of the settings: another model, or one with other layers or heads.
        scale: seconds are multiplied by this, where the request does only a part of the work.
        check: replaces parts of the request in the untimed call whose results are compared.
        copies: rounds take turns on so many models that are alike (`copy` in the request says which). Where a model
            lies in memory moves a forward pass by 2 %, which matters where less is measured.
    """

    engine: str
    task: str
    args: Mapping[str, Any]
    warm: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    check: Mapping[str, Any] = field(default_factory=dict)
    copies: int = 1

    def ask(
        self, workers: Workers, change: Mapping[str, Any] | None = None, save: Path | None = None, turn: int = 0
    ) -> Answer:
        """Do it once, with parts of the request replaced."""
        copy = {} if self.copies == 1 else {"copy": turn % self.copies}
        answer = workers.get(self.engine, self.model).ask(self.task, {**self.args, **copy, **(change or {})}, save)
        return replace(answer, seconds=answer.seconds * self.scale)


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        work: what is done, in words, with the conditions.
        peer: who is compared against, with the way it is used.
        ours, theirs: the two sides.
        tolerance: the largest relative difference of the results that counts as the same numbers.
        rounds: at most so many rounds.
        goal: the ratio aimed at, shown beside what was reached; None for rows that inform only.
        most_mb: the most memory that ours may take, shown likewise.
    """

    work: str
    peer: str
    ours: Side
    theirs: Side
    tolerance: float = 1e-4
    rounds: int = 15
    goal: float | None = None
    most_mb: float | None = None


@dataclass(frozen=True)
class Timing:
    """Measured seconds of both sides, round by round, their peak memory in MB, the difference of the results, and what
    our side has to say of its work."""

    row: Row
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    ours_peak_mb: float
    peer_peak_mb: float
    agree: float
    note: str = ""

    @property
    def ours_seconds(self) -> float:
        return median(self.ours)

    @property
    def peer_seconds(self) -> float:
        return median(self.theirs)

    @property
    def ratio(self) -> float:
        return self.peer_seconds / self.ours_seconds

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the ratio over rounds."""
        ratios = [b / a for a, b in zip(self.ours, self.theirs)]
        return float(np.quantile(ratios, 0.25)), float(np.quantile(ratios, 0.75))

    def record(self) -> dict[str, Any]:
        """The row as it is written to the results file."""
        few = f"; median of {len(self.ours)}" if len(self.ours) < _FEWEST else ""
        return {
            "work": self.row.work + (f"; {self.note}" if self.note else "") + few,
            "peer": self.row.peer,
            "ours_seconds": round(self.ours_seconds, 6),
            "peer_seconds": round(self.peer_seconds, 6),
            "ratio": round(self.ratio, 4),
            "ours_peak_mb": round(self.ours_peak_mb, 1),
            "peer_peak_mb": round(self.peer_peak_mb, 1),
            "agree": float(f"{self.agree:.3g}"),
        }


def measure(row: Row, workers: Workers, seconds: float = 30.0, rounds: int | None = None) -> Timing:
    """Time both sides of a row in turn.

    Args:
        seconds: about how long to go on, within the row's rounds; 5 rounds at least, 3 where one takes over a minute.
        rounds: exactly so many instead.

    Raises:
        WorkerFailed: a side failed.
    """
    sides = (row.ours, row.theirs)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{i}.npz" for i in range(2)]
        for side in sides:
            for turn in range(side.copies):
                side.ask(workers, side.warm, turn=turn)
        first = [side.ask(workers, save=file) for side, file in zip(sides, files)]
        for side, file in zip(sides, files):
            if side.check:
                side.ask(workers, side.check, file)
        agree = difference(*(dict(np.load(file)) for file in files))
    taken = first[0].seconds / row.ours.scale + first[1].seconds / row.theirs.scale
    fewest = _FEWEST_LONG if taken > _LONG_SECONDS else _FEWEST
    rounds = rounds or min(row.rounds, max(fewest, int(seconds / taken)))
    times = [[answer.seconds] for answer in first]
    for i in range(1, rounds):
        for j in (i % 2, 1 - i % 2):
            times[j].append(sides[j].ask(workers, turn=i).seconds)
    peaks = [answer.peak_mb or 0.0 for answer in first]
    return Timing(row, tuple(times[0]), tuple(times[1]), peaks[0], peaks[1], agree, first[0].note)


def difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """The largest difference of two results, relative to the largest value, over the arrays that both have.

    NaN marks what a side did not compute; such entries are left out.

    Raises:
        ValueError: nothing in common, different shapes, or all entries left out.
    """
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        raise ValueError(f"nothing to compare: {sorted(ours)} and {sorted(theirs)}")
    worst = 0.0
    for name in common:
        a, b = np.asarray(ours[name], dtype=np.float64), np.asarray(theirs[name], dtype=np.float64)
        if a.shape != b.shape:
            raise ValueError(f"{name}: shapes {a.shape} and {b.shape}")
        both = ~(np.isnan(a) | np.isnan(b))
        if not both.any():
            raise ValueError(f"{name}: no entry was computed by both")
        worst = max(worst, float(np.abs(a - b)[both].max() / max(np.abs(b[both]).max(), 1e-30)))
    return worst
