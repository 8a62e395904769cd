"""The formula: by hand, against loops over query x key x d_model, and its exact properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mechanome.core import BadInput, ShapeMismatch, UnknownName
from mechanome.heads import contribution, head_importance, transformed_lengths


def case(seed: int, heads: int = 4, kv: int = 2, n: int = 6, d_v: int = 3, d: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """A causal pattern, values and an output map, fp64."""
    gen = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(heads, n, n, generator=gen, dtype=torch.float64)
    pattern = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(-1)
    values = torch.randn(kv, n, d_v, generator=gen, dtype=torch.float64)
    return pattern, values, torch.randn(heads, d_v, d, generator=gen, dtype=torch.float64)


def parts_of(pattern: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    """a_ij u_j in full, `[head, query, key, d_model]`: what the fast path never makes."""
    heads, groups = pattern.shape[0], pattern.shape[0] // values.shape[0]
    u = torch.stack([values[h // groups] @ weight[h] for h in range(heads)])
    return pattern[..., None] * u[:, None]


def test_two_tokens_by_hand() -> None:
    """The parts are (3, 0, 0) and (0, 1, 0), so ||o||^2 = 10 and the shares are 9/10 and 1/10."""
    pattern = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    values = torch.tensor([[[12.0, 0.0], [0.0, 2 / 3]]])
    weight = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]])
    found = contribution(pattern, values, weight)
    assert torch.allclose(found.values, torch.tensor([[[1.0, 0.0], [0.9, 0.1]]]))
    assert torch.allclose(found.squared, torch.tensor([[144.0, 10.0]]))
    assert not found.clipped.any()
    cheap = contribution(pattern, values)  # before W_O the second part is (0, 1/2)
    assert torch.allclose(cheap.values[0, 1], torch.tensor([9 / 9.25, 0.25 / 9.25]))


def test_a_token_that_opposes_the_output_is_negative_and_the_other_above_one() -> None:
    pattern, weight = torch.tensor([[[0.5, 0.5]]]), torch.eye(2)[None]
    found = contribution(pattern, torch.tensor([[[4.0, 0.0], [-2.0, 0.0]]]), weight)
    assert torch.allclose(found.values, torch.tensor([[[2.0, -1.0]]]))


def test_two_heads_by_hand() -> None:
    """Head 0 adds (1, 0) and (2, 0), head 1 adds (0, 1) and nothing: the layer writes (3, 1)."""
    pattern = torch.tensor([[[0.5, 0.5]], [[1.0, 0.0]]])
    values = torch.tensor([[[2.0], [4.0]], [[1.0], [7.0]]])
    weight = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    layer = contribution(pattern, values, weight, form="layer")
    assert torch.allclose(layer.values, torch.tensor([[(3 + 1) / 10, 6 / 10]]))
    joint = contribution(pattern, values, weight, form="joint")
    assert torch.allclose(joint.values, torch.tensor([[[0.3, 0.6]], [[0.1, 0.0]]]))
    assert torch.allclose(head_importance(pattern, values, weight), torch.tensor([[0.9], [0.1]]))


@pytest.mark.parametrize("kv", [1, 2, 4])
def test_every_form_equals_the_loops(kv: int) -> None:
    pattern, values, weight = case(3, kv=kv)
    parts = parts_of(pattern, values, weight)
    own = parts.sum(2)
    both = own.sum(0)
    naive = {
        "head": torch.einsum("hqkd,hqd->hqk", parts, own) / own.square().sum(-1)[..., None],
        "layer": torch.einsum("hqkd,qd->qk", parts, both) / both.square().sum(-1)[:, None],
        "joint": torch.einsum("hqkd,qd->hqk", parts, both) / both.square().sum(-1)[:, None],
    }
    for form, expected in naive.items():
        found = contribution(pattern, values, weight, form=form)  # type: ignore[arg-type]
        assert not found.clipped.any()
        assert torch.allclose(found.values, expected, atol=1e-12), form


def test_it_equals_the_gram_form() -> None:
    pattern, values, weight = case(4)
    u = torch.stack([values[h // 2] @ weight[h] for h in range(4)])
    crossed = pattern * (pattern @ (u @ u.mT))
    gram = crossed / crossed.sum(-1, keepdim=True)
    assert torch.allclose(contribution(pattern, values, weight).values, gram, atol=1e-12)


@pytest.mark.parametrize("form", ["head", "layer", "joint"])
def test_with_the_stream_every_form_equals_the_loops(form: str) -> None:
    pattern, values, weight = case(5)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    parts = parts_of(pattern, values, weight)
    own = parts.sum(2)
    target = own + x if form == "head" else (own.sum(0) + x).expand_as(own)
    expected = torch.einsum("hqkd,hqd->hqk", parts, target) / target.square().sum(-1)[..., None]
    expected = expected.sum(0) if form == "layer" else expected
    share = torch.einsum("qd,hqd->hq", x, target) / target.square().sum(-1)
    found = contribution(pattern, values, weight, form=form, stream=x)  # type: ignore[arg-type]
    assert found.stream is not None
    assert torch.allclose(found.values, expected, atol=1e-12)
    assert torch.allclose(found.stream, share if form == "head" else share[0], atol=1e-12)
    over_heads = found.values.sum(0) if form == "joint" else found.values
    assert torch.allclose(over_heads.sum(-1) + found.stream, torch.ones((), dtype=torch.float64), atol=1e-12)


@given(
    seed=st.integers(0, 10**6), groups=st.integers(1, 3), kv=st.integers(1, 3), n=st.integers(1, 7),
    d_v=st.integers(1, 4), d=st.integers(1, 6), space=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_shares_sum_to_one_or_are_bounded(
    seed: int, groups: int, kv: int, n: int, d_v: int, d: int, space: bool
) -> None:
    pattern, values, weight = case(seed, groups * kv, kv, n, d_v, d)
    eps = 1e-3
    for form in ("head", "layer", "joint"):
        found = contribution(pattern, values, weight if space else None, form=form, eps=eps)  # type: ignore[arg-type]
        total = found.values.sum(-1).sum(0) if form == "joint" else found.values.sum(-1)
        assert torch.allclose(total[~found.clipped], torch.ones((), dtype=torch.float64), atol=1e-9)
        assert (total[found.clipped] < 1).all()
        lengths = found.values.abs().sum(-1).sum(0) if form == "joint" else found.values.abs().sum(-1)
        assert (lengths <= eps**-0.5 * (1 + 1e-9)).all()


def test_parts_that_cancel_are_clipped_and_said_so() -> None:
    pattern, weight = torch.tensor([[[0.5, 0.5]]]), torch.eye(2)[None]
    values = torch.tensor([[[2.0, 0.0], [-2.0, 1e-3]]])
    found = contribution(pattern, values, weight)
    assert found.clipped.all()
    assert found.values.sum() < 1
    loose = contribution(pattern, values, weight, eps=1e-12)
    assert not loose.clipped.any()
    assert loose.values.sum() == pytest.approx(1.0, abs=1e-3)
    assert loose.values.abs().max() > found.values.abs().max()


def test_clipping_does_not_depend_on_units() -> None:
    pattern, weight = torch.tensor([[[0.5, 0.5]]]), torch.eye(2)[None]
    for gap, clipped in ((0.01, True), (0.1, False)):  # ||o|| / S is about gap / 2, the limit is sqrt(eps) = 0.01
        values = torch.tensor([[[2.0, 0.0], [-2.0, 2 * gap]]])
        for scale in (1e-3, 1.0, 1e3):
            assert bool(contribution(pattern, scale * values, weight).clipped) is clipped


def test_a_stream_that_cancels_the_output_counts_as_a_part() -> None:
    """||x + o|| = 0.015 is above 0.01 of the output's length, but below 0.01 of the lengths of both."""
    pattern, values, weight = torch.ones(1, 1, 1), torch.tensor([[[1.0, 0.0]]]), torch.eye(2)[None]
    for form in ("head", "layer", "joint"):
        found = contribution(pattern, values, weight, form=form, stream=torch.tensor([[-0.985, 0.0]]))  # type: ignore[arg-type]
        assert found.clipped.all(), form


def test_a_head_that_writes_nothing_gives_zeros() -> None:
    pattern, values, weight = case(1)
    found = contribution(pattern, torch.zeros_like(values), weight)
    assert torch.equal(found.values, torch.zeros_like(found.values))


def test_value_space_is_output_space_where_the_output_map_keeps_lengths_and_heads_apart() -> None:
    pattern, values, _ = case(2, heads=2, kv=2, d_v=3)
    weight = torch.eye(6, dtype=torch.float64).reshape(2, 3, 6)
    for form in ("head", "layer", "joint"):
        cheap = contribution(pattern, values, form=form)  # type: ignore[arg-type]
        assert torch.allclose(cheap.values, contribution(pattern, values, weight, form=form).values)  # type: ignore[arg-type]


def test_lengths_of_transformed_values() -> None:
    _, values, weight = case(7)
    u = torch.stack([values[h // 2] @ weight[h] for h in range(4)])
    assert torch.allclose(transformed_lengths(values, weight), u.norm(dim=-1))


def test_what_does_not_fit_is_refused() -> None:
    pattern, values, weight = case(0)
    with pytest.raises(ShapeMismatch, match="one layer"):
        contribution(pattern[None], values, weight)
    with pytest.raises(ShapeMismatch, match="d_model"):
        contribution(pattern, values, weight.mT)
    with pytest.raises(ShapeMismatch, match="query, d_model"):
        contribution(pattern, values, weight, stream=torch.zeros(5, 6))
    with pytest.raises(BadInput, match="evenly"):
        contribution(pattern[:3], values, weight[:3])
    with pytest.raises(BadInput, match="after W_O"):
        contribution(pattern, values, stream=torch.zeros(6, 5))
    with pytest.raises(BadInput, match="explode"):
        contribution(pattern, values, weight, eps=0.0)
    with pytest.raises(UnknownName, match="'layer'"):
        contribution(pattern, values, weight, form="layers")  # type: ignore[arg-type]
