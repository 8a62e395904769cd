"""The page of a study: what was claimed, what was found, how, and what that does not show."""

from __future__ import annotations

from collections.abc import Iterator

from mechanome.core import Finding, Verdict
from mechanome.core.tables import show
from mechanome.report import Line, Page, Section, Sheet, Span
from mechanome.studies.result import StudyResult

_WORDS = {
    Verdict.HOLDS: "The whole interval meets the threshold.",
    Verdict.FAILS: "No part of the interval meets the threshold.",
    Verdict.INCONCLUSIVE: "The interval reaches over the threshold.",
    Verdict.NOT_JUDGED: "No verdict is drawn from this measurement.",
}


def page(result: StudyResult, replay: str = "") -> Page:
    """The page of a result.

    Args:
        result: what was found.
        replay: the command that repeats the run.
    """
    plan, study = result.plan, result.plan.study
    return Page(
        name=f"{study.name}: {result.summary}",
        kicker=f"Mechanome \u00b7 study {study.paper:02d} \u00b7 tier {plan.tier}",
        title=(study.title,),
        subtitle=(study.source,),
        verdict=(result.summary, plan.judged and not result.failed, (_verdict(result),)),
        story=tuple(_story(finding) for finding in result.findings),
        sections=tuple(_sections(result)),
        measured=tuple((text,) for text in (*study.method, *result.remarks, plan.scale.note) if text),
        limits=tuple((text,) for text in study.limits),
        facts=tuple(_facts(result)),
        command=replay,
    )


def _verdict(result: StudyResult) -> str:
    if not result.plan.judged:
        return "This run shows that the study works. It is too small, or drawn with pilot seeds, so nothing is judged."
    return (
        "A claim holds where its whole interval meets the threshold, and fails where no part of it does; "
        "thresholds were fixed before the measurement."
    )


def _story(finding: Finding) -> Line:
    said = "not measured" if finding.effect is None else _value(finding.effect, finding.lo, finding.hi)
    needed = f" (needed {finding.claim.threshold})"
    return (Span(str(finding.verdict), "strong"), f" \u2014 {finding.claim.statement}: {said}{needed}")


def _sections(result: StudyResult) -> Iterator[Section]:
    rows = [_row(f.claim.id, f.record(), str(f.claim.threshold), str(f.verdict), f.note) for f in result.findings]
    columns = (
        ("claim", ""),
        ("what is measured", ""),
        ("effect", "the estimate"),
        ("interval", "from lower to upper end"),
        ("n", "independent units behind it"),
        ("needed", "the threshold, fixed before"),
        ("verdict", " ".join(_WORDS.values())),
        ("note", ""),
    )
    lead = ("Every claim with its effect, the interval of that effect, and how many independent units are behind it.",)
    yield Section("Claims and verdicts", lead, Sheet(columns, rows))
    yield from result.sections
    if result.reported:
        beside = [_row(r.quantity.id, r.record(), None, None, r.note) for r in result.reported]
        lead = ("Baselines, controls and costs, measured in the same run. They have no threshold and no verdict.",)
        kept = tuple(c for c in columns if c[0] not in ("needed", "verdict"))
        yield Section("Shown beside the claims", lead, Sheet((("quantity", ""), *kept[1:]), beside))


def _row(name: str, record: dict, needed: str | None, verdict: str | None, note: str) -> list[str]:
    ends = "" if record["lo"] is None else f"{show(record['lo'])} to {show(record['hi'])}"
    judged = [] if needed is None or verdict is None else [needed, verdict]
    return [name, record["statement"], show(record["effect"]), ends, str(record["n"]), *judged, note]


def _value(effect: float, lo: float | None, hi: float | None) -> str:
    return f"{show(effect)} [{show(lo)}, {show(hi)}]"


def _facts(result: StudyResult) -> Iterator[tuple[str, str]]:
    plan = result.plan
    yield "study", f"{plan.study.name} (measures {plan.study.home})"
    yield from ((f"model ({role})", model) for role, model in plan.models.items())
    yield "seeds", ", ".join(map(str, plan.seeds))
    yield "settings", ", ".join(f"{name} {value}" for name, value in plan.arguments()["settings"].items())
    yield "seconds", f"{result.seconds:.0f}; {result.processor:.0f} of processor time"
    yield "machine", ", ".join(f"{name} {value}" for name, value in result.machine.items())
    yield "versions", ", ".join(f"{name} {value}" for name, value in result.versions.items())
