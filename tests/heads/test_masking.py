"""Masking: equal to editing the attention by hand; faithfulness and agreement on cases with known answers."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from head_models import IDS, opened
from torch import Tensor

import mechanome as mn
from families import build
from mechanome.core import BadInput, BudgetTooSmall, NotFinite, NotServed, ShapeMismatch, TooFewRows, UnknownName
from mechanome.heads import (
    agreement,
    critical_auc,
    faithfulness,
    hit_at_k,
    leave_one_out,
    mask_tokens,
    masked_runs,
    masking,
    neighbors,
)


def by_hand(model: mn.Model, ids: Tensor, *cuts: tuple[list[int], list[int]]) -> Tensor:
    """Log-probabilities with patterns zeroed at keys, for some queries, and renormalized: cuts of (keys, queries)."""

    def cut(pattern: Tensor) -> Tensor:  # `row query head key`
        new = pattern.clone()
        for hidden, queries in cuts:
            rows = new[:, queries]
            rows[..., hidden] = 0
            new[:, queries] = rows / rows.sum(-1, keepdim=True)
        return new

    edits = [mn.Custom(f"pattern.{layer}", cut) for layer in range(model.n_layers)]
    logits = model.run(ids, edits=edits).logits
    assert logits is not None
    return logits[0].log_softmax(-1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "qwen3"])
def test_hiding_equals_a_pattern_edited_by_hand(name: str) -> None:
    model = opened(name)
    found = mask_tokens(model, IDS, [[2], [1, 5], [-2]], answer=33)
    for hidden, value in zip([[2], [1, 5], [6]], found.logprobs):
        expected = by_hand(model, IDS, (hidden, [7]))[-1, 33]
        assert float(value) == pytest.approx(float(expected), abs=1e-4)
    assert found.hidden == ((2,), (1, 5), (6,))
    assert found.base == pytest.approx(float(model.run(IDS).logits.log_softmax(-1)[0, -1, 33]), abs=1e-4)
    assert torch.equal(found.drops, found.base - found.logprobs)


def test_an_answer_of_several_tokens_is_hidden_from_all_that_predict_it() -> None:
    model, answer = opened("llama"), [33, 12, 50]
    found = mask_tokens(model, IDS, [[3], []], answer)
    longer = torch.cat([IDS, torch.tensor([answer[:-1]])], 1)
    expected = by_hand(model, longer, ([3], [7, 8, 9]))[[7, 8, 9], answer].sum()
    assert float(found.logprobs[0]) == pytest.approx(float(expected), abs=1e-4)
    assert float(found.logprobs[1]) == pytest.approx(found.base, abs=1e-6)
    assert found.base == pytest.approx(float(model.logprob(IDS, [answer])[0]), abs=1e-4)


def test_leaving_one_out_is_one_row_each() -> None:
    model = opened("llama")
    found = leave_one_out(model, IDS)
    best = int(model.run(IDS, logits="last").logits.argmax())
    assert found.answer == (best,)
    for p in (0, 4, 7):
        alone = mask_tokens(model, IDS, [[p]], best)
        assert float(found.effects[p]) == pytest.approx(float(alone.drops[0]), abs=1e-5)
    assert found.sink == (0,) and found.others == tuple(range(1, 8))
    assert [row[3] for row in found.table().rows] == ["*"] + [""] * 7
    some = leave_one_out(model, IDS, positions=[0, 3, -1], sink=[])
    assert some.others == (0, 3, 7)
    assert bool(some.effects[1].isnan()) and some.table().rows[1][2] is None
    assert torch.allclose(some.effects[[0, 3, 7]], found.effects[[0, 3, 7]], atol=1e-5)


def test_only_the_last_query_is_blinded() -> None:
    """In the first layer the last position alone loses a key; what other positions took from it stays in the stream."""
    model = opened("gpt2")
    found = mask_tokens(model, IDS, [[2]], 33)
    everyone = by_hand(model, IDS, ([2], [3, 4, 5, 6, 7]))[-1, 33]
    assert abs(float(found.logprobs[0]) - float(everyone)) > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "qwen3"])
def test_hiding_from_all_later_positions_equals_a_pattern_edited_by_hand(name: str) -> None:
    model, answer = opened(name), [33, 12]
    longer = torch.cat([IDS, torch.tensor([answer[:-1]])], 1)
    later = {p: list(range(p + 1, 9)) for p in range(8)}
    cases = {
        (2,): [([2], later[2])],
        (1, 2, 3): [([1, 2, 3], later[3])],  # neighbors still see each other
        (5, 1): [([1], later[1]), ([5], later[5])],
        (7,): [([7], later[7])],
        (): [],
    }
    found = mask_tokens(model, IDS, list(cases), answer, hidden_from="later")
    for cuts, value in zip(cases.values(), found.logprobs):
        expected = by_hand(model, longer, *cuts)[[7, 8], answer].sum()
        assert float(value) == pytest.approx(float(expected), abs=1e-4)
    assert "every later position" in found.table().title and found.hidden == tuple(cases)
    alone = leave_one_out(model, IDS, answer, hidden_from="later", positions=[2])
    assert float(alone.effects[2]) == pytest.approx(float(found.drops[0]), abs=1e-5)
    assert "every later position" in alone.table().title


@pytest.mark.parametrize("hidden_from", ["last", "later"])
def test_tokens_before_the_first_blinded_query_run_once(hidden_from: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a shared prefix, in pieces of one row or in one piece: the same numbers, far fewer tokens."""
    model = opened("llama")
    sets, ran = [[6], [0], [2, 5], [], [3]], []
    encoded = masking.shared_prefix

    def counting(model: mn.Model, row: mn.Batch, length: int) -> object:
        if length:
            ran.append(length)
        return encoded(model, row, length)

    monkeypatch.setattr(masking, "shared_prefix", counting)

    def read(logits: Tensor) -> Tensor:
        assert logits.shape[1:] == (2, 97) and logits.dtype == torch.float32
        return logits

    runs = {"hidden_from": hidden_from, "continued": [12]}
    shared = masked_runs(model, IDS, sets, read, **runs)  # type: ignore[arg-type]
    assert ran == ([7] if hidden_from == "last" else [1])
    monkeypatch.setattr(masking, "TOKENS_AT_ONCE", 1)
    ran.clear()
    single = masked_runs(model, IDS, sets, read, **runs)  # type: ignore[arg-type]
    assert ran == ([7] if hidden_from == "last" else [1, 3, 4, 7])
    monkeypatch.setattr(masking, "can_prefix", lambda model: "no")
    monkeypatch.setattr(masking, "shared_prefix", lambda model, row, length: None)
    plain = masked_runs(model, IDS, sets, read, **runs)  # type: ignore[arg-type]
    assert shared.shape == (5, 2, 97)
    assert torch.allclose(shared, plain, atol=1e-4) and torch.allclose(single, plain, atol=1e-4)


def test_neighbors_cover_a_prompt() -> None:
    assert neighbors(5, 9) == ((0,), (1,), (2,), (3,), (4,))
    assert neighbors(5, 2) == ((0, 1, 2), (3, 4)) and neighbors(5, 0) == ((0, 1, 2, 3, 4),)


@cache
def measured() -> mn.Model:
    """A model whose memory the self-test measured, so that budgets cut."""
    return mn.load(build("llama"))


def test_pieces_that_fit_a_budget_give_the_same_numbers() -> None:
    sets = [[p] for p in range(8)] + [[], [1, 2, 3]]
    whole = mask_tokens(measured(), IDS, sets, 33)
    calls: list[int] = []
    model = measured()
    original = type(model).run

    def counting(self: mn.Model, inputs: object, *args: object, **options: object) -> object:
        calls.append(inputs.rows)  # type: ignore[attr-defined]
        return original(self, inputs, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "run", counting)
        cut = mask_tokens(model, IDS, sets, 33, budget="130KB")
    assert len(calls) > 1 and sum(calls) == len(sets) + 1
    assert torch.allclose(cut.logprobs, whole.logprobs, atol=1e-5)
    with pytest.raises(BudgetTooSmall):
        mask_tokens(model, IDS, sets, 33, budget=1000)


def test_faithfulness_hides_in_the_order_of_the_scores() -> None:
    model, scores = opened("llama"), [9.0, 1, 8, 2, 7, 3, 6, 4]
    found = faithfulness(model, IDS, scores, 33, k=2)
    assert found.order == (2, 4, 6, 7, 5, 3, 1)  # 0 is kept
    sets = [[2, 4], [6, 7, 5, 3, 1], [], [2], [2, 4, 6, 7, 5, 3, 1]]
    rows = mask_tokens(model, IDS, sets, 33)
    assert found.comprehensiveness == pytest.approx(float(rows.drops[0]), abs=1e-5)
    assert found.sufficiency == pytest.approx(float(rows.drops[1]), abs=1e-5)
    assert found.hidden == tuple(range(8))
    assert torch.allclose(found.curve[[0, 1, 7]], rows.logprobs[[2, 3, 4]], atol=1e-5)
    drop = found.base - found.curve
    assert found.auc == pytest.approx(float((drop[1:] + drop[:-1]).sum()) / 2 / 7)
    assert len(found.table()) == 3 + 8
    fewer = faithfulness(model, IDS, scores, 33, points=3, keep=[0, -1])
    assert fewer.hidden == (0, 3, 6) and 7 not in fewer.order and fewer.kept == (0, 7)


def test_the_true_order_beats_its_reverse() -> None:
    model = opened("gpt2")
    effects = leave_one_out(model, IDS).effects
    good, bad = (faithfulness(model, IDS, s, k=2) for s in (effects, -effects))
    assert good.auc > bad.auc and good.comprehensiveness > bad.comprehensiveness


def test_hits_and_areas_by_hand() -> None:
    scores = [9.0, 0.1, 0.5, 0.3, 0.4]
    assert hit_at_k(scores, [3], 3) and not hit_at_k(scores, [3], 2)  # 0 takes no part
    assert not hit_at_k(scores, [3], 3, exclude=[])
    assert critical_auc(scores, [2]) == 1.0
    assert critical_auc(scores, [1]) == 0.0
    assert critical_auc(scores, [3, 4]) == pytest.approx(0.5)  # of four pairs, both beat 1 and neither beats 2
    assert critical_auc([1.0, 1.0, 1.0], [1], exclude=[]) == 0.5
    with pytest.raises(BadInput, match="there is none"):
        hit_at_k(scores, [])
    with pytest.raises(BadInput, match="left out"):
        critical_auc(scores, [0])
    with pytest.raises(BadInput, match="position 5"):
        critical_auc(scores, [5])
    with pytest.raises(TooFewRows, match="every token"):
        critical_auc(scores, [1, 2, 3, 4])


def test_agreement_is_spearman_within_prompts() -> None:
    effects = torch.tensor([50.0, 0.1, 0.2, 0.3, 0.4, 0.9, math.nan])
    same = torch.tensor([-5.0, 1, 2, 3, 4, 5, 100])
    one = agreement([same], [effects])
    assert one.estimate == pytest.approx(1.0) and one.n == 5  # without the sink and the token not measured
    assert agreement([same], [effects], exclude=[]).estimate < 0.5
    swapped = torch.tensor([0.0, 2, 1, 3, 4, 5, 0])
    several = agreement([same, swapped, -same], [effects] * 3)
    # Ranks 2 1 3 4 5 against 1 2 3 4 5: rho is 1 - 6 * 2 / (5 * 24) = 0.9.
    assert several.estimate == pytest.approx((1 + 0.9 - 1) / 3) and several.n == 3
    assert several.lo <= several.estimate <= several.hi
    with pytest.raises(NotFinite, match="equal"):
        agreement([torch.ones(7)] * 2, [effects] * 2)
    with pytest.raises(ShapeMismatch):
        agreement([same[:5]], [effects])
    with pytest.raises(ShapeMismatch, match="pairs"):
        agreement([same], [])
    with pytest.raises(TooFewRows):
        agreement([same[:3]], [effects[:3]])


def test_what_cannot_be_masked_is_refused() -> None:
    model = opened("llama")
    with pytest.raises(NotServed, match="causal"):
        mask_tokens(opened("bert"), IDS, [[1]])
    with pytest.raises(NotServed):
        mask_tokens(opened("mamba"), IDS, [[1]])
    with pytest.raises(BadInput, match="position 8"):
        mask_tokens(model, IDS, [[8]])
    with pytest.raises(UnknownName, match="later"):
        mask_tokens(model, IDS, [[1]], hidden_from="latter")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="at least one"):
        masked_runs(model, IDS, [], lambda logits: logits)
    with pytest.raises(BadInput, match="0 to 96"):
        mask_tokens(model, IDS, [[1]], 97)
    with pytest.raises(BadInput, match="one answer"):
        mask_tokens(model, IDS, [[1]], [[3], [4]])  # type: ignore[list-item]
    with pytest.raises(ShapeMismatch, match="8 tokens"):
        faithfulness(model, IDS, [1.0, 2.0])
    with pytest.raises(NotFinite):
        faithfulness(model, IDS, [math.nan] * 8)
    with pytest.raises(TooFewRows):
        faithfulness(model, IDS, [1.0] * 8, k=7)
    with pytest.raises(BadInput, match="two ends"):
        faithfulness(model, IDS, [1.0] * 8, points=1)
