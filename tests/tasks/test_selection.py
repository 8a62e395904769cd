"""Filters, alignment and batches, on a model whose log-probabilities are written in a table."""

from __future__ import annotations

import math

import pytest
import torch
from bigram_model import WORDS, bigram, logprob

from mechanome.core.errors import BadInput, NotServed, ShapeMismatch, TooFewRows, UnknownName
from mechanome.engine import LogitDiff, activation_patching
from mechanome.tasks import Example, Task
from mechanome.tasks.selection import ELSE, NO_ANSWER, NO_COUNTERFACTUAL, OTHER_LENGTH, UNDECIDABLE, WRONG


@pytest.fixture(scope="module")
def model():
    return bigram()


def example(place, answer, foil, other=None, **more):
    other = None if other is None else f"Capital: of{other}"
    return Example(f"Capital: of{place}", answer=answer, foil=foil, counterfactual=other, **more)


CAPITALS = Task(
    "capitals",
    (
        example(" France", " Paris", " Rome", " Italy", groups={"kind": "right"}),
        example(" Italy", " Rome", " Paris", " France", groups={"kind": "right"}),
        example(" Spain", " Madrid", " Rome", " Italy", groups={"kind": "wrong"}),
        example(" USA", " New York", " New Delhi", " France", groups={"kind": "right"}),
        example(" USA", " New York", " Cape Town", " Italy", groups={"kind": "wrong"}),
    ),
)


def test_filter_keeps_what_is_right_and_measures_margins_over_all_tokens(model, capsys):
    found = CAPITALS.filter(model)
    margins = [
        logprob(" France", " Paris") - logprob(" France", " Rome"),
        logprob(" Italy", " Rome") - logprob(" Italy", " Paris"),
        logprob(" Spain", " Madrid") - logprob(" Spain", " Rome"),
        logprob(" USA", " New", " York") - logprob(" USA", " New", " Delhi"),
        logprob(" USA", " New", " York") - logprob(" USA", " Cape", " Town"),
    ]
    assert margins[0] == pytest.approx(4) and margins[3] == pytest.approx(2)
    # The first token of the last answer is likelier than its foil's, the whole answer is not.
    assert margins[4] < 0 < logprob(" USA", " New") - logprob(" USA", " Cape")
    assert found.margins.tolist() == pytest.approx(margins, abs=1e-4)
    assert [CAPITALS.examples.index(e) for e in found.task] == [0, 1, 3]
    assert [CAPITALS.examples.index(e) for e in found.dropped] == [2, 4]
    assert found.reasons == (WRONG, WRONG) and found.kept == 3 and found.share == 0.6
    assert "kept 3 of 5 (60%); dropped 2: the model prefers the foil" in " ".join(capsys.readouterr().err.split())
    assert found.task.provenance.steps[-1].endswith("kept 3 of 5")


def test_filter_is_silent_on_request(model, capsys):
    CAPITALS.filter(model, quiet=True)
    assert not capsys.readouterr().err


def test_ties_are_not_right(model):
    tie = Task("tie", (example(" Spain", " Paris", " York"),))
    assert tie.filter(model, quiet=True).reasons == (WRONG,)


def test_without_a_foil_greedy_decoding_must_say_the_answer(model):
    task = Task(
        "greedy",
        (
            Example("Capital: of USA", answer=" New York"),
            Example("Capital: of USA", answer=" New Delhi"),
            Example("Capital: of France", answer=" Paris"),
            Example("Capital: of France"),
            example(" Italy", " Rome", " Paris"),
        ),
        metric="logprob",
    )
    found = task.filter(model, quiet=True)
    assert [task.examples.index(e) for e in found.task] == [0, 2, 4]
    assert found.reasons == (ELSE, NO_ANSWER)
    assert found.margins[1].item() == pytest.approx(logprob(" USA", " New", " Delhi"), abs=1e-4)
    assert math.isnan(found.margins[3])


def test_what_tokens_cannot_decide_is_dropped_with_its_reason(model):
    begins = Example("Capital: of USA", answer=" New York", foil=" New")
    straddles = Example("Big", answer="Capital: of", foil=" Paris")  # "Big" and "Capital:" are one word together
    assert Task("x", (begins, straddles)).filter(model, quiet=True).reasons == (UNDECIDABLE, UNDECIDABLE)


def test_tables_count_reasons_and_groups(model):
    found = CAPITALS.filter(model, quiet=True)
    assert found.table().records() == [{"outcome": "kept", "examples": 3}, {"outcome": WRONG, "examples": 2}]
    rows = {r["kind"]: (r["kept"], r["dropped"]) for r in found.table("kind").records()}
    assert rows == {"right": (3, 0), "wrong": (0, 2)}
    assert "<table>" in found._repr_html_()


def test_aligned_keeps_equal_token_lengths(model, capsys):
    task = Task(
        "mixed",
        (
            CAPITALS[0],
            Example("Capital: of France", answer=" Paris", foil=" Rome", counterfactual="Capital: of New Delhi"),
            Example("Capital: of France", answer=" Paris", foil=" Rome"),
            Example("Capital: of France", counterfactual="Capital: of Italy"),
            Example("Capital: of USA", answer=" New York", foil=" New", counterfactual="Capital: of Italy"),
        ),
    )
    found = task.aligned(model)
    assert found.task.examples == task.examples[:1] and found.margins is None
    assert found.reasons == (OTHER_LENGTH, NO_COUNTERFACTUAL, NO_ANSWER, UNDECIDABLE)
    assert "kept 1 of 5" in capsys.readouterr().err


def test_batch_is_what_patching_takes(model):
    task = CAPITALS[:2]
    clean, corrupted, metric = task.batch(model)
    assert isinstance(metric, LogitDiff)
    assert clean.tokens[0][-1] == " France" and corrupted.tokens[0][-1] == " Italy"
    sweep = activation_patching(model, clean, corrupted, "resid_pre", metric, quiet=True)
    assert sweep.into.tolist() == pytest.approx([1.5 - 4, 1 - 5], abs=1e-4)
    assert sweep.source.tolist() == pytest.approx([5 - 1, 4 - 1.5], abs=1e-4)
    # Only the last position holds anything: patching it restores the answer, patching others does nothing.
    assert torch.allclose(sweep.normalized()[:, :, -1], torch.ones(2, 2), atol=1e-4)
    assert sweep.effects[:, :, :-1].abs().max() < 1e-4


def test_tokens_that_answer_and_foil_share_go_behind_both_prompts(model):
    task = Task("cities", (example(" USA", " New York", " New Delhi", " France", spans={"place": " USA"}), CAPITALS[0]))
    clean, corrupted, metric = task.batch(model)
    assert clean.tokens[0] == ("<s>", "Capital:", " of", " USA", " New")
    assert corrupted.tokens[0] == ("<s>", "Capital:", " of", " France", " New")
    assert clean.tokens[1] == ("<s>", "Capital:", " of", " France")
    assert clean.frame.spans[0] == {"place": [3]}
    assert [WORDS[i] for i in metric.answer] == [" York", " Paris"]
    logits = model.run(clean, logits="last").logits
    assert metric(logits, torch.arange(2)).tolist() == pytest.approx([2, 4], abs=1e-4)


def test_batch_refuses_what_cannot_be_patched(model):
    longer = Example("Capital: of France", answer=" Paris", foil=" Rome", counterfactual="Capital: of New Delhi")
    with pytest.raises(ShapeMismatch, match=r"1 of 2 counterfactuals.*example 1: 4 and 5.*aligned"):
        Task("x", (CAPITALS[0], longer)).batch(model)
    clean, corrupted, _ = Task("x", (CAPITALS[0], longer)).batch(model, equal_length=False)
    assert (clean.frame.lengths, corrupted.frame.lengths) == ((4, 4), (4, 5))
    with pytest.raises(BadInput, match="example 1: it has no counterfactual"):
        Task("x", (CAPITALS[0], example(" Italy", " Rome", " Paris"))).batch(model)
    with pytest.raises(BadInput, match="has no foil"):
        Task("x", (example(" Italy", " Rome", None, " France"),)).batch(model)
    with pytest.raises(BadInput, match="2 tokens and no foil"):
        Task("x", (example(" USA", " New York", None, " France"),), metric="logprob").batch(model)
    with pytest.raises(BadInput, match="begins with all of"):
        Task("x", (example(" USA", " New York", " New", " France"),)).batch(model)


def test_logprob_metric_reads_the_answer(model):
    task = Task("x", (example(" Italy", " Rome", None, " France"),), metric="logprob")
    clean, _, metric = task.batch(model)
    value = metric(model.run(clean, logits="last").logits, torch.arange(1)).item()
    assert value == pytest.approx(logprob(" Italy", " Rome"), abs=1e-4)


def test_ids_text_and_tensors_are_the_same_examples(model):
    ids = [WORDS.index(w) for w in ("<s>", "Capital:", " of", " France")]
    other = [*ids[:-1], WORDS.index(" Italy")]
    paris, rome = ([WORDS.index(w)] for w in (" Paris", " Rome"))
    by_ids = Example(ids, answer=paris, foil=rome, counterfactual=other, spans={"place": [3]})
    tensors = Example(
        {"input_ids": torch.tensor([ids])},
        answer=" Paris",
        foil=" Rome",
        counterfactual={"input_ids": torch.tensor([other])},
    )
    for kind in (by_ids, tensors):
        found = Task("x", (kind, kind)).filter(model, quiet=True)
        assert found.margins.tolist() == pytest.approx([4, 4], abs=1e-4) and found.kept == 2
        _, corrupted, metric = Task("x", (kind, kind)).batch(model)
        assert metric(model.run(corrupted, logits="last").logits, torch.arange(2)).tolist() == pytest.approx(
            [-2.5, -2.5], abs=1e-4
        )
    with pytest.raises(BadInput, match="some are tensors"):
        Task("x", (by_ids, tensors)).encode(model)
    wide = Example({"input_ids": torch.tensor([ids + ids])}, answer=" Paris", foil=" Rome")
    with pytest.raises(ShapeMismatch, match="'input_ids'"):
        Task("x", (tensors, wide)).encode(model)
    both = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    with pytest.raises(ShapeMismatch, match="other names"):
        Task("x", (tensors, Example(both))).encode(model)
    shared = Example(
        {**both, "token_type_ids": torch.zeros(1, 4, dtype=torch.long)},
        answer=" New York",
        foil=" New Delhi",
        counterfactual={**both, "token_type_ids": torch.ones(1, 4, dtype=torch.long)},
    )
    with pytest.raises(NotServed, match="share their first tokens"):
        Task("x", (shared,)).batch(model)


def test_encode_carries_spans(model):
    task = Task("x", (example(" France", " Paris", " Rome", " Italy", spans={"place": (12, 18)}), CAPITALS[1]))
    assert task.encode(model).frame.spans == ({"place": [3]}, {})
    assert task.encode(model, counterfactual=True).frame.spans == ()


def test_nothing_can_be_done_with_no_examples(model):
    empty = CAPITALS[:0]
    for call in (empty.filter, empty.aligned, empty.encode, empty.batch):
        with pytest.raises(TooFewRows, match="no examples"):
            call(model)


def test_unknown_metric():
    with pytest.raises(UnknownName, match="'logit_diff'"):
        Task("x", (), metric="logit_dif")
