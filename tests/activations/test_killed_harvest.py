"""A harvest that is killed at any point and started again leaves the bytes of one that never was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mechanome.activations import ActivationStore


def test_killed_at_random_and_resumed_is_bit_equal(tmp_path):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *sys.path])
    program = [sys.executable, str(here / "killed_harvest.py"), str(tmp_path), str(os.getpid())]
    found = subprocess.run(program, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) >= 1
    every = [_content(tmp_path / name) for name in ("whole", *(f"killed{k}" for k in range(4)))]
    assert len(every[0]) > 8 and all(content == every[0] for content in every[1:])
    ActivationStore.open(next((tmp_path / "killed0").glob("*/store.json")).parent).verify()


def _content(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
