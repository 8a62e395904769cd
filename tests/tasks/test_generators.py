"""Every generator: enough distinct examples, the same for the same seed, sound controls, spans, splits and shots."""

from __future__ import annotations

import re

import pytest

from mechanome.core import silence
from mechanome.core.errors import BadInput, CorruptFile, TooFewRows, UnknownName
from mechanome.tasks import TASKS, make, words
from mechanome.tasks.words import parse_words

FEW = {"months": 96}
"""Generators that cannot give 200, and how many they give."""


@pytest.fixture(autouse=True)
def _quiet():
    with silence():
        yield


def texts(task):
    return [e.inputs for e in task]


def test_the_table_has_the_twelve_tasks():
    assert list(TASKS) == sorted(TASKS)
    assert set(TASKS) == {
        "antonyms", "arithmetic", "capitals", "greater_than", "induction", "ioi", "key_value", "months", "negation",
        "past_tense", "plurals", "subject_verb",
    }  # fmt: skip


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("name", TASKS)
def test_there_are_200_distinct_examples_or_a_reason(name, shots):
    task = make(name, shots=shots)
    assert len(task) == len(set(texts(task))) == FEW.get(name, 200)
    assert bool(TASKS[name].why_few) == (name in FEW)


@pytest.mark.parametrize("name", TASKS)
def test_seed_settles_everything_and_fewer_are_the_first_of_more(name):
    one, again, other = (make(name, 40, seed=s, shots=1) for s in (3, 3, 4))
    assert one == again
    assert texts(one) != texts(other)
    assert make(name, 10, seed=3, shots=1).examples == one.examples[:10]


@pytest.mark.parametrize("shots", [0, 2])
@pytest.mark.parametrize("name", TASKS)
def test_spans_are_words_and_answers_have_their_space(name, shots):
    for example in make(name, 60, shots=shots):
        for text, spans in ((example.inputs, example.spans), (example.counterfactual, example.counterfactual_spans)):
            assert spans
            for lo, hi in spans.values():
                assert re.fullmatch(r"[^\W_].*", text[lo:hi]) or text[lo:hi] in "+-"
                assert lo == 0 or not text[lo - 1].isalpha()
                assert hi == len(text) or not text[hi].isalpha()
        assert example.answer != example.foil
        for answer in (example.answer, example.foil):
            assert answer[0] == " " or (name == "greater_than" and answer.isdigit())
            assert answer.strip() and not answer.endswith(" ")
        assert not example.inputs.endswith((" ", "\n"))


# Facts that hold of each prompt and its answer, by which generators are checked without a model.
def table(name, reverse=False):
    rows = {(row[0], row[1]) for row in words(name).rows}
    return rows | {(b, a) for a, b in rows} if reverse else rows


def span(example, name, counterfactual=False):
    lo, hi = (example.counterfactual_spans if counterfactual else example.spans)[name]
    return (example.counterfactual if counterfactual else example.inputs)[lo:hi]


def both(example, *names):
    """(words of the prompt, answer) and (words of the counterfactual, foil)."""
    for counterfactual, answer in ((False, example.answer), (True, example.foil)):
        yield [span(example, name, counterfactual) for name in names], answer.strip()


def test_capitals_are_capitals_of_the_place_named():
    for example in make("capitals"):
        for (place,), capital in both(example, "place"):
            assert (place, capital) in table("capitals")


def test_antonyms_pair_up_both_ways():
    for example in make("antonyms", shots=0):
        for (word,), opposite in both(example, "word"):
            assert (word, opposite) in table("antonyms", reverse=True)
        assert span(example, "word") == example.foil.strip()


@pytest.mark.parametrize(("name", "shots"), [("plurals", 0), ("plurals", 2), ("past_tense", 0), ("past_tense", 2)])
def test_inflection_gives_the_other_form(name, shots):
    known = table("nouns" if name == "plurals" else "verbs", reverse=not shots)
    for example in make(name, shots=shots):
        for (word,), form in both(example, "word"):
            assert (word, form) in known


def test_months_follow_one_another():
    months = words("months").first
    for example in make("months"):
        step = 1 if example.groups["direction"] == "after" else -1
        for (month,), answer in both(example, "month"):
            assert months[(months.index(month) + step) % 12] == answer


def test_ioi_asks_for_the_one_who_does_not_give():
    orders = set()
    for example in make("ioi"):
        io, s1, s2 = (span(example, name) for name in ("io", "s1", "s2"))
        assert s1 == s2 != io and example.answer.strip() == io and example.foil.strip() == s1
        assert span(example, "s2", counterfactual=True) == io
        first = "ABBA" if example.spans["io"] < example.spans["s1"] else "BABA"
        assert example.groups["order"] == first
        orders.add(first)
    assert orders == {"ABBA", "BABA"}


def test_greater_than_orders_years_by_their_decade():
    for example in make("greater_than"):
        start, early = int(span(example, "start")), int(span(example, "start", counterfactual=True))
        answer, foil = int(example.answer), int(example.foil)
        assert foil // 10 < start // 10 < answer // 10
        assert early < foil
        assert len(example.answer) == len(example.foil) == 2


def test_arithmetic_is_right():
    for example in make("arithmetic", shots=0):
        for (a, b), result in both(example, "a", "b"):
            assert int(a) + int(b) * (1 if example.groups["operation"] == "plus" else -1) == int(result) >= 0
            assert "+" not in example.inputs or example.groups["operation"] == "plus"
        assert len(example.answer) == len(example.foil)


def test_agreement_has_attractors_of_the_other_number():
    singular, plural = ({row[i] for name in ("people", "things") for row in words(name).rows} for i in (0, 1))
    opposite = 0
    for example in make("subject_verb"):
        for (subject, attractor), verb in both(example, "subject", "attractor"):
            assert (subject in singular) == (verb in ("is", "was", "has"))
            assert (attractor in singular) != (attractor in plural)
        differs = (span(example, "subject") in singular) != (span(example, "attractor") in singular)
        assert example.groups["attractor"] == ("opposite" if differs else "same")
        assert example.label == ("singular" if span(example, "subject") in singular else "plural")
        opposite += differs
    assert 120 < opposite < 180


def test_induction_repeats_a_list_of_distinct_words():
    for example in make("induction"):
        for (earlier, then, current), answer in both(example, "earlier", "next", "current"):
            assert earlier == current and then == answer
        words_of = re.findall(r"\w+", example.inputs)
        assert words_of.count(example.answer.strip()) == 1 and example.foil.strip() not in words_of


def test_key_value_says_each_value_once_behind_its_key():
    for example in make("key_value"):
        assert span(example, "query") == span(example, "key")
        assert span(example, "value") == example.answer.strip()
        assert span(example, "query", counterfactual=True) == span(example, "other_key")
        assert span(example, "other_value", counterfactual=True) == example.foil.strip()
        assert example.spans["key"] < example.spans["value"] < example.spans["query"]


def test_negation_is_turned_around_by_one_word():
    classes = {row[:2]: row[2:] for row in words("classes").rows}
    for example in make("negation"):
        member, outsider = classes[example.groups["kind"], span(example, "class")]
        assert (example.answer, example.foil) == (f" {outsider}", f" {member}")
        assert example.inputs.replace(" is not ", " is also ") == example.counterfactual


@pytest.mark.parametrize("name", TASKS)
def test_splits_share_no_topic(name):
    task = make(name, seed=1)
    assert {e.split for e in task} == {"train", "validation", "test"}
    if name != "months":
        homes = {}
        for example in make(name, 100, seed=1).examples + make(name, 100, seed=2).examples:
            assert homes.setdefault(example.groups["topic"], example.split) == example.split
    only = make(name, 8, split="test")
    assert {e.split for e in only} == {"test"}
    assert len(make(name, 8, split="train")) == 8


@pytest.mark.parametrize("name", TASKS)
def test_shots_are_solved_examples_of_the_same_template(name):
    plain = {e.inputs: e for e in make(name, 60, shots=0)}
    solved = 0
    for example in make(name, 60, shots=3):
        joiner = TASKS[name].joiner
        *demonstrations, query = example.inputs.split(joiner) if joiner == "\n\n" else example.inputs.split("\n")[-4:]
        assert len(demonstrations) == 3 == len(set(demonstrations))
        assert query not in demonstrations and not any(d.startswith(query) for d in demonstrations)
        assert example.counterfactual.startswith(joiner.join(demonstrations) + joiner)
        topics = [example.groups["topic"]]
        if name in ("capitals", "plurals", "past_tense"):
            assert not any(re.search(rf"\b{topics[0]}\b", d) for d in demonstrations)
        solved += query in plain
    assert solved or name in ("capitals", "antonyms", "plurals", "past_tense")


def test_shots_show_right_answers():
    for example in make("capitals", 30, shots=3):
        for line in example.inputs.split("\n")[:-1]:
            known = [(p, c) for p, c in table("capitals") if p in line and line.rstrip(".").endswith(f" {c}")]
            assert known, line


def test_refusals_name_the_nearest():
    with pytest.raises(UnknownName, match="'capitals'"):
        make("capital")
    with pytest.raises(UnknownName, match="'test'"):
        make("ioi", split="tests")
    with pytest.raises(BadInput, match="n=0"):
        make("ioi", 0)
    with pytest.raises(BadInput, match="shots=-1"):
        make("ioi", shots=-1)
    with pytest.raises(TooFewRows, match=r"there are 96: there are twelve months"):
        make("months", 97)
    with pytest.raises(TooFewRows, match="word lists \\(capitals\\)"):
        make("capitals", 5000)


def test_why_there_are_few_is_said_unless_quiet(capsys):
    from mechanome.core.progress import _silent

    token = _silent.set(False)
    try:
        make("months")
        assert "twelve months" in " ".join(capsys.readouterr().err.split())
        make("months", quiet=True)
        assert not capsys.readouterr().err
    finally:
        _silent.reset(token)


def test_provenance_names_lists_and_licenses():
    p = make("ioi", 5, seed=7, split="train").provenance
    assert (p.source, p.seed, p.shots, p.split) == ("ioi", 7, 0, "train")
    assert [text.split()[0] for text in p.lists] == ["names", "places", "gifts"]
    assert all("Apache-2.0" in text for text in p.lists)


@pytest.mark.parametrize("name", sorted({w for g in TASKS.values() for w in g.lists}))
def test_word_lists_are_clean(name):
    found = words(name)
    assert found.source and found.license and len(found.rows) >= 12
    for row in found.rows:
        assert all(word == word.strip() and "  " not in word for word in row)
    if name in ("names", "nouns", "verbs", "people", "things", "events", "capitals"):
        assert len(found.first) == len(set(found.first))


HEADER = "# source: a\n# license: b\n# columns: one other\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (HEADER + "a\tb\nc\n", "line 5.*not 2 words"),
        (HEADER + "a\t\n", "line 4"),
        (HEADER + "a\tb\na\tb\n", "line 5.*repeats"),
        ("# source: a\n# columns: one\na\n", "license"),
    ],
)
def test_damaged_word_lists_are_refused(text, match):
    with pytest.raises(CorruptFile, match=match):
        parse_words("list", text)


def test_unknown_word_list():
    with pytest.raises(CorruptFile, match="not in the installed package"):
        words("nothing")
