"""Mistakes that need no model are answered, and shells completed, without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
for heavy in ("torch", "transformers"):
    sys.modules[heavy] = None  # importing it fails
from mechanome.cli.main import main
main(sys.argv[1:])
"""


def call(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd, env=settings)


MISTAKES = {
    "replay of nothing": (["replay", "nosuch"], "nosuch: no such file"),
    "replay of another file": (["replay", "prompts.jsonl"], "prompts.jsonl: not YAML"),
    "resuming nothing": (["explain", "--resume", "nosuch"], "nosuch: no such file"),
    "no such model": (["explain", "x", "--model", "smollm2"], "did you mean 'smollm2-135m-instruct'"),
    "name of a hub model": (["explain", "x", "--model", "gpt2"], "on the hub it would be 'openai-community/gpt2'"),
    "no language model": (["explain", "x", "--model", "whisper-base"], "it is no language model"),
    "against nothing": (["explain", "x", "--against", "nosuch"], "model 'nosuch'"),
    "no such prompts": (["explain", "--prompts", "nosuch.jsonl"], "nosuch.jsonl: no such file"),
    "a line that is none": (["explain", "--prompts", "prompts.jsonl"], "prompts.jsonl, line 2"),
    "no counterfactual": (["explain", "x", "--counterfactuals", "0"], "greater than or equal to 1"),
    "seed below 0": (["explain", "x", "--seed", "-1"], "greater than or equal to 0"),
    "no such study": (["study", "contribution-weight"], "did you mean 'contribution-weights'"),
    "no such tier": (["study", "contribution-weights", "--tier", "huge"], "'smoke', 'cpu', 'full'"),
    "sites of no model": (["sites", "nosuch"], "model 'nosuch'"),
    "no such task": (["circuit", "io"], "did you mean 'ioi'"),
    "no such file of pairs": (["circuit", "pairs.jsonl"], "pairs.jsonl: no such file"),
    "no such method": (["circuit", "ioi", "--method", "eap_ig"], "'eap-ig'"),
    "no shares": (["circuit", "ioi", "--sizes", "ten"], "no list of shares"),
    "circuit of no model": (["circuit", "ioi", "--model", "nosuch"], "model 'nosuch'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x"}\n{"text": "y"}\n')
    arguments, said = MISTAKES[name]
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert done.stdout == "" and [file.name for file in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_models_are_listed_at_once(tmp_path: Path) -> None:
    done = call("models", cwd=tmp_path)
    assert done.returncode == 0 and "smollm2-135m-instruct" in done.stdout


COMPLETED = {
    "study": (["study", "con"], "contribution-weights"),
    "tier": (["study", "list", "--tier", "c"], "cpu"),
    "model": (["explain", "--model", "smol"], "smollm2-135m-instruct"),
    "model of sites": (["sites", "anti"], "antiberty"),
    "command": (["repl"], "replay"),
    "task": (["circuit", "greater"], "greater_than"),
    "method": (["circuit", "--method", "clean"], "clean-corrupted"),
}


@pytest.mark.parametrize("name", COMPLETED)
def test_a_shell_is_completed(name: str, tmp_path: Path) -> None:
    words, expected = COMPLETED[name]
    asked = {"COMP_WORDS": " ".join(["mechanome", *words]), "COMP_CWORD": str(len(words))}
    done = call(cwd=tmp_path, _MECHANOME_COMPLETE="complete_bash", **asked)
    assert done.stdout.split() == [expected], done.stderr
    assert "--install-completion" in call("--help", cwd=tmp_path).stdout
