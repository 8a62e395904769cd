"""The command of a benchmark: choose rows, measure them or take them from the journal, print, check, record."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from benchmarks.harness import growth as growing
from benchmarks.harness import results
from benchmarks.harness.growth import Growth
from benchmarks.harness.journal import Journal
from benchmarks.harness.pairing import Row, Timing, measure
from benchmarks.harness.worker import Engine, Workers

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Bench(Generic[Subject]):
    """A benchmark.

    Attributes:
        name: of its results file.
        about: shown as help.
        engines: who does the work.
        prepare: makes what rows are made from, and the settings of workers besides threads and clock.
        groups: rows by name of a group.
        growths: comparisons along an axis.
        code: folders that the rows depend on, besides the engine and the harness.
        seconds: how long to time a row by default, about.
    """

    name: str
    about: str
    engines: Mapping[str, Engine]
    prepare: Callable[[], tuple[Subject, Mapping[str, Any]]]
    groups: Mapping[str, Callable[[Subject], Iterable[Row]]]
    growths: Callable[[Subject], Iterable[Growth]]
    code: Sequence[str]
    seconds: float = 30.0

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run it; 1 if any numbers differ."""
        options = self._options(argv)
        subject, settings = self.prepare()
        measured = {"threads": options.threads, "clock": options.clock}
        chosen_by = {**measured, "seconds": options.seconds, "rounds": options.rounds}
        load = round(os.getloadavg()[0], 2)
        journal = Journal.open(self.name, chosen_by, load, self.code, options.fresh)
        if len(journal):
            print(f"going on: {len(journal)} rows were measured before (--fresh forgets them)", file=sys.stderr)
        timings, grown = self._measured(subject, {**settings, **measured}, options, journal)
        growth_records = [growing.record(growth, points) for growth, points in grown]
        results.table(timings, growth_records)
        wrong = [t for t in chain(timings, *(points for _, points in grown)) if t.agree > t.row.tolerance]
        for t in wrong:
            print(f"DIFFERENT NUMBERS ({t.agree:.2e}): {t.row.peer} | {t.row.work}", file=sys.stderr)
        if wrong:
            return 1
        partial = self._partial(options)
        if partial and not options.record:
            print("a partial run: nothing was recorded", file=sys.stderr)
            return 0
        conditions = {**measured, "load_before": journal.load}
        path = results.write(self.name, timings, growth_records, journal.packages, conditions, partial)
        print(f"wrote {path}", file=sys.stderr)
        journal.close()
        return 0

    def _measured(
        self, subject: Subject, settings: Mapping[str, Any], options: argparse.Namespace, journal: Journal
    ) -> tuple[list[Timing], list[tuple[Growth, list[Timing]]]]:
        """The rows and growths asked for."""
        begun = time.monotonic()
        wanted = options.only or [*self.groups, "growth"]
        with Workers(self.engines, settings) as workers:

            def timed(row: Row) -> Timing:
                if known := journal.find(row):
                    return known
                timing = measure(row, workers, options.seconds, options.rounds)
                journal.add(timing, workers.versions())
                past = time.monotonic() - begun
                print(f"{past:6.0f} s  {timing.ratio:8.3f}  {row.peer} | {row.work}", file=sys.stderr)
                return timing

            rows = chain.from_iterable(self.groups[name](subject) for name in self.groups if name in wanted)
            timings = [timed(row) for row in rows if self._asked(row, options)]
            grown: list[tuple[Growth, list[Timing]]] = []
            for growth in self.growths(subject) if "growth" in wanted else ():
                workers.close(changed_only=True)
                grown.append((growth, [timed(row) for row in growth.rows.values()]))
        return timings, grown

    def _asked(self, row: Row, options: argparse.Namespace) -> bool:
        return bool(re.search(options.peer or "", row.peer) and re.search(options.work or "", row.work))

    def _partial(self, options: argparse.Namespace) -> dict[str, Any]:
        """What a partial run was limited to; nothing for a whole one."""
        if not (options.only or options.peer or options.work or options.rounds):
            return {}
        return {
            "partial": True,
            "rounds": options.rounds,
            "groups": options.only or [*self.groups, "growth"],
            "peers": options.peer or "all",
            "work": options.work or "all",
        }

    def _options(self, argv: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}", description=self.about)
        parser.add_argument("--only", nargs="+", choices=[*self.groups, "growth"], help="these groups; not recorded")
        parser.add_argument("--peer", help="only rows whose peer matches this pattern; nothing is recorded")
        parser.add_argument("--work", help="only rows whose work matches this pattern; nothing is recorded")
        parser.add_argument("--rounds", type=int, help="exactly so many rounds; nothing is recorded")
        parser.add_argument("--fresh", action="store_true", help="forget the rows of a run that was stopped")
        parser.add_argument(
            "--record",
            action="store_true",
            help="record a partial run too: its rows replace those of a whole run under the same conditions",
        )
        parser.add_argument(
            "--seconds", type=float, default=self.seconds, help="aim of timed seconds a row (default %(default)g)"
        )
        parser.add_argument("--threads", type=int, default=2, help="torch threads of every worker (default 2)")
        parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu counts processor seconds")
        return parser.parse_args(argv)
