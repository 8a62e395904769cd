"""`docs/studies.md` says what `results/studies` says, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import known
import pytest

from mechanome.core import CorruptFile
from mechanome.studies import STUDIES, read_record, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import studies_table

    return studies_table


def test_the_page_is_that_of_the_results(script: ModuleType) -> None:
    assert script.page() == script.PAGE.read_text(encoding="utf-8"), "run make docs"


def test_every_record_is_of_a_study_as_it_stands() -> None:
    for path in (ROOT / "results" / "studies").glob("*.json"):
        record = read_record(path)
        study = STUDIES[record["study"]]
        claimed = [(c.id, c.statement, str(c.threshold)) for c in study.claims]
        assert [(row["id"], row["statement"], row["threshold"]) for row in record["claims"]] == claimed
        assert record["tier"] != "smoke" and set(record["seeds"]) <= set(study.seeds)


def test_a_record_becomes_a_row_a_section_and_nothing_breaks_the_table(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = known.study(title="Bars | and more", beside={"spread": "spread of the draws"}, method=("Drawn at random.",))
    found = run(study, out=tmp_path / "runs", record=tmp_path, quiet=True).found
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script, "STUDIES", {study.name: study})
    page = script.page()
    row = "| 99 | [known-answer](#known-answer) |  | 1 holds, 1 fails, 1 inconclusive, 1 not-judged"
    spread = f"spread of the draws: {found.reported[0].interval.estimate:.4g} ["
    assert f"{row}; {spread}" in page and "- Drawn at random." in page
    assert "| mean of the draws |" in page and "| it is 1 by construction |" in page
    assert "| their standard deviation |" in page and "60 draws" in page
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(CorruptFile):
        script.page()
