"""The page and the terminal: every picture draws what was measured, and says what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

import mechanome as mn
from mechanome.core import Interval
from mechanome.explain import Explanation, document_tokens, story
from mechanome.explain.document import document
from mechanome.explain.document_tokens import agreement
from mechanome.explain.hiding import Hidden
from mechanome.explain.stability import Comparison, Effect, Stability
from mechanome.explain.terminal_tokens import TOP
from mechanome.explain.tokens import quoted
from mechanome.report import (
    Choice,
    HeatMap,
    Lines,
    Meter,
    Page,
    Passage,
    Section,
    Sheet,
    Stack,
    TokenStrip,
    number,
    text,
)


@pytest.fixture(scope="module")
def found() -> Explanation:
    writers = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    model = mn.load(tiny.build(writers, floor=0.5), tokenizer=tiny.tokenizer(), check="off")
    return mn.explain(tiny.SENTENCE, model, quiet=True)


def section(page: Page, title: str) -> Section:
    return next(s for s in page.sections if s.title.startswith(title))


def test_every_picture_has_its_table_its_method_and_its_limit(found: Explanation) -> None:
    for part in document(found).sections:
        assert part.picture.table() is not None, part.title
        assert part.method and part.limit and part.lead, part.title


def test_tokens_can_be_seen_by_every_measure(found: Explanation) -> None:
    picture = section(document(found), "Which tokens").picture
    assert isinstance(picture, Stack) and found.importance is not None and found.hidden is not None
    choice, sheet = picture.pictures
    assert isinstance(choice, Choice) and isinstance(sheet, Sheet)
    labels = [option.label for option in choice.options]
    assert labels == [
        "hidden from every later position", "hidden from the last position", "contribution", "norm-based", "attention",
    ]  # fmt: skip
    strips = [option.picture for option in choice.options]
    assert all(isinstance(strip, TokenStrip) and strip.tokens == found.question.tokens for strip in strips)
    lost = [-x for x in found.hidden.change.tolist()]
    assert strips[0].values == [*lost, None], "green is what the answer needs"
    assert strips[1].values == found.importance.masking.effects.tolist()
    assert strips[2].values == found.importance.measures[0].values.tolist()
    table = choice.table()
    assert table == picture.table() and [row[2] for row in table.rows] == [*lost, None]
    assert table.columns[2] == "hidden from every later position (logits of the preference lost)"
    assert [row[3] for row in table.rows] == found.importance.masking.effects.tolist()
    assert table.columns[3:] == found.importance.table().columns[2:]
    assert [row[0] for row in sheet.rows] == ["contribution", "norm-based", "attention"]
    assert all(isinstance(row[2], Passage) and "<s>" not in row[2].tokens for row in sheet.rows), "without the sink"


def test_without_measures_hiding_is_still_shown(found: Explanation) -> None:
    picture = section(document(replace(found, importance=None)), "Which tokens").picture
    assert isinstance(picture, Stack) and len(picture.pictures) == 1
    table = picture.table()
    assert table is not None and len(table.columns) == 3
    without = replace(found, importance=None, hidden=None)
    assert not any(s.title.startswith("Which tokens") for s in document(without).sections)


def test_heat_maps_and_lines_draw_what_was_measured(found: Explanation) -> None:
    page = document(found)
    travels, parts = section(page, "Where it travels").picture, section(page, "Which parts").picture
    assert isinstance(travels, HeatMap) and isinstance(parts, HeatMap)
    for p, row in enumerate(travels.values):
        assert row == found.flow.shares[:, p].tolist()
    heads, mlps = found.parts
    assert parts.values == [*heads.shares.T.tolist(), *mlps.shares.T.tolist()]
    assert parts.rows == ["head 0", "head 1", "head 2", "head 3", "MLP"] and parts.breaks == [4]
    lines = section(page, "Where in the layers").picture
    assert isinstance(lines, Lines) and found.lens is not None
    assert [s.values for s in lines.series] == [found.lens.answer.tolist(), found.lens.foil.tolist()]


def test_direct_writers_stand_beside_exact_effects(found: Explanation) -> None:
    part = section(document(found), "What writes")
    assert isinstance(part.picture, Sheet) and found.direct is not None
    first, writer = part.picture.rows[0], found.direct.writers[0]
    assert first[0] == writer.name and first[3] == Meter(writer.change / found.direct.gap)
    assert "direct effect only" in text(part.lead) and "Sum check" in text(part.finding)
    assert part.picture.table() == found.direct.table()


def comparison(found: Explanation, lost: float, name: str) -> Comparison:
    q = found.question
    sites = [part.site for part in found.components if not part.echo]
    effects = tuple(Effect(site, 0.5, 0.4) for site in sites)
    assert q.swap is not None
    return Comparison(name, q.swap, q.foil, 3.0, lost, 0.9, effects, tuple(sites[:1]), Interval(0.5, 0.2, 0.7, 9))


def test_stability_is_shown_as_measured(found: Explanation) -> None:
    both = Stability((comparison(found, 0.8, "the <script> ran"), comparison(found, 0.2, "the hen ran")))
    e = replace(tiny.verified(found), stability=both)
    page = document(e)
    part = section(page, "Is it the same")
    assert isinstance(part.picture, Sheet)
    assert [row[4] for row in part.picture.rows] == ["yes", "no"] and part.picture.rows[0][2] == Meter(0.8)
    assert text(part.finding).startswith("In 1 of 2 further counterfactuals the same parts carry the answer. On av")
    again = round(100 / sum(not part.echo for part in e.components))
    assert f"{again} % of them would be named there, too" in text(part.finding)
    table = part.picture.table()
    assert table is not None and table.rows[0][-3:] == (0.5, 0.2, 0.7)
    told = "\n".join(map(text, page.story))
    assert f"the same parts carry the answer in 1 of 2; on average {again} % of them would be named" in told
    assert "the <script> ran" not in page.html() and "the &lt;script&gt; ran" in page.html()
    said = [" ".join(line.split()) for line in str(e).splitlines()]
    assert "the <script> ran 80 % 90 % yes" in said and "the hen ran 20 % 90 % no" in said


def test_parts_that_did_not_pass_are_no_good_news_elsewhere(found: Explanation) -> None:
    both = Stability((comparison(found, 0.8, "a"), comparison(found, 0.9, "b")))
    e = replace(tiny.verified(found, share=0.2), stability=both)
    told = "\n".join(map(text, (*document(e).story, section(document(e), "Is it the same").finding)))
    assert "these parts, which did not pass the test, would reach its shares in 2 of 2" in told
    assert "above they did not pass it" in told and "the same parts carry" not in told
    assert not e.record()["stability"]["of_verified_parts"]


def test_neighbors_hidden_together_are_one_cell(found: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    q = found.question
    hidden = Hidden(((0, 1, 2), (3, 4)), torch.tensor([-2.0, 0.5]), torch.tensor([0.1, 0.2]))
    e = replace(found, hidden=hidden)
    part = section(document(e), "Which tokens")
    assert isinstance(part.picture, Stack) and isinstance(part.picture.pictures[0], Choice)
    choice = part.picture.pictures[0]
    strip = choice.options[0].picture
    assert isinstance(strip, TokenStrip)
    assert strip.tokens == ("".join(q.tokens[:3]), "".join(q.tokens[3:5]), q.tokens[5])
    assert strip.values == [2.0, -0.5, None] and strip.positions == ["0\u20132", "3\u20134", "5"]
    assert set(strip.marks) == {0 if p < 3 else 1 for p in q.differing} and "positions 0\u20132" in strip.html()
    assert "when no later token can look at these tokens together: one cell is 3 neighbors" in choice.options[0].note
    assert "one run per group of 3 neighbors" in text(part.method)
    rows = choice.table().records()
    assert [row["hidden together with"] for row in rows] == [*["0\u20132"] * 3, *["3\u20134"] * 2, ""]
    assert e.record()["hidden_together"] == 3 and found.record()["hidden_together"] == 1
    said = " ".join(str(e).split())
    assert "tokens hidden together positions later" in said and "0\u20132 2.00" in said
    assert "neighboring tokens, 3 at a time, are hidden from every later position" in said
    assert "one run per group" not in text(section(document(found), "Which tokens").method)
    assert "a few tokens say little" in text(part.finding)
    monkeypatch.setattr(document_tokens, "_FEW", 1)
    assert "a few tokens" not in text(section(document(e), "Which tokens").finding)


def test_story_table_and_strip_measure_the_same(found: Explanation) -> None:
    assert found.hidden is not None
    tokens = found.question.tokens
    order = [(change, p) for change, (p,) in found.hidden.ranked]
    assert [change for change, _ in order] == sorted(found.hidden.change.tolist())
    told = next(text(line) for line in document(found).story if "hidden from every later position" in text(line))
    first = tokens[order[0][1]]
    assert f": {first} (to {number(found.question.high + order[0][0], 1)})" in told
    page = [line.strip() for line in str(found).splitlines()]
    at = next(n for n, line in enumerate(page) if line.split()[:2] == ["token", "later"])
    for line, (change, p) in zip(page[at + 1 :], order[:TOP]):
        assert line.startswith(quoted(tokens[p]).strip()) and number(-change) in line
    assert f"The {TOP} of {len(order)} tokens" in " ".join(str(found).split()) or len(order) <= TOP


def test_a_page_leads_back_to_the_summary(found: Explanation) -> None:
    assert 'href="../report.html"' in found.html(back="../report.html") and 'class="back"' not in found.html()


def test_a_long_prompt_is_quoted_in_part(found: Explanation) -> None:
    assert story.excerpt("short", "other") == "short"
    text = "a" * 500 + "b" + "c" * 500
    middle = story.excerpt(text, "a" * 600)
    assert middle == "\u2026" + "a" * 120 + "b" + "c" * 119 + "\u2026"
    assert story.excerpt(text, text) == "\u2026" + "c" * 240 and story.excerpt(text) == "a" * 240 + "\u2026"
    q = found.question
    subject = replace(q.subject, prompt=replace(q.subject.prompt, text=text))
    page = document(replace(found, question=replace(q, subject=subject)))
    assert ("prompt", text) in page.facts and "counterfactual" not in dict(page.facts)
    assert len(page.html().split("<h1>")[1].split("</h1>")[0]) < 400


def test_where_stability_was_not_tested_it_says_so(found: Explanation) -> None:
    e = replace(found, stability=Stability(why_none="no swap was found"))
    page = document(e)
    assert not any(s.title.startswith("Is it the same") for s in page.sections)
    assert "stability was not tested: no swap was found" in "\n".join(map(text, page.measured))
    assert "stability was not tested: no swap was found" in str(e)
    one = replace(e, stability=Stability((comparison(found, 0.8, "it"),), "a long prompt"))
    assert "no more counterfactuals were compared: a long prompt" in "\n".join(map(text, document(one).measured))
    assert "no more counterfactuals were compared: a long prompt" in str(one)


def test_a_list_that_was_cut_says_so(found: Explanation) -> None:
    assert text(section(document(replace(found, cut=0)), "The parts named").finding) == ""
    cut = replace(found, cut=3)
    assert "The list of parts was cut: 3 more parts" in text(section(document(cut), "The parts named").finding)
    assert "the list of parts was cut: 3 more parts" in " ".join(str(cut).split())


def test_a_chat_is_shown_as_its_tokens(found: Explanation) -> None:
    q = found.question
    prompt = replace(q.subject.prompt, chat=({"role": "user", "content": q.prompt},), content=(2, 3))
    subject = replace(q.subject, prompt=prompt)
    e = replace(found, question=replace(q, subject=subject, shared=(q.foil,), shared_text="It is"))
    page = document(e)
    first = page.sections[0]
    assert first.picture == Passage(q.tokens, {2, 3}, "message") and first.title.startswith("The chat")
    assert text(page.title).startswith(f"{q.prompt} \u2192 It is ")
    assert "which answer and foil share" in text(section(page, "What the model says").lead)
    assert not any("answer and foil share" in text(s.lead) for s in document(found).sections)


def test_the_terminal_has_tokens_and_direct_shares(found: Explanation) -> None:
    assert found.importance is not None
    page = str(found)
    assert "later: hidden from every later position" in " ".join(page.split()) and "rank correlation" in page
    assert "attention times the length of what it passes on" in " ".join(page.split()) and "norm-based" in page
    assert "direct" in page and max(map(len, page.splitlines())) <= 100
    alone = str(replace(found, importance=None))
    assert "later" in alone and "norm-based" not in alone and "What hiding costs" in alone
    assert "What hiding costs" not in str(replace(found, importance=None, hidden=None))


def test_an_interval_in_words() -> None:
    assert agreement(Interval(0.5, -0.25, 0.75, 9)) == "0.50 [\u22120.25, 0.75]" and agreement(None) == ""
