"""`mechanome study`: listing, running, JSON, exit codes, completion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import known
import pytest
from typer.testing import CliRunner, Result

from mechanome.cli import main
from mechanome.studies import STUDIES, Scale, Study, command


def only(monkeypatch: pytest.MonkeyPatch, study: Study[Any]) -> None:
    """There is no other study."""
    for module in ("command", "running"):
        monkeypatch.setattr(f"mechanome.studies.{module}.STUDIES", {study.name: study})


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    only(monkeypatch, known.study())
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    return lambda *arguments, verb="study": runner.invoke(main.app, [verb, *arguments])


def test_a_study_prints_its_verdicts_and_files(call: Any, tmp_path: Path) -> None:
    done = call("known-answer", "--record", "--quiet")
    assert done.exit_code == 0, done.output
    [folder] = (tmp_path / "runs").iterdir()
    for said in ("A Known Answer", "near-one", "inconclusive", "it is 1 by construction", "60 draws",
                 f"mechanome replay runs/{folder.name}", "results/studies/known-answer.json"):  # fmt: skip
        assert said in done.stdout, said
    assert json.loads((tmp_path / "results/studies/known-answer.json").read_text())["paper"] == 99


def test_strict_tells_of_a_failed_claim(call: Any) -> None:
    assert call("known-answer", "--strict", "-q").exit_code == 1
    assert call("known-answer", "--strict", "--tier", "smoke", "-q").exit_code == 0


def test_json_is_all_that_is_printed(call: Any, tmp_path: Path) -> None:
    done = call("known-answer", "--json", "--seeds", "2", "--out", str(tmp_path / "deep"))
    record = json.loads(done.stdout)
    assert record["seeds"] == [0, 1] and Path(record["folder"]).parent == tmp_path / "deep" and done.stderr == ""
    assert json.loads(call("known-answer", "--json", "--pilot").stdout)["seeds"] == [100, 101]


def test_studies_are_listed_and_completed() -> None:
    def call(*arguments: str) -> Result:
        return CliRunner(env={"COLUMNS": "80"}).invoke(main.app, ["study", *arguments])

    done = call("list")
    assert "contribution-weights" in done.stdout and "smollm2-135m-instruct" in done.stdout
    rows = json.loads(call("list", "--json").stdout)
    assert [row["study"] for row in rows] == list(STUDIES) and all(row["claims"] for row in rows)
    assert command.names("contr") == ["contribution-weights"] and "list" in command.names()


def test_replay_repeats_a_study(call: Any, tmp_path: Path) -> None:
    folder = json.loads(call("known-answer", "--json").stdout)["folder"]
    done = call(folder, verb="replay")
    assert done.exit_code == 0 and "difference from the recorded numbers is 0.0e+00" in done.stderr
    assert "near-one" in done.stdout and len(list((tmp_path / "runs").iterdir())) == 2
    assert call(folder, "--strict", "-q", verb="replay").exit_code == 1


MISTAKES = {
    "no such role": (["known-answer", "--model", "x=y"], "leave --model out"),
    "recording smoke": (["known-answer", "--tier", "smoke", "--record"], "use --tier cpu"),
    "too many seeds": (["known-answer", "--seeds", "9"], "use 1 to 4"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_can_be_corrected_is_code_2(name: str, call: Any, tmp_path: Path) -> None:
    arguments, said = MISTAKES[name]
    done = call(*arguments)
    assert done.exit_code == 2 and done.stderr.startswith("error: ") and said in done.stderr
    assert done.stdout == "" and not list(tmp_path.iterdir())


def test_an_unknown_study_names_the_nearest(tmp_path: Path) -> None:
    done = CliRunner().invoke(main.app, ["study", "contribution-weight", "--out", str(tmp_path / "runs")])
    assert done.exit_code == 2 and "did you mean 'contribution-weights'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_help_fits_a_screen(call: Any) -> None:
    lines = call("--help").stdout.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80


def test_an_interrupted_study_says_where_it_goes_on(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = known.study(scales={tier: Scale(known.Settings(5, calls="calls", stop_at=1))
                                   for tier in ("smoke", "cpu", "full")})  # fmt: skip
    only(monkeypatch, stopping)
    done = call("known-answer", "-q")
    assert done.exit_code == 130 and "the same command goes on from them" in done.stderr


def test_models_are_named_by_role(call: Any) -> None:
    assert command._models(["mine", "encoder=hub/other"]) == {"": "mine", "encoder": "hub/other"}


def test_seeds_of_ones_own_and_pilot_seeds_exclude_each_other(call: Any, tmp_path: Path) -> None:
    done = call("known-answer", "--seeds", "1", "--pilot")
    assert done.exit_code == 2 and "leave --seeds out" in done.stderr and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("module", ["mechanome.studies.command", "mechanome.studies.papers.contribution_weights"])
def test_importing_is_cheap(module: str) -> None:
    heavy = {"transformers"} | ({"torch", "scipy"} if module.endswith("command") else set())
    code = f"import sys, {module}; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"
