"""`mechanome study`: listing, running, JSON, exit codes, completion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import known
import pytest
import typer
from typer.testing import CliRunner

from mechanome.studies import STUDIES, command


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    app = typer.Typer()
    app.command()(command.study)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mechanome.studies.running.STUDIES", {"known-answer": known.study()})
    return lambda *arguments: CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1"}).invoke(app, list(arguments))


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


def test_studies_are_listed_and_completed(call: Any) -> None:
    done = call("list")
    assert "contribution-weights" in done.stdout and "smollm2-135m-instruct" in done.stdout
    rows = json.loads(call("list", "--json").stdout)
    assert [row["study"] for row in rows] == list(STUDIES) and all(row["claims"] for row in rows)
    assert command.names("contr") == ["contribution-weights"] and "list" in command.names()


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
