import pytest

from mechanome.core import ShapeMismatch, Table

TABLE = Table(["head", "effect"], [("5.h3", 0.123456), ("<b>", None)], title="Heads & effects")


def test_text_is_aligned_and_short():
    lines = TABLE.text().splitlines()
    assert lines[0] == "Heads & effects"
    assert [line.split() for line in lines if line.startswith(("5", "<"))] == [["5.h3", "0.1235"], ["<b>"]]
    assert len({len(line) for line in lines if "0.1235" in line or ("effect" in line and "head" in line)}) == 1
    assert str(TABLE) == TABLE.text()


def test_markup_in_cells_is_text():
    assert "[red]x[/red]" in Table(["a"], [["[red]x[/red]"]]).text()


def test_html_is_escaped_and_marks_numbers():
    html = TABLE.html()
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert "Heads &amp; effects" in html
    assert '<td class="number">0.1235</td>' in html
    assert TABLE._repr_html_() == html


def test_records_keep_the_numbers():
    assert TABLE.records() == [{"head": "5.h3", "effect": 0.123456}, {"head": "<b>", "effect": None}]
    assert Table.of(TABLE.records(), "Heads & effects") == TABLE
    assert Table.of([{"a": 1}, {"b": 2}]).rows == ((1, None), (None, 2))
    assert len(TABLE) == 2


def test_ragged_rows_are_refused():
    with pytest.raises(ShapeMismatch, match="row 1 has 1 cells for 2 columns"):
        Table(["a", "b"], [[1, 2], [3]])
