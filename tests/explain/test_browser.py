"""Three of the committed prompts end to end: explained on the real model, and their pages opened in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from browser import opened
from mechanome.explain.command import run_many
from mechanome.explain.items import items
from mechanome.explain.outcome import Outcome
from registry_models import need

PROMPTS = Path(__file__).parent / "prompts.jsonl"
OPENED = ("capital-given", "two-token-answer", "single-mark")
LINES = {line["id"]: line for line in map(json.loads, PROMPTS.read_text(encoding="utf-8").splitlines())}
MODEL = "smollm2-135m-instruct"


def asked(id: str) -> dict[str, object]:
    return {key: value for key, value in LINES[id].items() if key not in ("expect", "because")}


def test_the_committed_prompts_are_forty_and_valid() -> None:
    assert len(LINES) == 40 and {line["expect"] for line in LINES.values()} == {"report", "refusal"}
    assert all(line.get("because") for line in LINES.values() if line["expect"] == "refusal")
    assert [item.id for item in items([asked(id) for id in LINES])] == list(LINES)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    need(MODEL)
    out = tmp_path_factory.mktemp("runs")
    return run_many([asked(id) for id in OPENED], model=MODEL, counterfactuals=1, out=out, quiet=True)


@pytest.mark.real_model
def test_each_is_what_is_expected(outcome: Outcome) -> None:
    for result in outcome.found:
        line = LINES[result.item.id]
        assert (result.verdict == "refused") is (line["expect"] == "refusal"), result.reason
        assert line.get("because", "") in result.reason
        assert bool(result.page) is (line["expect"] == "report")


@pytest.mark.parametrize("leak", ['<img src="http://example.invalid/x.png">', "<script>console.error('x')</script>"])
def test_a_page_that_leaks_would_be_noticed(leak: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<html><body>{leak}</body></html>")
    with pytest.raises(AssertionError, match=r"example\.invalid|CONSOLE"):
        opened(page, tmp_path / "profile")


@pytest.mark.real_model
def test_the_pages_open_offline_and_show_what_was_found(outcome: Outcome, tmp_path: Path) -> None:
    summary = opened(outcome.report, tmp_path / "summary")
    for n, result in enumerate(outcome.found):
        assert result.item.id in summary and result.verdict in summary
        if not result.page:
            assert "no token has an alternative" in summary
            continue
        assert f'href="{result.page}"' in summary
        page = opened(outcome.folder / result.page, tmp_path / f"page{n}")
        record = json.loads((outcome.folder / "explanations" / f"{n + 1}.json").read_text(encoding="utf-8"))
        assert record["verdict"].capitalize() in page and record["model"]["sha256"] in page
        for token in record["question"]["tokens"][1:]:
            assert token.strip() in page
        assert "How this was measured" in page and "What this does not show" in page
