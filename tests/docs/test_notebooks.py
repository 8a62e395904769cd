"""Every notebook runs, cell by cell, as a reader would run it; no outputs are kept in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from registry_models import need

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    """The code cells of a notebook, in order."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.real_model
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = ["".join(cell["source"]) for cell in cells(notebook)]
    if any("smollm2" in source for source in code):
        need("smollm2-135m-instruct")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "notebook"}
    for number, source in enumerate(code):
        exec(compile(source, f"{notebook.name}, code cell {number}", "exec"), scope)
    assert scope["e"].verdict == "explained"  # type: ignore[attr-defined]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_no_outputs_are_kept(notebook: Path) -> None:
    assert cells(notebook)
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))
