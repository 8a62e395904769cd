"""The frame of studies: verdicts, plans, records, pages, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import known
import pytest

from mechanome.core import BadInput, Claim, CorruptFile, NotFinite, UnknownName, read_json
from mechanome.studies import STUDIES, Effect, Measured, Registry, Scale, read_record, resolve, run


def verdicts(found: Any) -> dict[str, str]:
    return {finding.claim.id: str(finding.verdict) for finding in found.findings}


def test_each_verdict_follows_from_its_interval(tmp_path: Path) -> None:
    found = run(known.study(), out=tmp_path, quiet=True).found
    assert verdicts(found) == {
        "near-one": "holds",
        "above-two": "fails",
        "unsure": "inconclusive",
        "missing": "not-judged",
    }
    assert found.summary == "1 holds, 1 fails, 1 inconclusive, 1 not-judged" and found.failed
    first, second = found.findings[:2]
    assert first.n == 60 and first.lo < first.effect < first.hi and second.note == "it is 1 by construction"
    assert found.reported[0].interval.estimate == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize(("tier", "seeds"), [("smoke", None), ("smoke", [0]), ("cpu", "pilot"), ("cpu", [0, 100])])
def test_smoke_and_pilot_runs_are_never_judged(tier: str, seeds: Any, tmp_path: Path) -> None:
    assert not resolve(known.study(), tier, seeds).judged
    found = run(known.study(), tier, seeds=seeds, out=tmp_path, quiet=True).found
    assert set(verdicts(found).values()) == {"not-judged"} and not found.failed
    assert found.findings[0].effect == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("seeds", [True, "two", ["x"], [0, 0], [True], [], 1.5, 0, [[0]]])
def test_seeds_that_are_none_of_the_studys_are_refused(seeds: Any) -> None:
    with pytest.raises(BadInput, match="seeds"):
        resolve(known.study(), seeds=seeds)


def test_plans_of_wrong_types_are_refused() -> None:
    wrong: Any
    for wrong in (5, ["reader"], "reader"):
        with pytest.raises(BadInput, match="give a mapping"):
            resolve(known.study(), models=wrong)
        with pytest.raises(BadInput, match="give a mapping"):
            resolve(known.study(), settings=wrong)
        with pytest.raises(UnknownName):
            resolve(known.study(), settings={wrong if isinstance(wrong, int) else "no": 1})
        with pytest.raises(BadInput, match="a study of type"):
            resolve(wrong)


def test_a_plan_fills_in_what_was_not_chosen() -> None:
    study = known.study()
    assert resolve(study).seeds == (0, 1, 2) and resolve(study, "full").seeds == (0, 1, 2, 3)
    assert resolve(study, "smoke").seeds == (100, 101) and resolve(study, seeds="pilot").seeds == (100, 101)
    assert resolve(study, seeds=4).seeds == (0, 1, 2, 3) and resolve(study, "smoke", 1).seeds == (100,)
    assert resolve(study, "full", models={"": "mine"}).models == {"reader": "mine", "other": "some/other"}
    assert resolve(study, "full", models={"other": "mine"}).models["other"] == "mine"
    assert resolve(study, settings={"words": ["c"]}).settings == known.Settings(20, ("c",))


WRONG = {
    "tier": ({"tier": "ful"}, UnknownName, "did you mean 'full'"),
    "setting": ({"settings": {"drawz": 1}}, UnknownName, "did you mean 'draws'"),
    "role": ({"tier": "full", "models": {"reeder": "x"}}, UnknownName, "did you mean 'reader'"),
    "no role": ({"models": {"": "x"}}, UnknownName, "leave --model out"),
    "too many seeds": ({"seeds": 5}, BadInput, "use 1 to 4"),
    "no seeds": ({"seeds": 0}, BadInput, "use 1 to 4"),
    "strange seed": ({"seeds": [7]}, BadInput, "name some of these"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    choices, kind, said = WRONG[name]
    with pytest.raises(kind, match=said):
        run(known.study(), out=tmp_path / "runs", **choices)
    assert not (tmp_path / "runs").exists()


NO_RECORD = {
    "smoke": ({"tier": "smoke"}, "use --tier cpu"),
    "pilot": ({"seeds": "pilot"}, "leave --pilot out"),
    "fewer seeds": ({"seeds": 2}, "leave --seeds out"),
    "other settings": ({"settings": {"draws": 3}}, "leave them as they are"),
    "other model": ({"tier": "full", "models": {"": "mine"}}, "leave --model out"),
}


@pytest.mark.parametrize("name", NO_RECORD)
def test_what_is_not_the_study_itself_is_not_recorded(name: str, tmp_path: Path) -> None:
    choices, said = NO_RECORD[name]
    with pytest.raises(BadInput, match=said):
        run(known.study(), out=tmp_path / "runs", record=tmp_path, **choices)
    assert not list(tmp_path.iterdir())


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    done = run(known.study(), out=tmp_path / "runs", record=tmp_path / "results", quiet=True)
    assert done.recorded == tmp_path / "results" / "known-answer.json"
    record = read_record(done.recorded)
    assert record == done.record == read_json(done.folder / done.file)
    assert (record["study"], record["paper"], record["tier"], record["seeds"]) == ("known-answer", 99, "cpu", [0, 1, 2])
    assert set(record) >= {"seconds", "machine", "versions", "claims"}
    columns = {"id", "statement", "effect", "lo", "hi", "n", "threshold", "verdict", "note"}
    assert [set(row) for row in record["claims"]] == [columns] * 4
    assert [row["id"] for row in record["reported"]] == ["spread"] and "verdict" not in record["reported"][0]


@pytest.mark.parametrize("damage", ["verdict", "missing", "text"])
def test_a_record_that_does_not_bear_out_its_verdict_is_refused(damage: str, tmp_path: Path) -> None:
    path = run(known.study(), out=tmp_path / "runs", record=tmp_path, quiet=True).recorded
    record = json.loads(path.read_text())
    if damage == "verdict":
        record["claims"][1]["verdict"] = "holds"
    elif damage == "missing":
        del record["seeds"]
    path.write_text("{" if damage == "text" else json.dumps(record))
    with pytest.raises(CorruptFile):
        read_record(path)


@pytest.mark.parametrize("odd", ["missing", "extra", "nan"])
def test_a_measurement_must_cover_every_claim(odd: str, tmp_path: Path) -> None:
    def measure(context: Any) -> Measured:
        effects = dict(known.measure(context).effects)
        if odd == "missing":
            del effects["unsure"]
        elif odd == "extra":
            effects["other"] = Effect(None, "?")
        else:
            effects["unsure"] = Effect(dataclasses.replace(effects["near-one"].interval, lo=float("nan")))
        return Measured(effects)

    kind = NotFinite if odd == "nan" else BadInput
    with pytest.raises(kind, match=r"unsure|other"):
        run(known.study(measure=measure), out=tmp_path, record=tmp_path / "results", quiet=True)
    assert not (tmp_path / "results").exists()


FAULTS = {
    "name": {"name": "Known answer"},
    "no claims": {"claims": ()},
    "id twice": {"reported": (known.study().reported[0], known.study().reported[0])},
    "told of, not reported": {"beside": {"other": "in words"}},
    "tier": {"scales": {"cpu": Scale(known.Settings(1))}},
    "shared seed": {"pilot": (0,)},
    "no pilot": {"pilot": ()},
    "too many": {"seeds": (0,)},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_study_with_a_fault_cannot_be_made(name: str) -> None:
    with pytest.raises(BadInput):
        known.study(**FAULTS[name])


def test_the_page_says_everything(tmp_path: Path) -> None:
    done = run(known.study(), out=tmp_path, quiet=True)
    page = done.report.read_text()
    for said in ("A Known Answer", "near-one", "it is 1 by construction", "&gt;= 2",
                 "1 fails", "spread", "Each draw &lt;b&gt;", "60 draws", "Numbers are drawn.", "It shows nothing else.",
                 "0, 1, 2", f"mechanome replay {done.folder}"):  # fmt: skip
        assert said in page, said


def test_every_study_is_found_by_its_file_name() -> None:
    assert "contribution-weights" in list(STUDIES) and len(STUDIES) == len(list(STUDIES))
    papers = Path(STUDIES._package.__path__[0])
    assert len(STUDIES) == len([p for p in papers.iterdir() if p.stem.strip("_") == p.stem])
    for name, study in STUDIES.items():
        assert study.name == name and study.method and study.limits and study.source
        for tier in study.scales:
            assert resolve(study, tier).arguments()["seeds"]
    assert isinstance(STUDIES, Registry) and STUDIES._ipython_key_completions_() == list(STUDIES)
    assert "nosuch" not in STUDIES and 3 not in STUDIES
    with pytest.raises(UnknownName, match="did you mean 'contribution-weights'"):
        STUDIES["contribution-weight"]


def test_thresholds_are_those_of_the_specification() -> None:
    needed = {claim.id: str(claim.threshold) for claim in STUDIES["contribution-weights"].claims}
    assert needed == {
        "agreement-margin": ">= 0.05",
        "agreement-better": "> 0",
        "hit-margin": ">= 0.1",
        **{f"sink-share-{role}": "<= 0.5" for role in ("decoder", "encoder")},
        **{f"sink-convex-{role}": ">= 0.8" for role in ("decoder", "encoder")},
        **{f"sink-louder-{role}": ">= 0.7" for role in ("decoder", "encoder")},
        "drift-entropy": ">= 0.15",
        "drift-significant": "> 0",
    }
    assert isinstance(STUDIES["contribution-weights"].claims[0], Claim)
