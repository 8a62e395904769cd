"""The frame: one file, complete, closed to the network, and safe with any text."""

from __future__ import annotations

import html as escaping
import shutil
import subprocess
from pathlib import Path

import pytest
from markup import check

from mechanome.report import Bars, Page, Section, Span, text

EVIL = "</title></style><script>document.title='broken'</script>"


def page() -> Page:
    return Page(
        name=EVIL,
        kicker=EVIL,
        title=(EVIL, Span(EVIL, "answer")),
        subtitle=(Span(EVIL, "dim"),),
        verdict=("Explained", True, (EVIL,)),
        story=((EVIL, Span(EVIL, "token")), ("second",)),
        sections=(Section(EVIL, (EVIL,), Bars([(EVIL, [EVIL], [1.0])]), (EVIL,)),),
        measured=((EVIL,),),
        limits=((EVIL,),),
        facts=((EVIL, EVIL),),
        command=EVIL,
    )


def test_the_page_is_one_closed_file() -> None:
    html = page().html()
    assert html.startswith("<!DOCTYPE html>")
    read = check(html)
    assert read.tags.count("script") == 1 and read.tags.count("style") == 1 and read.tags.count("title") == 1
    assert "default-src 'none'" in html
    for part in ("How this was measured", "What this does not show", "The numbers", "Explained"):
        assert part in html
    assert len(html) < 60_000, "style and script are small"


def test_every_text_is_escaped() -> None:
    html = page().html()
    assert EVIL not in html
    assert html.count(escaping.escape(EVIL, quote=False).replace("'", "&#39;")) >= 12


def test_a_notebook_gets_a_frame() -> None:
    framed = page().framed()
    assert framed.startswith("<iframe srcdoc=") and "<script>" not in framed and "</iframe>" in framed
    assert "document.title" in framed


def test_a_line_is_its_text() -> None:
    assert text(("a ", Span("b", "answer"), " c")) == "a b c"


def test_in_a_browser(tmp_path: Path) -> None:
    """No console message, no request, and the hostile texts run nothing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    file = tmp_path / "report.html"
    file.write_text(page().html(), encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    assert "How this was measured" in done.stdout
    assert "<title>broken" not in done.stdout
