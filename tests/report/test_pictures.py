"""Pictures: well-formed, escaped, and each with the numbers it draws."""

from __future__ import annotations

import json
import math

import pytest
from markup import check

from mechanome.core import Table
from mechanome.report import (
    Bars,
    Choice,
    Contest,
    Dots,
    HeatMap,
    Lines,
    Meter,
    Option,
    Passage,
    Series,
    Sheet,
    Stack,
    TokenStrip,
    Weights,
)
from mechanome.report.charts import ticks
from mechanome.report.palette import COLORS, DARK, LIGHT, variables
from mechanome.report.rendering import share, visible

EVIL = "<script>alert('x')</script>\"&"
PICTURES = {
    "bars": Bars([("after", [EVIL, " a"], [0.9, 0.0001]), ("other", ["b"], [0.5])], {EVIL: "answer"}),
    "strip": TokenStrip([EVIL, " b", "\n"], [-1.5, None, 0.2], "logits", {1: EVIL}),
    "passage": Passage([EVIL, " b", "\n"], {1}, "own"),
    "sheet": Sheet([("part", EVIL), ("share", "")], [(EVIL, Meter(-0.2)), ("b", Weights([EVIL], [0.4]))], [0]),
    "heat": HeatMap([EVIL, "b"], ["0", "1", "2"], [[0.5, -2.0, None], [0.0, 1.0, 0.1]], "layer", "token", [1]),
    "lines": Lines(
        ["embedding", "0"], [Series(EVIL, "answer", [-90.0, -0.1], [EVIL, "t"])], "layer", [EVIL, "b"], "top"
    ),
    "dots": Dots([Contest(EVIL, 1.2, [0.1, -0.3, 0.2], 0.5), Contest("keep", 0.2, [0.3, 0.1], 0.5)], "share"),
}
PICTURES["choice"] = Choice(
    EVIL, [Option(EVIL, PICTURES["strip"], EVIL), Option("b", PICTURES["bars"])], Table(["token"], [[EVIL]])
)
PICTURES["stack"] = Stack([PICTURES["sheet"], PICTURES["choice"]])


@pytest.mark.parametrize("name", PICTURES)
def test_well_formed_and_escaped(name: str) -> None:
    picture = PICTURES[name]
    page = check(str(picture.html()))
    assert page.tags.count("script") == page.tags.count("noscript"), "only a chart holds data, a token is no markup"
    assert EVIL not in str(picture.html())
    if name in ("bars", "strip", "passage", "sheet"):
        assert EVIL in "".join(page.text) or name == "strip"
    table = picture.table()
    if table is not None:
        assert "script" not in check(table.html()).tags


def test_tables_hold_the_numbers() -> None:
    assert PICTURES["bars"].table().rows[0][1] == 0.9
    assert [row[2] for row in PICTURES["strip"].table().rows] == [-1.5, None, 0.2]
    assert [row[2] for row in PICTURES["passage"].table().rows] == ["", "*", ""]
    assert str(PICTURES["passage"].html()).count("piece own") == 1 and "<br>" in str(PICTURES["passage"].html())
    assert PICTURES["heat"].table().rows[0][1:] == (50.0, -200.0, None)
    assert PICTURES["lines"].table().rows[0][1] == -90.0
    row = PICTURES["dots"].table().rows[0]
    assert row[1] == 120.0 and row[3] == -30.0 and row[7] == 20.0 and row[8] == 3


def test_sign_is_hue_and_size_is_opacity() -> None:
    strip = str(PICTURES["strip"].html())
    assert "--a:1.000" in strip and "not measured" in strip
    assert strip.count('class="cell against"') == 1 and strip.count('class="cell none"') == 1


def test_a_choice_shows_its_first_option() -> None:
    html = str(PICTURES["choice"].html())
    assert html.count('type="radio"') == 2 and html.count(" checked") == 1
    first, second = html.split('<div class="choice-panel"')[1:]
    assert first.startswith(">") and second.startswith(" hidden>")
    assert PICTURES["stack"].table() == PICTURES["choice"].table() == Table(["token"], [[EVIL]])
    assert Stack([PICTURES["sheet"]]).table() is None


def test_a_sheet_may_have_more_numbers_than_it_shows() -> None:
    sheet = Sheet([("part", "")], [(Meter(2.0),)], numbers=Table(["part"], [[2.0]]))
    assert "width:100.0%" in str(sheet.html()) and sheet.table().rows == ((2.0,),)


def test_a_heat_map_draws_the_numbers_of_its_table() -> None:
    heat = PICTURES["heat"]
    gray, colored = heat.figure().data
    drawn = [row for row in colored.z if set(row) != {None} or row is colored.z[0]]
    assert [[None if v is None else 100 * v for v in row] for row in drawn] == [
        list(row[1:]) for row in heat.table().rows
    ]
    assert [list(row) for row in gray.z] == [[None, None, 1], [None] * 3, [None] * 3], "what was not measured is gray"
    assert (colored.zmin, colored.zmax) == (-1, 1) and list(colored.y) == [0, 1, 1.35, 2.35], "a break is a gap"
    assert colored.text[2][1] == "b, layer 1: 100.0\u202f%" and "not measured" in colored.text[0][2]
    assert colored.text[0][0].startswith("&lt;script&gt;alert"), "Plotly is not given markup"
    assert colored.colorscale[0][1] == LIGHT["against"] and colored.colorscale[2][1] == LIGHT["for"]


def test_lines_draw_the_numbers_of_their_table() -> None:
    lines = PICTURES["lines"]
    [line] = lines.figure().data
    assert list(line.y) == [-12, pytest.approx(-0.1 / math.log(10))], "what is below the scale is drawn at its foot"
    assert line.line.color == LIGHT["for"] and list(line.text)[1] == "t"
    assert lines.figure().layout.yaxis.ticktext[0] == "100\u202f%"
    assert lines.table().rows[1][1] == -0.1


def test_words_in_a_sheet_keep_room_beside_numbers() -> None:
    words, meter = "a remark of more than thirty characters", Meter(0.5)
    shown = str(Sheet([("part", ""), ("why", ""), ("share", "")], [("a", words, meter)]).html())
    assert f'<td class="words">{words}</td>' in shown and shown.count("words") == 1


def test_dots_draw_the_numbers_of_their_table() -> None:
    dots = PICTURES["dots"]
    random, needed, own = dots.figure().data[:3]
    assert list(random.x) == [0.1, -0.3, 0.2] and list(needed.x) == [0.5, 0.5] and list(own.x) == [1.2]
    assert own.marker.color == LIGHT["for"] and dots.figure().data[5].marker.color == LIGHT["against"]
    row = dots.table().rows[0]
    assert row[1] == 100 * own.x[0] and row[3] == 100 * min(random.x) and row[7] == 100 * max(random.x)


def test_dots_of_extreme_shares_stay_inside() -> None:
    figure = Dots([Contest("a", 9.0, [-4.0, 3.0], 0.5)], "share").figure()
    low, high = figure.layout.xaxis.range
    assert low < -4 and high > 9 and 2 < len(figure.layout.xaxis.tickvals) < 12


def test_a_chart_is_data_and_nothing_else() -> None:
    html = str(PICTURES["lines"].html())
    data = html.split('<script type="application/json">')[1].split("</script>")[0]
    assert (
        "<" not in data and json.loads(data)["data"][0]["text"][0] == "&lt;script&gt;alert('x')&lt;/script&gt;\"&amp;"
    )
    assert "http" not in html


def test_labels_that_do_not_fit_are_left_out() -> None:
    few = ticks(["embedding", "0", "1"], [0, 1, 2])
    assert few["ticktext"] == ["embedding", "0", "1"]
    many = ticks(["embedding", *map(str, range(40))], list(range(41)))
    assert many["ticktext"][:3] == ["embedding", "8", "11"] and many["tickvals"][1:3] == [9, 12]
    assert ticks([str(i) for i in range(12)], list(range(12)))["tickvals"] == list(range(12))
    assert ticks(["a" * 99], [0])["ticktext"] == ["a" * 99], "one is always shown"


def test_both_schemes_know_every_color() -> None:
    assert len(DARK) == len(COLORS), "two roles of one light color could not be told apart in the dark"
    assert variables().count("--for: ") == 2 and "--for-rgb: 12 116 110;" in variables()
    for picture in ("heat", "lines", "dots"):
        text = PICTURES[picture].figure().to_json()
        used = {f"#{part[:6]}" for part in text.split('"#')[1:]}
        assert used and used <= set(DARK)


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
