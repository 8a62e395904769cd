"""Sinks: the split is exact, the parabola is convex, and removal is what the layer really does without the sink."""

from __future__ import annotations

import math

import pytest
import torch
from head_models import IDS, apart, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mechanome as mn
from mechanome.core import BadInput, NotServed, TooFewRows
from mechanome.heads import (
    SinkRemoval,
    contribution,
    drift,
    drift_against_entropy,
    find_sinks,
    fit_parabola,
    read_attention,
    sink_removal,
    sink_report,
    split_at_sink,
)
from mechanome.heads.sinks import looking

OTHER = torch.tensor([[3, 80, 62, 15, 44, 28, 90, 7, 51, 36]])


def test_two_tokens_by_hand() -> None:
    """u = (0, 1) with rate 0.75 and m = (4, 0): o = (1, 0.75)."""
    pattern, values = torch.tensor([[[0.75, 0.25]]]), torch.tensor([[[0.0, 1.0], [4.0, 0.0]]])
    found = split_at_sink(pattern, values, torch.eye(2)[None])
    expected = {
        "rate": 0.75, "rest": 0.25, "sink_squared": 1.0, "mean_squared": 16.0, "product": 0.0,
        "output_squared": 1 + 0.5625, "curvature": 2 * 17.0, "lowest": 16 / 17, "cosine": 0.0,
        "suppression": 1 - 1.25 / 4, "contribution": 0.5625 / 1.5625,
    }  # fmt: skip
    for name, value in expected.items():
        assert float(getattr(found, name)) == pytest.approx(value), name
    assert float(found.parabola(0.0)) == pytest.approx(16.0)
    assert float(found.parabola(1.0)) == pytest.approx(1.0)
    assert float(found.parabola(16 / 17)) < float(found.parabola(0.9))


@given(seed=st.integers(0, 10**6), sinks=st.sampled_from([0, [0], [0, -1], [1, 3]]))
@settings(max_examples=40, deadline=None)
def test_the_identity_holds_and_the_parabola_is_convex(seed: int, sinks: int | list[int]) -> None:
    gen = torch.Generator().manual_seed(seed)
    pattern = (2 * torch.randn(4, 5, 5, generator=gen, dtype=torch.float64)).softmax(-1)
    values = torch.randn(2, 5, 3, generator=gen, dtype=torch.float64)
    weight = torch.randn(4, 3, 6, generator=gen, dtype=torch.float64)
    found = split_at_sink(pattern, values, weight, sinks)
    o = torch.einsum("hqk,hkd,hdm->hqm", pattern, values.repeat_interleave(2, 0), weight)
    assert torch.allclose(found.output_squared, o.square().sum(-1))
    assert torch.allclose(found.parabola(found.rate), found.output_squared)
    assert (found.curvature >= 0).all()
    step = 1e-3
    second = found.parabola(0.3 + step) - 2 * found.parabola(0.3) + found.parabola(0.3 - step)
    assert torch.allclose(second / step**2, found.curvature, rtol=1e-4, atol=1e-6)
    assert (found.parabola(found.lowest) <= found.parabola(found.lowest + 0.1)).all()
    assert (found.parabola(found.lowest) <= found.parabola(found.lowest - 0.1)).all()
    places = [sinks] if isinstance(sinks, int) else sinks
    shares = contribution(pattern, values, weight, eps=1e-12).values[..., places].sum(-1)
    assert torch.allclose(found.contribution, shares, atol=1e-6)


def test_the_mean_is_the_output_with_the_sink_removed() -> None:
    """Against the engine: knock the sink out of one layer, renormalize, and read the head's output there."""
    for name in ("llama", "gemma2", "deepseek_v3"):
        model = opened(name)
        part = read_attention(model, IDS).layers[1]
        found = split_at_sink(part.pattern, part.values, part.output_weight)
        cut = model.run(IDS, capture="z.1", edits=mn.AttentionKnockout(1, src=0, dst="1:"))
        removed = cut["head_out.1"][0].transpose(0, 1).norm(dim=-1)
        assert apart(found.mean_squared.sqrt()[:, 1:], removed[:, 1:]) < 1e-4
        assert found.mean_squared[:, 0].max() == 0  # query 0 has no rest


def test_sinks_of_the_model_s_own_leave_less_for_the_rest() -> None:
    part = read_attention(opened("gpt_oss"), IDS).layers[1]
    found = split_at_sink(part.pattern, part.values, part.output_weight)
    assert (found.rate + found.rest < 0.999).any()
    o = torch.einsum("hqk,hkd,hdm->hqm", part.pattern, part.values.repeat_interleave(2, 0), part.output_weight)
    assert apart(found.output_squared, o.square().sum(-1)) < 1e-5


def test_sinks_are_found_where_later_queries_look() -> None:
    pattern = torch.zeros(2, 3, 6, 6)
    pattern[..., 0] = 0.4
    pattern[..., 2] = 0.3
    pattern[..., 5] = 0.3
    assert find_sinks(pattern, threshold=0.25) == [0, 2]
    assert find_sinks(pattern, threshold=0.35) == [0]
    assert find_sinks(pattern[:, :, [1, 4]], 0.25, queries=[1, 4]) == [0, 2]
    assert find_sinks(pattern, threshold=0.5) == []


def test_a_parabola_is_recovered_also_far_from_zero() -> None:
    x = torch.linspace(0.9, 0.99, 30)
    found = fit_parabola(x, 2 - 3 * x + 5 * x**2, spread=0.01)
    assert found is not None
    assert torch.allclose(found, torch.tensor([2.0, -3.0, 5.0], dtype=torch.float64), atol=1e-2)
    assert fit_parabola(x[:7], x[:7]) is None
    assert fit_parabola(torch.full((30,), 0.5), x) is None


def test_a_report_pools_queries_of_all_prompts() -> None:
    model = opened("llama")
    found = sink_report(model, [IDS, OTHER])
    assert found.rate.shape == (3, 4, 7 + 9)
    pattern = model.run(OTHER, capture="pattern.2")["pattern.2"][0]
    assert torch.allclose(found.rate[2, :, 7:], pattern[:, 1:, 0], atol=1e-5)
    part = read_attention(model, OTHER).layers[2]
    split = split_at_sink(part.pattern, part.values, part.output_weight)
    assert torch.allclose(found.contribution[2, 1, 7:], split.contribution[1, 1:], rtol=1e-3)
    fit = fit_parabola(found.rate[1, 3], found.output[1, 3])
    assert fit is not None and float(found.curvature[1, 3]) == pytest.approx(float(2 * fit[2]))
    fitted = found.curvature[~found.curvature.isnan()]
    assert found.convex_share.n == len(fitted) > 0
    assert found.convex_share.estimate == pytest.approx(float((fitted > 0).double().mean())) != 0.5
    assert torch.allclose(found.suppression, 1 - found.output.mean(-1) / found.mean.mean(-1))
    assert len(found.table()) == 12
    heavy = sink_report(model, [IDS, OTHER], heavy=float(found.rate.mean(-1).median()))
    assert heavy.louder_share.n == int((found.rate.mean(-1) > heavy.heavy).sum())
    louder = (heavy.suppression[heavy.sink_heavy] > 0).float().mean()
    assert heavy.louder_share.estimate == pytest.approx(float(louder))
    with pytest.raises(TooFewRows, match="sink-heavy"):
        _ = sink_report(model, [IDS], heavy=1.0).louder_share
    with pytest.raises(TooFewRows, match="varies enough"):
        _ = sink_report(model, [IDS]).convex_share  # seven queries determine no parabola


def test_an_encoder_with_two_sinks() -> None:
    found = sink_report(opened("bert"), [IDS, OTHER], sink=[0, -1])
    assert found.rate.shape[-1] == 6 + 8
    pattern = opened("bert").run(IDS, capture="pattern.0")["pattern.0"][0]
    assert torch.allclose(found.rate[0, :, :6], pattern[:, 1:7, [0, 7]].sum(-1), atol=1e-6)


def test_which_queries_count() -> None:
    assert looking([0, 1, 2, 3], 0, True, 4) == [1, 2, 3]
    assert looking([0, 1, 2, 3], 2, True, 4) == [1, 3]
    assert looking([0, 1, 2, 3], [2, -1], False, 4) == [0, 1]
    assert looking([2, 3], 3, True, 4) == [0]
    with pytest.raises(TooFewRows):
        looking([0], 0, True, 4)
    with pytest.raises(BadInput, match="4 tokens"):
        looking([0, 1], 4, True, 4)


def test_drift_by_hand() -> None:
    before = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    after = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    assert torch.allclose(drift(before, after), torch.tensor([0.0, 1.0, 2.0]))


def renormalized(sink: list[int], queries: list[int]) -> object:
    def cut(pattern: Tensor) -> Tensor:  # `row query head key`
        new = pattern.clone()
        rows = new[:, queries]
        rows[..., sink] = 0
        new[:, queries] = rows / rows.sum(-1, keepdim=True)
        return new

    return cut


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_removal_equals_a_pattern_edited_by_hand(name: str) -> None:
    model = opened(name)
    found = sink_removal(model, IDS)
    queries = list(range(1, 8))
    assert found.queries == tuple(queries) and found.layers == (0, 1, 2)
    for layer in range(3):
        edit = mn.Custom(f"pattern.{layer}", renormalized([0], queries))  # type: ignore[arg-type]
        sites = [f"resid_pre.{layer}", f"resid_post.{layer}", f"attn_out.{layer}"]
        plain, cut = model.run(IDS, capture=sites), model.run(IDS, capture=sites, edits=edit)
        before = plain[sites[0]][0, queries]
        assert torch.allclose(found.with_sink[layer], drift(before, plain[sites[1]][0, queries]), atol=1e-5)
        assert torch.allclose(found.without_sink[layer], drift(before, cut[sites[1]][0, queries]), atol=1e-5)
        assert apart(found.norms_without[layer], cut[sites[2]][0, queries].norm(dim=-1)) < 1e-4
        assert apart(found.norms_with[layer], plain[sites[2]][0, queries].norm(dim=-1)) < 1e-4
    probabilities = model.run(IDS).logits[0, queries].softmax(-1)
    assert torch.allclose(found.entropy, -(probabilities * probabilities.log()).sum(-1), atol=1e-4)
    assert found.increase.abs().max() > 1e-3
    assert len(found.table()) == 7


def test_removal_of_two_sinks_in_one_layer() -> None:
    found = sink_removal(opened("bert"), IDS, [0, -1], layers=[1])
    assert found.queries == (1, 2, 3, 4, 5, 6) and found.layers == (1,)


def removal(increase: list[float], entropy: list[float]) -> SinkRemoval:
    n = len(increase)
    zero, more = torch.zeros(1, n), torch.tensor([increase])
    places = tuple(range(n))
    return SinkRemoval(zero, more, zero + 1, zero + 2, torch.tensor(entropy), (0,), places, ("t",) * n)


def test_drift_is_compared_with_entropy_over_tokens_and_prompts() -> None:
    rising = removal([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [1.0, 2, 3, 4, 5, 6])
    assert drift_against_entropy([rising]).estimate == pytest.approx(1.0)
    falling = removal([0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [1.0, 2, 3, 4, 5, 6])
    both = drift_against_entropy([rising, falling, rising])
    assert both.n == 3 and 0 < both.estimate < 1 and both.level == 0.99


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(BadInput, match="list"):
        sink_report(opened("llama"), "text")
    with pytest.raises(BadInput, match="8 tokens"):
        sink_report(opened("llama"), [IDS], sink=8)
    with pytest.raises(BadInput, match="8 tokens"):
        split_at_sink(torch.ones(1, 8, 8), torch.ones(1, 8, 2), sink=[])
    with pytest.raises(NotServed):
        sink_removal(opened("mamba"), IDS)
    assert math.isnan(float(split_at_sink(torch.ones(1, 1, 1), torch.ones(1, 1, 2)).suppression))
