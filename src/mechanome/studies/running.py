"""Running a study: a run folder that is continued after a kill, measurements judged, page and record written.

The folder holds `config.yaml` (the plan), `parts/` (finished work), `metrics.jsonl`, `result.json` and `report.html`.
The same command after a kill finds the unfinished folder of the same plan and goes on from its parts.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanome.core import (
    BadInput,
    Left,
    MechanomeError,
    RunConfig,
    RunFolder,
    Tier,
    judge,
    lock,
    machine,
    notice,
    plain,
    read_json,
    verb,
    versions,
    write_json,
)
from mechanome.studies.context import Context
from mechanome.studies.parts import PartStore, code_hash
from mechanome.studies.plan import Plan, Seeds, resolve
from mechanome.studies.registry import STUDIES
from mechanome.studies.result import RESULTS, Reported, StudyResult
from mechanome.studies.study import Measured, Study

VERB = "study"
RESULT = "result.json"


@dataclass(frozen=True)
class Outcome(Left[StudyResult]):
    """What running a study leaves behind.

    Args:
        recorded: the results file, where one was written.
        file: the name of the result's record in the folder.
    """

    recorded: Path | None = None
    file: str = RESULT

    def code(self, strict: bool) -> int:
        """The exit code: 1 where a judged claim failed and ``strict`` asks for that."""
        return int(strict and self.found.failed)


def run(
    study: str | Study[Any],
    tier: str = "cpu",
    *,
    seeds: Seeds = None,
    models: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    record: bool | str | Path = False,
    quiet: bool = False,
) -> Outcome:
    """Measure a study's claims, and write its run folder. A run that was killed is continued.

    Args:
        study: a name of `STUDIES`, or a study of your own.
        tier, seeds, models, settings: as in `mechanome.studies.plan.resolve`.
        out: where run folders are.
        record: also write the results file, into `results/studies` or the folder given.
        quiet: no progress.

    Raises:
        UnknownName, BadInput: a plan that cannot be; a result that could not be recorded; a measurement that misses a
            claim. Nothing is written for the first two. What a model or a measurement raises passes through.
    """
    plan = resolve(STUDIES[study] if isinstance(study, str) else study, tier, seeds, models, settings)
    if record and (why := plan.why_not_recorded):
        raise BadInput(f"recording {plan.study.name}", *why)
    base = Path(out)
    new = not os.path.exists(base)  # noqa: PTH110 - false, too, for a name that no folder can have
    with ExitStack() as held:
        folder, parts = _opened(plan, base, held)
        start = time.monotonic(), time.process_time()
        try:
            with folder:
                context = Context(plan, folder, parts, quiet)
                measured = plan.study.measure(context)
                now = time.monotonic() - start[0], time.process_time() - start[1]
                result = _judged(plan, measured, *(a + b for a, b in zip(now, context.earlier)))
                write_json(folder.path / RESULT, result.record())
                folder.write_report(result.html(f"mechanome replay {folder.path}"))
        except BaseException as error:
            if len(parts):
                error.add_note(f"finished parts are in {folder.path}; the same command goes on from them")
            else:
                shutil.rmtree(folder.path, ignore_errors=True)
                if new and not any(base.iterdir()):
                    base.rmdir()
            raise
    saved = result.save(RESULTS if record is True else record) if record else None
    return Outcome(result, folder.path, saved)


@verb(VERB)
def _again(arguments: dict[str, Any]) -> Outcome:
    return run(**arguments)


def _judged(plan: Plan[Any], measured: Measured, seconds: float, processor: float) -> StudyResult:
    """Every claim judged, every quantity reported.

    Raises:
        BadInput: an effect is missing, or belongs to nothing.
    """
    study = plan.study
    given, wanted = set(measured.effects), set(study.ids)
    if given != wanted:
        odd = sorted(given ^ wanted)[0]
        why = "was not measured" if odd in wanted else "is neither a claim nor a quantity"
        raise BadInput(f"study {study.name!r}", f"{odd!r} {why}", "return one effect for every id")
    tier: Tier = plan.tier if plan.judged else "smoke"
    effects = measured.effects
    findings = [judge(c, effects[c.id].interval, tier, effects[c.id].note) for c in study.claims]
    reported = [Reported(q, effects[q.id].interval, effects[q.id].note) for q in study.reported]
    return StudyResult(
        plan,
        tuple(findings),
        tuple(reported),
        tuple(measured.remarks),
        tuple(measured.sections),
        seconds,
        processor,
        machine(),
        versions(),
    )


def _opened(plan: Plan[Any], base: Path, held: ExitStack) -> tuple[RunFolder, PartStore]:
    """The unfinished folder of this plan that nobody works in, or a new one; locked until ``held`` closes."""
    arguments = {**plan.arguments(), "out": str(base)}
    wanted = RunConfig(verb=VERB, arguments=plain(arguments), versions=versions())
    for path in _unfinished(base, wanted):
        try:
            held.enter_context(lock(path / ".lock", timeout=0))
        except BadInput:
            continue  # another process is at work there
        store = PartStore(path / "parts", code_hash())
        notice(f"continuing {path}: {len(store)} finished parts")
        return RunFolder.reopen(path, wanted), store
    folder = RunFolder.create(VERB, arguments, base=base)
    held.enter_context(lock(folder.path / ".lock"))
    return folder, PartStore(folder.path / "parts", code_hash())


def _unfinished(base: Path, wanted: RunConfig) -> Iterator[Path]:
    """Folders of the same plan and versions whose run did not end well, newest first."""
    for path in sorted(base.glob(f"*-{VERB}-*"), reverse=True):
        try:
            ended = read_json(path / "run.json")["status"]
            same = RunConfig.read(path / "config.yaml") == wanted
        except (MechanomeError, KeyError, TypeError):
            continue  # not a run's folder, or one that was killed while it was made
        if same and ended != "done":
            yield path
