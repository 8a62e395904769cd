"""What is wrong with a prompt or a budget is answered without importing torch."""

from __future__ import annotations

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

MISTAKES = {
    "empty": ([""], "the prompt: it is empty"),
    "empty counterfactual": (["x", "--counterfactual", ""], "the counterfactual: it is empty"),
    "budget": (["x", "--budget", "plenty"], "budget 'plenty': it is not a size"),
    "no budget": (["--prompts", "prompts.txt", "--budget", "0"], "not a positive number of bytes"),
    "paraphrases": (["x", "--paraphrases", "nosuch.txt"], "nosuch.txt: no such file"),
    "certificate": (["x", "--certify"], "a certificate from 1 prompt"),
    "certificate of no circuit": (["x", "--certify", "--no-circuit"], "it is about the circuit"),
    "a line of paraphrases": (["x", "--paraphrases", "others.jsonl"], "others.jsonl, line 1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("x\n")
    (tmp_path / "others.jsonl").write_text('{"text": "x"}\n')
    arguments, said = MISTAKES[name]
    command = [sys.executable, "-c", CODE, "explain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr
    assert done.stdout == "" and len(list(tmp_path.iterdir())) == 2
