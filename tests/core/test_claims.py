import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanome.core import (
    BadInput,
    Claim,
    CorruptFile,
    Finding,
    Interval,
    NotFinite,
    Threshold,
    UnknownName,
    Verdict,
    findings_table,
    judge,
    read_json,
    write_json,
)

CLAIM = Claim("sparse", "the sparse circuit keeps the logit difference (share)", ">= 0.8")


@pytest.mark.parametrize(
    ("threshold", "lo", "hi", "verdict"),
    [
        (">= 0.8", 0.8, 0.9, "holds"),
        ("> 0.8", 0.8, 0.9, "inconclusive"),
        (">= 0.8", 0.7, 0.8, "inconclusive"),
        ("> 0.8", 0.7, 0.8, "fails"),
        (">= 0.8", 0.7, 0.79, "fails"),
        ("<= 0", -2, 0, "holds"),
        ("< 0", -2, 0, "inconclusive"),
        ("< 0", 0, 2, "fails"),
        ("<= 0", 1, 2, "fails"),
        ("in [-1, 1]", -1, 1, "holds"),
        ("in [-1, 1]", -2, 1, "inconclusive"),
        ("in [-1, 1]", -3, 3, "inconclusive"),
        ("in [-1, 1]", -3, -2, "fails"),
        ("in [-1, 1]", 1.5, 2, "fails"),
    ],
)
def test_the_whole_interval_decides(threshold, lo, hi, verdict):
    assert judge(Claim("c", "s", threshold), Interval((lo + hi) / 2, lo, hi, 5)).verdict == verdict


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.sampled_from([">=", ">", "<=", "<", "in"]))
def test_threshold_text_round_trip(value, width, sign):
    text = f"in [{value!r}, {value + width!r}]" if sign == "in" else f"{sign} {value!r}"
    threshold = Threshold.parse(text)
    assert Threshold.parse(str(threshold)) == threshold


def test_threshold_is_printed_as_written():
    for text in (">= 0.8", "> 2", "<= 1e-05", "< -3.5", "in [-0.1, 0.1]"):
        assert str(Threshold.parse(text)) == text


@pytest.mark.parametrize("text", ["0.8", "=> 0.8", ">= x", "in [2, 1]", "in (0, 1)", ">= 0.8 or so", ">= nan", ""])
def test_malformed_thresholds_are_refused(text):
    with pytest.raises(BadInput, match="not a comparison"):
        Threshold.parse(text)


def test_smoke_is_never_judged_but_measured():
    finding = judge(CLAIM, Interval(0.9, 0.85, 0.95, 5), tier="smoke")
    assert finding.verdict is Verdict.NOT_JUDGED
    assert finding.effect == 0.9


def test_unmeasured_claims_need_a_reason():
    with pytest.raises(BadInput, match="why"):
        judge(CLAIM, None)
    finding = judge(CLAIM, None, note="needs the paper's 9B model")
    assert (finding.verdict, finding.effect, finding.n) == ("not-judged", None, 0)


def test_an_interval_without_width_is_remarked():
    assert "no width" in judge(CLAIM, Interval(1.0, 1.0, 1.0, 4), note="seeds").note
    assert judge(CLAIM, Interval(0.9, 0.85, 0.95, 5), note="seeds").note == "seeds"


def test_refusals():
    with pytest.raises(NotFinite):
        judge(CLAIM, Interval(math.nan, 0.0, 1.0, 3))
    with pytest.raises(NotFinite):
        judge(CLAIM, Interval(1.0, 0.0, math.inf, 3))
    with pytest.raises(UnknownName, match="did you mean 'full'"):
        judge(CLAIM, Interval(0.9, 0.85, 0.95, 5), tier="ful")


def test_record_has_exactly_the_fields_of_a_results_row(tmp_path):
    findings = [judge(CLAIM, Interval(0.9, 0.85, 0.95, 5)), judge(CLAIM, None, note="not here")]
    keys = ["id", "statement", "effect", "lo", "hi", "n", "threshold", "verdict", "note"]
    assert list(findings[0].record()) == keys
    write_json(tmp_path / "rows.json", [finding.record() for finding in findings])
    assert [Finding.from_record(row) for row in read_json(tmp_path / "rows.json")] == findings
    for key in keys:
        with pytest.raises(CorruptFile):
            Finding.from_record({k: v for k, v in findings[0].record().items() if k != key})
    with pytest.raises(CorruptFile):
        Finding.from_record(findings[0].record() | {"verdict": "perhaps"})
    assert "inconclusive" not in findings_table(findings).text()
    assert "holds" in findings_table(findings).text(200)
