"""The frame: one file, complete, closed to the network, and safe with any text."""

from __future__ import annotations

import base64
import html as escaping
import re
import zlib
from pathlib import Path

from markup import check

from browser import opened
from mechanome.core import Table
from mechanome.report import (
    Bars,
    Choice,
    Contest,
    Dots,
    HeatMap,
    Lines,
    Option,
    Page,
    Picture,
    Section,
    Series,
    Span,
    text,
)
from mechanome.report.charts import packed_plotly

EVIL = "</title></style><script>document.title='broken'</script>"


CHARTS = (
    HeatMap([EVIL, "b"], ["0", "1"], [[0.5, None], [-1.0, 0.0]], "layer", "token", [1]),
    Lines(["embedding", "0"], [Series(EVIL, "answer", [-9.0, -0.1], [EVIL, "t"])], "layer", [EVIL, "b"], "top"),
    Dots([Contest(EVIL, 1.2, [0.1, -0.3, 0.2], 0.5)], "share"),
)


def page(*pictures: Picture) -> Page:
    return Page(
        name=EVIL,
        kicker=EVIL,
        title=(EVIL, Span(EVIL, "answer")),
        subtitle=(Span(EVIL, "dim"),),
        verdict=("Explained", True, (EVIL,)),
        story=((EVIL, Span(EVIL, "token")), ("second",)),
        sections=tuple(
            Section(EVIL, (EVIL,), picture, (EVIL,), (EVIL,), (EVIL,))
            for picture in (Bars([(EVIL, [EVIL], [1.0])]), *pictures)
        ),
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
    assert len(html) < 60_000, "style and script are small, and a page without a chart needs no more"


def test_charts_bring_their_script_once() -> None:
    html = page(*CHARTS).html()
    read = check(html)
    assert read.tags.count("script") == 1 + len(CHARTS) + 3, "tips; data; colors, Plotly and what draws"
    assert html.count(packed_plotly()) == 1 and 1_500_000 < len(packed_plotly()) < 2_500_000
    unpacked = zlib.decompress(base64.b64decode(packed_plotly())).decode()
    assert unpacked.startswith("/**\n* plotly.js v") and "MIT license" in unpacked
    assert "http" not in html.replace(packed_plotly(), "").replace("http-equiv", ""), "no address of the outer world"
    assert "Plotly.js (MIT license" in html and "Plotly" not in page().html()
    policy = html.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def test_every_text_is_escaped() -> None:
    html = page().html()
    assert EVIL not in html
    assert html.count(escaping.escape(EVIL, quote=False).replace("'", "&#39;")) >= 14


def test_a_notebook_gets_a_frame() -> None:
    framed = page().framed()
    assert framed.startswith("<iframe srcdoc=") and "<script>" not in framed and "</iframe>" in framed
    assert "document.title" in framed


def test_a_line_is_its_text() -> None:
    assert text(("a ", Span("b", "answer"), " c")) == "a b c"


def test_in_a_browser(tmp_path: Path) -> None:
    """No console message, no request, charts are drawn, and the hostile texts run nothing and are shown as they are."""
    file = tmp_path / "report.html"
    file.write_text(page(*CHARTS).html(), encoding="utf-8")
    seen = opened(file, tmp_path / "profile")
    assert "How this was measured" in seen
    assert "<title>broken" not in seen and seen.count("<script>document.title") == 0
    assert seen.count('class="main-svg"') >= len(CHARTS), "every chart is drawn"
    label = escaping.escape(EVIL[:15]) + "\u2026"
    assert re.search(f"<text[^>]*>{re.escape(label)}</text>", seen), "the label of an axis is shown as it is"


def test_a_frame_draws_too(tmp_path: Path) -> None:
    """As a notebook shows it: the page as the source of a frame."""
    file = tmp_path / "notebook.html"
    count = """<script>setTimeout(function () {
      var inside = document.querySelector("iframe").contentDocument;
      document.title = "drawn " + inside.querySelectorAll(".js-plotly-plot").length;
    }, 5000)</script>"""
    framed = page(*CHARTS).framed()
    file.write_text(f"<!DOCTYPE html><html><body>{framed}{count}</body></html>", encoding="utf-8")
    assert f"<title>drawn {len(CHARTS)}</title>" in opened(file, tmp_path / "profile")


def test_a_choice_is_made_in_a_browser(tmp_path: Path) -> None:
    choice = Choice("measure", [Option(n, Bars([(n, [n], [1.0])])) for n in ("one", "two")], Table(["a"], [[1]]))
    click = "<script>document.querySelectorAll('[type=radio]')[1].click()</script></body>"
    file = tmp_path / "report.html"
    file.write_text(str(page(choice).html()).replace("</body>", click), encoding="utf-8")
    first, second = opened(file, tmp_path / "profile").split('<div class="choice-panel"')[1:]
    assert first.startswith(" hidden") and second.startswith(">")
