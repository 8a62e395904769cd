"""Pictures: well-formed, escaped, and each with the numbers it draws."""

from __future__ import annotations

import math

import pytest
from markup import check

from mechanome.report import Bars, Contest, Dots, HeatMap, Lines, Meter, Series, Sheet, TokenStrip, Weights
from mechanome.report.rendering import share, visible

EVIL = "<script>alert('x')</script>\"&"
PICTURES = {
    "bars": Bars([("after", [EVIL, " a"], [0.9, 0.0001]), ("other", ["b"], [0.5])], {EVIL: "answer"}),
    "strip": TokenStrip([EVIL, " b", "\n"], [-1.5, None, 0.2], "logits", {1: EVIL}),
    "sheet": Sheet([("part", EVIL), ("share", "")], [(EVIL, Meter(-0.2)), ("b", Weights([EVIL], [0.4]))], [0]),
    "heat": HeatMap([EVIL, "b"], ["0", "1", "2"], [[0.5, -2.0, None], [0.0, 1.0, 0.1]], "layer", "token", [1]),
    "lines": Lines(
        ["embedding", "0"], [Series(EVIL, "answer", [-90.0, -0.1], [EVIL, "t"])], "layer", [EVIL, "b"], "top"
    ),
    "dots": Dots([Contest(EVIL, 1.2, [0.1, -0.3, 0.2], 0.5), Contest("keep", 0.2, [0.3, 0.1], 0.5)], "share"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_well_formed_and_escaped(name: str) -> None:
    picture = PICTURES[name]
    page = check(str(picture.html()))
    assert "script" not in page.tags, "a token became markup"
    assert EVIL in "".join(page.text) or name == "strip"
    table = picture.table()
    if table is not None:
        assert "script" not in check(table.html()).tags


def test_tables_hold_the_numbers() -> None:
    assert PICTURES["bars"].table().rows[0][1] == 0.9
    assert [row[2] for row in PICTURES["strip"].table().rows] == [-1.5, None, 0.2]
    assert PICTURES["heat"].table().rows[0][1:] == (50.0, -200.0, None)
    assert PICTURES["lines"].table().rows[0][1] == -90.0
    row = PICTURES["dots"].table().rows[0]
    assert row[1] == 120.0 and row[3] == -30.0 and row[7] == 20.0 and row[8] == 3


def test_sign_is_hue_and_size_is_opacity() -> None:
    html = str(PICTURES["heat"].html())
    assert html.count('class="heat against"') == 1 and html.count('class="heat none"') == 1
    assert 'class="heat against"' in html and "--a:1.000" in html and "--a:0.500" in html
    strip = str(PICTURES["strip"].html())
    assert "--a:1.000" in strip and "not measured" in strip


def test_lines_stay_inside_the_drawing() -> None:
    html = str(PICTURES["lines"].html())
    assert 'cy="214.0"' in html, "what is below the scale is drawn at its foot"
    assert "nan" not in html and "inf" not in html


def test_dots_of_extreme_shares_stay_inside() -> None:
    html = str(Dots([Contest("a", 9.0, [-4.0, 3.0], 0.5)], "share").html())
    places = [float(part.split('"')[0]) for part in html.split('cx="')[1:]]
    assert all(0 < x < 960 for x in places)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "50\u202f%"), (-0.001, "0\u202f%"), (-0.5, "\u221250\u202f%"), (None, ""), (1.25, "125\u202f%")],
)
def test_share(value: float | None, text: str) -> None:
    assert share(value) == text


@pytest.mark.parametrize(
    ("token", "seen"),
    [(" a", "\u00b7a"), ("  ", "\u00b7\u00b7"), ("\n", "\u21b5"), ("", "\u2205"), ("a b", "a b"), ("\t", "\u21e5")],
)
def test_blanks_are_visible(token: str, seen: str) -> None:
    assert visible(token) == seen


def test_a_scale_needs_no_luck() -> None:
    flat = TokenStrip(["a", "b"], [0.0, 0.0], "logits").html()
    assert "nan" not in str(flat) and math.isfinite(float(str(flat).split("--a:")[1].split('"')[0]))
