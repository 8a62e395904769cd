"""Lens, token importance beside masking, direct writers beside exact effects: the numbers are those of the packages."""

from __future__ import annotations

import pytest
import tiny
import torch

import families
import mechanome as mn
from mechanome.attribution import direct_logit_attribution, logit_lens
from mechanome.core import NotServed
from mechanome.explain import Explanation
from mechanome.explain.direct import direct
from mechanome.explain.importance import NAMES, importance
from mechanome.explain.question import Question, ask
from mechanome.heads import agreement, mask_tokens, token_importance


@pytest.fixture(scope="module")
def busy() -> mn.Model:
    """A model in which every head writes."""
    writers = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    return mn.load(tiny.build(writers, floor=0.5), tokenizer=tiny.tokenizer(), check="off")


@pytest.fixture(scope="module")
def found(busy: mn.Model) -> Explanation:
    return mn.explain(tiny.SENTENCE, busy, quiet=True)


@pytest.fixture(scope="module")
def question(found: Explanation) -> Question:
    return found.question


def test_hiding_is_from_the_last_position_alone(busy: mn.Model, question: Question) -> None:
    measured = importance(busy, question)
    for p in range(question.length):
        alone = mask_tokens(busy, question.clean, [[p]], question.answer.id)
        assert float(measured.masking.effects[p]) == pytest.approx(float(alone.drops[0]), abs=1e-5)
    assert measured.masking.hidden_from == "last" and measured.tokens == question.tokens


def test_measures_are_those_of_heads_with_their_agreement(busy: mn.Model, question: Question) -> None:
    measured = importance(busy, question)
    assert [m.name for m in measured.measures] == list(NAMES) == ["contribution_layer", "norm", "attention"]
    for measure in measured.measures:
        values = token_importance(busy, question.clean, measure.name)[measure.name].values
        torch.testing.assert_close(measure.values, values)
        expected = agreement([values], [measured.masking.effects.abs()])
        assert measure.agreement == expected and not measure.undefined
    assert float(measured.measures[0].values.sum()) == pytest.approx(1, abs=1e-4), "contributions are shares"
    assert float(measured.measures[2].values.sum()) == pytest.approx(1, abs=1e-4), "attention, too"


def test_the_table_holds_every_token_and_the_top_leaves_out_the_sink(busy: mn.Model, question: Question) -> None:
    measured = importance(busy, question)
    table = measured.table()
    assert [row[0] for row in table.rows] == list(range(question.length))
    assert table.columns[3:] == ("contribution", "norm-based", "attention")
    assert [row[2] for row in table.rows] == measured.masking.effects.tolist()
    top = measured.top(2)
    rest = [abs(row[2]) for row in table.rows[1:]]
    assert 0 not in top and abs(table.rows[top[0]][2]) == max(rest) and len(top) == 2


def test_a_short_prompt_has_no_agreement_and_says_why(busy: mn.Model) -> None:
    q = ask(busy, "the cat sat", None, None, None)
    short = importance(busy, q)
    assert q.length < 5 and all(m.agreement is None and m.undefined for m in short.measures)
    assert short.record()["measures"][0]["agreement"] is None


def test_what_cannot_be_measured_is_left_out_with_its_reason() -> None:
    model = mn.load(families.build("jamba"), tokenizer=tiny.tokenizer(), check="off")
    q = ask(model, tiny.SENTENCE, None, None, None)
    with pytest.raises(NotServed):
        importance(model, q)
    e = mn.explain(tiny.SENTENCE, model, quiet=True)
    assert e.importance is None and any(note.startswith("token importance left out: ") for note in e.left_out)
    assert e.record()["importance"] is None and "Which tokens it depends on" not in e.html()


def test_direct_writers_are_the_attribution_of_both_prompts(busy: mn.Model, found: Explanation) -> None:
    q, written = found.question, found.direct
    assert written is not None
    sides = [direct_logit_attribution(busy, row, q.answer.id, q.foil.id) for row in (q.clean, q.corrupted)]
    expected = {part: (float(a), float(b)) for part, a, b in zip(sides[0].parts, *(s.shares[0] for s in sides))}
    assert {w.part for w in written.writers} == set(expected)
    for writer in written.writers:
        assert (writer.prompt, writer.counterfactual) == pytest.approx(expected[writer.part], abs=1e-5)
    assert written.total == pytest.approx((q.high, q.low), abs=1e-4)
    assert sum(w.prompt for w in written.writers) == pytest.approx(q.high, abs=1e-4)
    assert sum(w.change for w in written.writers) == pytest.approx(q.gap, abs=1e-4) and written.error < 1e-4
    sizes = [abs(w.change) for w in written.writers]
    assert sizes == sorted(sizes, reverse=True)


def test_beside_each_writer_stands_its_exact_effect(found: Explanation) -> None:
    assert found.direct is not None
    exact = {w.part: w.restores for w in found.direct.writers}
    heads, mlps = found.parts
    assert exact["z.1.h3"] == pytest.approx(float(heads.shares[1, 3]))
    assert exact["mlp_out.2"] == pytest.approx(float(mlps.shares[2, 0]))
    assert exact["embedding"] is None and exact["constant"] is None
    names = {w.part: w.name for w in found.direct.writers}
    assert names["z.1.h3"] == "head 1.3" and names["mlp_out.2"] == "MLP 2" and names["bias.0"] == "attention bias 0"
    *rows, total = found.direct.table().rows
    assert total[0] == "sum" and total[1] == pytest.approx(sum(row[1] for row in rows)) and total[3] == pytest.approx(1)


def test_the_only_writer_writes_directly(busy: mn.Model) -> None:
    """In a model where one head writes, nothing reads it before the end: its direct effect is its whole effect."""
    e = mn.explain(tiny.SENTENCE, tiny.lonely(), quiet=True)
    assert e.direct is not None and e.direct.writers[0].part == "z.1.h3"
    others = [w for w in e.direct.writers if w.part not in ("z.1.h3", "embedding")]
    assert all(abs(w.prompt) < 1e-6 for w in others), "nothing else writes"


def test_a_stream_that_is_no_sum_is_left_out(
    busy: mn.Model, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotServed("direct attribution", "its stream is normalized after each part", "use patching")

    monkeypatch.setattr("mechanome.explain.direct.direct_logit_attribution", refuse)
    with pytest.raises(NotServed):
        direct(busy, question, [])
    e = mn.explain(tiny.SENTENCE, busy, quiet=True)
    assert e.direct is None and "direct attribution left out: its stream is normalized" in " ".join(e.left_out)
    assert "What writes the answer directly" not in e.html()


def test_the_lens_is_the_packages_lens_asked_about_answer_and_foil(busy: mn.Model, found: Explanation) -> None:
    read, reading, q = logit_lens(busy, found.question.clean), found.lens, found.question
    assert reading is not None and reading.layers == ("embedding", "0", "1", "2")
    for token, values, ranks in (
        (q.answer, reading.answer, reading.answer_rank),
        (q.foil, reading.foil, reading.foil_rank),
    ):
        torch.testing.assert_close(values, read.logits[:, 0].log_softmax(-1)[:, token.id])
        assert list(ranks) == [int((row > row[token.id]).sum()) + 1 for row in read.logits[:, 0]]
    assert reading.answer_rank != reading.foil_rank
    assert [t.id for t in reading.top] == read.logits[:, 0].argmax(-1).tolist()
