"""`mechanome circuit`: a run folder that can be repeated, or one message and the right code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import tiny
import torch
from typer.testing import CliRunner, Result

import circuit_tasks
import families
from mechanome.circuits import Graph, Scores, load_circuit, load_eap_ig
from mechanome.circuits.finding.ways import WAYS
from mechanome.circuits.interventions import KINDS
from mechanome.cli import circuit, main
from mechanome.engine import load
from mechanome.tasks import METRICS, Task

SMALL = ("--examples", "12", "--sizes", "0.02,0.05,1")


def call(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(main.app, ["circuit", *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its task."""
    folder = tmp_path_factory.mktemp("made")
    circuit_tasks.written(folder)
    return folder


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def asked(made: Path, *more: str) -> list[str]:
    return [str(made / "nouns.jsonl"), "--model", str(made / "model"), *SMALL, *more]


def test_names_that_can_be_typed_are_those_there_are() -> None:
    assert set(get_args(circuit.Method)) == set(WAYS)
    assert get_args(circuit.Metric) == tuple(METRICS) and get_args(circuit.Kind) == KINDS


def test_help_fits_a_screen() -> None:
    done = call("--help")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) <= 40 and max(map(len, done.stdout.splitlines())) <= 80


def test_help_names_every_method() -> None:
    words = set(re.findall(r"[a-z-]+", call("--help").stdout))
    assert set(WAYS) <= words


def test_a_run_leaves_everything_and_can_be_repeated(made: Path, out: Path) -> None:
    done = call(*asked(made, "--stability"))
    assert done.exit_code == 0, done.stderr
    assert "FAITHFUL" in done.stdout and "z.1.h3" in done.stdout and "\x1b" not in done.stdout
    body = done.stdout.split("\nreport")[0]
    assert max(len(line.rstrip()) for line in body.splitlines()) <= 80
    [folder] = out.iterdir()
    assert f"mechanome replay runs/{folder.name}" in done.stdout
    names = {file.name for file in folder.iterdir()}
    assert names == {
        "config.yaml", "run.json", "report.html", "discovery.json", "circuit.json", "eap-ig.json",
        "estimate.safetensors", "exact.safetensors", "examples.jsonl",
    }  # fmt: skip
    record = json.loads((folder / "discovery.json").read_text())
    graph = Graph.of(load(made / "model"))
    kept = load_circuit(folder / "circuit.json", graph)
    assert len(kept) == record["circuit"]["edges"] and load_eap_ig(folder / "eap-ig.json", graph)[0] == kept
    estimate, exact = (Scores.load(folder / f"{name}.safetensors", graph) for name in ("estimate", "exact"))
    assert estimate.estimate and not exact.estimate and int(exact.known.sum()) == record["screening"]["verified"]
    assert len(Task.from_jsonl(folder / "examples.jsonl")) == 12 == record["examples"]["finding"] * 2
    again = CliRunner().invoke(main.app, ["replay", str(folder)])
    assert again.exit_code == 0 and "largest difference from the recorded numbers is 0.0e+00" in again.stderr
    assert len(list(out.iterdir())) == 2


def test_json_is_all_that_is_printed(made: Path, out: Path) -> None:
    done = call(*asked(made, "--json", "--size", "6", "--verify", "10", "--seed", "1"))
    record = json.loads(done.stdout)
    assert done.stderr == "" and record["verdict"] == "faithful" and Path(record["folder"]).parent == Path("runs")
    assert record["circuit"]["chosen"] == 6 and record["screening"]["verified"] == 10
    assert record["settings"]["seed"] == 1 == record["examples"]["seed"] and record["stability"] is None
    assert record["curves"]["held_out"]["sizes"] == [0.02, 0.05, 1.0]


@pytest.mark.parametrize("more", [("--method", "greedy", "--size", "8"), ("--level", "node"), ("--method", "exact")])
def test_other_ways(more: tuple[str, ...], made: Path, out: Path) -> None:
    done = call(*asked(made, *more, "--quiet"))
    assert done.exit_code == 0 and done.stderr == "" and "FAITHFUL" in done.stdout


def test_strict_asks_for_a_faithful_circuit(made: Path, out: Path) -> None:
    bad = asked(made, "--size", "1", "--quiet", "--verify", "0")
    assert call(*bad).exit_code == 0
    done = call(*bad, "--strict")
    assert done.exit_code == 1 and "NOT FAITHFUL" in done.stdout
    assert call(*asked(made, "--strict", "--quiet")).exit_code == 0


def refused(done: Result, said: str, out: Path) -> None:
    """One message, code 2, and nothing on the disk."""
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ") and said in done.stderr and "Fix: " in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == "" and not out.exists()


BAD = {
    "budget": (("--budget", "much"), "it is not a size"),
    "budget too small": (
        (
            "--budget",
            "1KB",
        ),
        "a budget of 1.0 KB",
    ),
    "more edges than there are": (("--size", "100000"), "the graph has"),
    "more to verify than there are": (("--verify", "100000"), "the graph has"),
    "examples": (("--examples", "3"), "at least 4 are needed"),
    "threshold": (("--threshold", "0.1"), "does not take it"),
    "one size": (("--sizes", "0.1"), "two or more shares"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_be_corrected_is_code_2(name: str, made: Path, out: Path) -> None:
    more, said = BAD[name]
    refused(call(*asked(made), *more, "--quiet"), said, out)


FILES = {
    "no JSON": ('{"inputs": ', "line 1: not whole JSON"),
    "no example": ('{"prompt": "x"}', "line 1: there is no field 'prompt'. Fix: rename 'prompt' to 'inputs'"),
    "no counterfactual": ('{"inputs": "the cat", "answer": " sat", "foil": " ran"}', "there is no counterfactual"),
    "unequal lengths": (
        '{"inputs": "the cat sat", "answer": " on", "foil": " ran", "counterfactual": "the cat"}',
        "the counterfactual has another token length",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_code_2(name: str, made: Path, out: Path, tmp_path: Path) -> None:
    line, said = FILES[name]
    (tmp_path / "pairs.jsonl").write_text(f"{line}\n" * 5)
    refused(call("pairs.jsonl", "--model", str(made / "model"), "--quiet"), said, out)


def test_a_model_without_attention_is_code_2(made: Path, out: Path, tmp_path: Path) -> None:
    families.build("mamba").save_pretrained(tmp_path / "mamba")
    tiny.tokenizer().save_pretrained(tmp_path / "mamba")
    refused(call(str(made / "nouns.jsonl"), "--model", str(tmp_path / "mamba"), "--quiet"), "without attention", out)


def test_numbers_that_overflow_are_code_2(
    made: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in half precision whose gradients are beyond its range."""
    module = tiny.build({(1, 3): 2.0}, floor=1e-3)
    with torch.no_grad():
        module.lm_head.weight *= 500
        module.model.embed_tokens.weight *= 1e-3
    module.save_pretrained(tmp_path / "large")
    tiny.tokenizer().save_pretrained(tmp_path / "large")
    monkeypatch.setattr("mechanome.circuits.finding.discovery.load", lambda x: load(x, dtype="float16"))
    refused(call(str(made / "nouns.jsonl"), "--model", str(tmp_path / "large"), "--quiet"), "NaN or infinite", out)


def test_a_changed_file_is_not_repeated(made: Path, out: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes((made / "nouns.jsonl").read_bytes())
    call(str(copy), "--model", str(made / "model"), *SMALL, "--quiet")
    [folder] = out.iterdir()
    lines = copy.read_text().splitlines()
    copy.write_text("\n".join([lines[0].replace("Which", "What"), *lines[1:]]))
    done = CliRunner().invoke(main.app, ["replay", str(folder)])
    assert done.exit_code == 2 and "it was changed since this run" in done.stderr and len(list(out.iterdir())) == 1


def test_interrupted_leaves_nothing(made: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mechanome.circuits.finding.discovery.measured", stop)
    done = call(*asked(made))
    assert done.exit_code == 130 and not out.exists()
