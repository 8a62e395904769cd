"""Patterns with tokens, and scores of heads made to be of a kind."""

from __future__ import annotations

import math

import pytest
import torch
from head_models import IDS, opened
from torch import Tensor

from mechanome.core import BadInput, NotServed, UnknownName
from mechanome.heads import SCORES, Patterns, head_scores, patterns, repeated_tokens
from mechanome.heads.patterns import parse_head


def test_patterns_are_the_engine_s() -> None:
    model = opened("llama")
    found = patterns(model, IDS)
    run = model.run(IDS, capture="pattern.*")
    for layer in range(3):
        assert torch.equal(found.of((layer, 2)), run[f"pattern.{layer}"][0, 2])
    assert found.axes == ("layer", "head", "query", "key")
    assert found.tokens == tuple(str(int(i)) for i in IDS[0])


def hand() -> Patterns:
    pattern = torch.tensor([[[1.0, 0, 0], [0.3, 0.7, 0], [0.2, 0.5, 0.3]], [[1.0, 0, 0], [1, 0, 0], [0, 0.1, 0.9]]])
    return Patterns(pattern[None], (4,), (0, 1, 2), ("a", "b", "c"))


def test_top_keys_of_a_head() -> None:
    assert hand().top("4.h0", 2, k=2).rows == ((1, "b", pytest.approx(0.5)), (2, "c", pytest.approx(0.3)))
    assert hand().top((4, 0), 1, k=9).rows[0] == (1, "b", pytest.approx(0.7))
    assert "'c'" in hand().top("pattern.4.h1").title
    assert hand().table(-1).rows == ((4, 0, 1, "b", pytest.approx(0.5)), (4, 1, 2, "c", pytest.approx(0.9)))


def test_a_line_break_does_not_break_a_table() -> None:
    found = Patterns(torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]]), (0,), (0, 1), ("a", "\n\tb"))
    assert found.top("0.h0", k=1).rows[0][1] == "\\n\\tb" == found.table().rows[0][3]


def test_heads_and_queries_that_are_not_there() -> None:
    with pytest.raises(BadInput, match="not read"):
        hand().of("3.h0")
    with pytest.raises(BadInput, match="not read"):
        hand().of((4, 2))
    with pytest.raises(BadInput, match="3 tokens"):
        hand().top("4.h0", 3)
    with pytest.raises(BadInput, match="does not name"):
        parse_head("h3.5")


def made(period: int, lead: int, kind: str) -> Tensor:
    """A pattern that is purely of one kind wherever that kind has somewhere to look, and at itself elsewhere."""
    n = lead + 2 * period
    target = {
        "previous": lambda i: i - 1,
        "induction": lambda i: i - period + 1 if i >= lead + period else i,
        "duplicate": lambda i: i - period if i >= lead + period else i,
        "sink": lambda i: 0,
    }[kind]
    pattern = torch.zeros(n, n)
    for i in range(n):
        pattern[i, max(0, target(i))] = 1.0
    return pattern


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("kind", ["previous", "induction", "duplicate", "sink"])
def test_a_pure_head_scores_one_and_others_do_not(kind: str, lead: int) -> None:
    pattern = made(5, lead, kind)
    assert float(SCORES[kind].of(pattern, 5, lead)) == pytest.approx(1.0)
    others = {name: float(SCORES[name].of(pattern, 5, lead)) for name in SCORES if name not in (kind, "entropy")}
    assert max(others.values()) < 0.5
    assert float(SCORES["entropy"].of(pattern, 5, lead)) == 0.0


def test_the_first_query_has_no_choice_and_does_not_count() -> None:
    pattern = made(5, 0, "previous")  # queries 0 and 1 look at 0, of which 1 counts, among nine
    assert float(SCORES["sink"].of(pattern, 5, 0)) == pytest.approx(1 / 9)


def test_half_a_head_scores_half_and_even_attention_has_log_n_nats() -> None:
    mixed = 0.5 * made(5, 0, "induction") + 0.5 * made(5, 0, "sink")
    assert float(SCORES["induction"].of(mixed, 5, 0)) == pytest.approx(0.5)
    even = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    expected = (math.log(2) + math.log(3) + math.log(4)) / 3
    assert float(SCORES["entropy"].of(even, 2, 0)) == pytest.approx(expected)


def test_repeated_tokens_repeat_and_hold_no_special_token() -> None:
    model = opened("llama")
    ids, lead = repeated_tokens(model, period=20, rows=3, seed=1)
    assert lead == 1 and (ids[:, 0] == model.config.bos_token_id).all()
    assert torch.equal(ids[:, 1:21], ids[:, 21:])
    assert ids[:, 1:].min() > 2  # pad, bos and eos are 0, 1, 2
    assert all(len(set(row[1:21].tolist())) == 20 for row in ids)
    assert not torch.equal(ids, repeated_tokens(model, 20, 3, seed=2)[0])
    with pytest.raises(BadInput, match="ordinary"):
        repeated_tokens(model, period=1)


def test_scores_of_a_model_are_means_over_sequences() -> None:
    model = opened("llama")
    found = head_scores(model, period=6, rows=2, seed=3)
    ids, lead = repeated_tokens(model, 6, 2, 3)
    run = model.run(ids, capture="pattern.1")
    one = torch.stack([run["pattern.1"][r, 2].diagonal(-5)[lead + 6 - 5 :].mean() for r in range(2)]).mean()
    assert float(found["induction"][1, 2]) == pytest.approx(float(one), abs=1e-6)
    assert found.values.shape == (5, 3, 4)
    assert len(found.table()) == 12
    best = found.top("previous", 1).rows[0]
    assert best[1] == pytest.approx(float(found["previous"].max()))
    with pytest.raises(UnknownName, match="induction"):
        found["inducton"]


def test_heads_that_cannot_look_a_period_back_score_nothing() -> None:
    """The window of this model is shorter than the period."""
    found = head_scores(opened("mistral"), period=8, rows=1)
    assert found["induction"].max() == 0 and found["duplicate"].max() == 0
    assert found["previous"].max() > 0.05


def test_models_without_a_vocabulary_or_with_two_texts_are_refused() -> None:
    with pytest.raises(NotServed):
        head_scores(opened("t5"))
    with pytest.raises(BadInput, match="vocabulary"):
        head_scores(opened("vit"))
