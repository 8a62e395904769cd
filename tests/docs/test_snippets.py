"""Every Python snippet of the README and the guides runs, top to bottom, as a reader would type it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from registry_models import need

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md")])
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[tuple[int, str]]:
    """Line number and code of each snippet of a page."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(1)].count("\n"), m[1]) for m in SNIPPET.finditer(text)]


@pytest.mark.real_model
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_snippet_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = snippets(page)
    if any("smollm2" in code for _, code in found):
        need("smollm2-135m-instruct")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "snippet"}
    for line, code in found:
        # Padding with newlines makes tracebacks name the page's own line.
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), scope)


def test_there_is_something_to_run() -> None:
    assert sum(len(snippets(page)) for page in PAGES) > 20


def test_the_speed_table_is_that_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import benchmark_table

    text = benchmark_table.README.read_text(encoding="utf-8")
    assert benchmark_table.page(text) == text, "run make docs"


@pytest.mark.parametrize("page", [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], ids=lambda p: p.stem)
def test_links_between_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
