"""The main job on the real model, end to end through the command line, and repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mechanome.cli.main import app
from mechanome.engine.registry import find
from registry_models import need

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    need("smollm2-135m-instruct")
    out = tmp_path_factory.mktemp("runs")
    done = CliRunner().invoke(app, ["explain", "The capital of France is", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), out


def test_the_capital_of_france(result: tuple[dict, Path]) -> None:
    record, _ = result
    question = record["question"]
    assert question["answer"]["text"] == " Paris" and record["prediction"][0]["probability"] > 0.5
    assert question["swap"]["old"]["text"] == " France"
    assert len(question["tokens"]) == len(question["counterfactual_tokens"])
    assert record["verdict"] == "explained" and record["failures"] == []
    assert find("smollm2-135m-instruct").notes in record["model"]["notes"], "what the list of models says of it"
    remove, keep = record["verification"]["remove"], record["verification"]["keep"]
    assert remove["share"] > 0.5 and keep["share"] > 0.5 and remove["p"] <= 0.05 and keep["p"] <= 0.05
    assert remove["after"][0]["text"] != " Paris" and keep["after"][0]["text"] == " Paris"


def test_the_parts_that_are_known_to_matter(result: tuple[dict, Path]) -> None:
    record, _ = result
    strongest = next(part for part in record["components"] if not part["echo"])
    assert strongest["name"] == "head 23.4"
    tokens = record["question"]["tokens"]
    assert tokens[strongest["position"]] == " is" and tokens[strongest["attends"][0]["position"]] == " France"
    assert [part["name"] for part in record["components"] if part["echo"]] == ["MLP 0"]
    lens = record["lens"]
    assert lens[-1]["answer_rank"] == 1 and lens[0]["answer_rank"] > 100


def test_replay_repeats_the_numbers(result: tuple[dict, Path]) -> None:
    _, out = result
    [folder] = out.iterdir()
    done = CliRunner().invoke(app, ["replay", str(folder)])
    assert done.exit_code == 0, done.stderr
    assert "EXPLAINED" in done.stdout and "head 23.4" in done.stdout
    assert "largest difference from the recorded numbers is 0.0e+00" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 200
