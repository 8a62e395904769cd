"""Heads as singular vectors, against the maps written out in full and the scores of the models themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from circuit_models import apart, opened
from torch import Tensor

from mechanome.circuits.native import (
    Fold,
    attention_terms,
    needed,
    output_value,
    query_key,
    rotations,
    sparseness,
)
from mechanome.circuits.native.sparse_attention import relative, respectral, rotated, sides
from mechanome.core import BadInput, NotServed, ShapeMismatch, UnknownSite

IDS = torch.tensor([[11, 45, 23, 67, 31, 52, 71, 24]])
ROTARY = ["llama", "gpt_neox", "phi3", "mistral"]
STILL = ["gpt2", "bert", "opt"]


@pytest.mark.parametrize("name", [*ROTARY, *STILL])
def test_the_measured_map_is_what_happens_to_queries_and_keys(name: str) -> None:
    model = opened(name)
    turned = rotations(model, [0, 1], 8)
    run = model.run(IDS, capture=["q_pre.*", "k_pre.*", "q.*", "k.*", "scores.*"])
    for layer in (0, 1):
        for point, maps in (("q", turned.query), ("k", turned.key)):
            before, after = run[f"{point}_pre.{layer}"][0].double(), run[f"{point}.{layer}"][0].double()
            assert apart(torch.einsum("phi,pio->pho", before, maps[layer]), after) < 1e-5
        assert turned.moving(layer) == (name in ROTARY)
        product = run[f"q.{layer}.h0"][0, 7] @ run[f"k.{layer}.kv0"][0, 7]
        assert float(run[f"scores.{layer}.h0"][0, 7, 7]) == pytest.approx(
            turned.scale[layer] * float(product), rel=1e-3
        )


@pytest.mark.parametrize("name", [*ROTARY, *STILL])
def test_the_query_key_map_gives_the_scores(name: str) -> None:
    """Units of every pair of positions, on the streams that query and key read, against the model's scores."""
    model = opened(name)
    run = model.run(IDS, capture=["resid_pre.1", "scores.1"])
    for head in (0, model.architecture.tower(None).blocks[1].n_heads - 1):
        qk = query_key(model, 1, head, 8)
        inputs = qk.inputs(run["resid_pre.1"][0])
        for query, key in ((7, 2), (7, 7), (5, 0)):
            score = float(run["scores.1"][0, head, query, key])
            if score < -1e30:
                continue  # hidden, by a window
            units = qk.units(query, key)
            found = float(((inputs[query] @ units.left.T) * units.values * (inputs[key] @ units.right.T)).sum())
            assert found == pytest.approx(score, rel=1e-3, abs=1e-3)


def test_rotary_maps_depend_on_the_distance_alone_and_need_positions() -> None:
    qk = query_key(opened("llama"), 1, 3, 8)
    near, same, far = qk.units(5, 3), qk.units(7, 5), qk.units(7, 1)
    assert apart(near.weight(), same.weight()) < 1e-5 and apart(far.weight(), near.weight()) > 1e-2
    with pytest.raises(BadInput, match="another map for each distance"):
        qk.units()
    with pytest.raises(BadInput, match="0 to 7"):
        qk.units(8, 0)
    still = query_key(opened("gpt2"), 1, 3, 8)
    assert torch.equal(still.units().weight(), still.units(7, 2).weight())


def test_heads_that_share_a_key_have_maps_of_their_own() -> None:
    model = opened("llama")
    block = model.architecture.tower(None).blocks[1]
    assert block.n_kv < block.n_heads
    one, other = query_key(model, 1, 0, 4), query_key(model, 1, 1, 4)
    assert torch.equal(one.key, other.key) and not torch.equal(one.query, other.query)
    assert apart(one.units(3, 1).values, other.units(3, 1).values) > 1e-2


def test_norm_gains_and_biases_are_in_the_map() -> None:
    model = opened("gpt2")
    qk = query_key(model, 1, 2)
    gain, shift = model.weight("g_ln1.1").value.double(), model.weight("b_ln1.1").value.double()
    weight, bias = model.weight("W_Q.1.h2").value.double(), model.weight("b_Q.1.h2").value.double()
    expected = gain[:, None] * weight
    assert apart(qk.query[:-1], expected - expected.mean(0)) < 1e-6
    assert apart(qk.query[-1], shift @ weight + bias) < 1e-6
    x = model.run(IDS, capture=["resid_pre.1", "ln1.1"])
    seen = qk.inputs(x["resid_pre.1"])[..., :-1] * gain + shift
    assert apart(seen.float(), x["ln1.1"]) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "gemma2"])
def test_output_value_units_are_the_folded_product(name: str) -> None:
    model = opened(name)
    block = model.architecture.tower(None).blocks[1]
    head = block.n_heads - 1
    fold = Fold.of(model, 1, "attention")
    value = model.weight(f"W_V.1.kv{head // (block.n_heads // block.n_kv)}").value.double()
    product = fold.matrix(value) @ model.weight(f"W_O.1.h{head}").value.double()
    units = output_value(model, 1, head)
    assert apart(units.weight(), product) < 1e-9
    assert apart(units.values, torch.linalg.svdvals(product)[: len(units)]) < 1e-9


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "deepseek_v3"])
def test_heads_that_are_not_bilinear_are_refused(name: str) -> None:
    with pytest.raises(NotServed):
        attention_terms(opened(name), IDS, [1], threshold=0.05)


def test_queries_that_are_normalized_have_no_map() -> None:
    with pytest.raises(NotServed, match="off a linear map"):
        rotations(opened("qwen3"), [0], 3)


def test_positions_that_act_on_scores_are_refused() -> None:
    """A bias by distance is no product of queries and keys: the terms miss the scores, and that is said."""
    with pytest.raises(NotServed, match=r"."):
        attention_terms(opened("bloom"), IDS, [1], threshold=0.05)


def test_a_layer_or_head_that_does_not_exist() -> None:
    with pytest.raises(UnknownSite):
        query_key(opened("gpt2"), 9, 0)
    with pytest.raises(UnknownSite):
        output_value(opened("gpt2"), 0, 99)
    with pytest.raises(BadInput, match="nothing to measure"):
        rotations(opened("gpt2"), [], 4)


# Terms ---------------------------------------------------------------------------------------------------------------


def naive(model: Any, layer: int, head: int, query: int, key: int) -> tuple[Tensor, Tensor]:
    """Terms from maps written out in full, one for each key; and the relative score from the model's own scores."""
    run = model.run(IDS, capture=[f"resid_pre.{layer}", f"scores.{layer}"])
    scores = run[f"scores.{layer}"][0, head, query].double()
    visible = [i for i in range(8) if scores[i] > -1e30]
    qk = query_key(model, layer, head, 8)
    inputs = qk.inputs(run[f"resid_pre.{layer}"][0])
    turns = qk.rotations.query[layer][query], qk.rotations.key[layer]
    maps = {i: qk.scale * qk.query @ turns[0] @ turns[1][i].T @ qk.key.T for i in visible}
    left = torch.linalg.svd(maps[key])[0].T[: qk.query.shape[1]]
    mean = sum(maps[i] @ inputs[i] for i in visible if i != key) / (len(visible) - 1)
    terms = (left @ inputs[query]) * (left @ (maps[key] @ inputs[key] - mean))
    return terms, scores[key] - sum(scores[i] for i in visible if i != key) / (len(visible) - 1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert"])
def test_terms_are_those_of_the_maps_in_full_and_sum_to_the_scores(name: str) -> None:
    model, case = opened(name), (1, 2, 6, 3)
    found = attention_terms(model, IDS, cases=[case], draws=3)
    terms, exact = naive(model, *case)
    assert apart(found.terms[0], terms) < 1e-6
    assert float(found.relative[0]) == pytest.approx(float(exact), rel=1e-4, abs=1e-4)
    assert found.error < 1e-4
    assert torch.allclose(found.rotated.sum(-1), found.relative[:, None].expand(1, 3))
    assert not torch.allclose(found.rotated[0, 0], found.rotated[0, 1])
    pattern = model.run(IDS, capture="pattern.1")["pattern.1"]
    assert float(found.weight[0]) == pytest.approx(float(pattern[0, 2, 6, 3]))


def test_cases_are_the_pairs_that_heads_attend_to() -> None:
    model = opened("llama")
    found = attention_terms(model, IDS, threshold=0.3, without_first=True)
    run = model.run(IDS, capture="pattern.*")
    expected = [
        (layer, head, query, key)
        for layer in range(model.n_layers)
        for head, query, key in (run[f"pattern.{layer}"][0] >= 0.3).nonzero().tolist()
        if key not in (0, query) and query >= 2
    ]
    assert [tuple(case) for case in found.cases] == expected and len(expected) > 3
    assert len(found.table(4)) == 4
    some = attention_terms(model, IDS, heads=[expected[0][:2]], threshold=0.3)
    assert {case[:2] for case in some.cases} == {expected[0][:2]}
    scores = model.run(IDS, capture="scores.*")
    layer, head, query, key = expected[0]
    row = scores[f"scores.{layer}"][0, head, query].double()
    others = [i for i in range(1, 8) if i != key and row[i] > -1e30]
    assert float(found.relative[0]) == pytest.approx(float(row[key] - row[others].mean()), rel=1e-3, abs=1e-3)


def test_prompts_without_a_pair_and_hidden_keys_are_refused() -> None:
    model = opened("gpt2")
    with pytest.raises(BadInput, match="lower threshold"):
        attention_terms(model, IDS, threshold=1.1)
    with pytest.raises(BadInput, match="hidden"):
        attention_terms(model, IDS, cases=[(0, 0, 2, 5)])
    with pytest.raises(BadInput, match="2 prompts"):
        attention_terms(model, IDS.repeat(2, 1))


def test_sparseness_and_needed_terms_by_hand() -> None:
    terms = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, -1.0, 1.0], [3.0, 1.0, -2.0, 1.0], [-1.0, -1.0, 0.5, 0.0]])
    assert sparseness(terms).tolist() == pytest.approx([0.25, 1.0, 49 / 4 / 15, (2.5 / 4) ** 2 / (2.25 / 4)])
    assert needed(terms).tolist() == [1, 2, 1, 0]
    assert needed(torch.tensor([0.5, 0.3, 0.2])).item() == 3
    assert float(relative(torch.tensor([1.0, 5.0, 2.0]), 1, torch.tensor([True, False, True]))) == 3.5


def test_controls_keep_what_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(9, 4, generator=generator, dtype=torch.float64)).Q.T
    values = torch.tensor([4.0, 2.0, 1.0, 0.0], dtype=torch.float64)
    right = torch.linalg.qr(torch.randn(9, 4, generator=generator, dtype=torch.float64)).Q.T
    r, d = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    first, second = sides(left, values, r, left.T @ (values * (right @ d)))
    assert torch.allclose(first, (left @ r) * values) and torch.allclose(second[:3], (right @ d)[:3])
    assert float((first * second).sum()) == pytest.approx(float(r @ left.T @ (values * (right @ d))))
    turned = rotated(first, second, 5)
    assert float(turned.sum()) == pytest.approx(float((first * second).sum()))
    assert not torch.allclose(turned, first * second)
    apart_terms = torch.stack([respectral(first, second, values, i) for i in range(400)])
    assert float(apart_terms[:, 3].abs().max()) == 0
    size = apart_terms.abs().mean(0)
    assert size[0] > 1.5 * size[1] > 2 * size[2]
    with pytest.raises(ShapeMismatch):
        sides(left, values, r, d[:4])
