"""Variance of effects: what is planted is found, and the parts add up to what resampling measures."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from mechanome.circuits.similarity import chance_level
from mechanome.circuits.variance import PARTS, simulated, variance_decomposition
from mechanome.circuits.variation import required_n, split_half, variation
from mechanome.core import BadInput, NotFinite, ShapeMismatch, TooFewRows


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers with exactly mean 0 and variance 1 (over n) in each column, and no correlation of two draws."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x - x.mean(0)) / x.std(0, correction=0)


# One component over inputs ----------------------------------------------------------------------------------


def test_known_coefficients_of_variation_are_found() -> None:
    known = torch.tensor([0.25, 0.5, 1.0, 2.0], dtype=torch.float64)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    x = signs * (1 + known * torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    found = variation(x)
    assert torch.allclose(found.cv, known, rtol=0.05) and torch.allclose(found.snr, 1 / known, rtol=0.05)
    share = torch.special.ndtr(1 / known)
    assert torch.allclose(found.agree, share, atol=0.01) and not bool(found.unsettled.any())
    assert found.median_cv(2) == pytest.approx(float(found.cv[found.top(2)].mean()))


def test_hand_made_effects() -> None:
    found = variation(torch.tensor([[1.0, 2.0, 0.0], [3.0, -2.0, 0.0], [2.0, 0.0, 0.0]]))
    assert found.cv[0] == 0.5 and found.agree[0] == 1 and math.isinf(found.cv[1]) and found.cv[2].isnan()
    assert found.unsettled.tolist() == [False, True, False]
    assert found.top(1).tolist() == [0]
    rows = found.table().records()
    assert rows[0]["inputs for 10%"] == 97 and rows[1]["inputs for 10%"] is None
    assert rows[1]["remark"] == "sign not settled"
    assert json.loads(json.dumps(found.record(2)))["unsettled"] == 1


def test_so_many_inputs_are_needed() -> None:
    assert required_n(1.0, 0.1) == 385 and required_n(0.0) == 1 and required_n(2.0, 0.5, 0.9) == 44
    assert math.isinf(required_n(math.inf))
    cv, eps = 0.8, 0.2
    n = int(required_n(cv, eps))
    means = 1 + cv * torch.randn(4000, n, generator=torch.Generator().manual_seed(1)).mean(1)
    assert float(((means - 1).abs() <= eps).double().mean()) == pytest.approx(0.95, abs=0.015)
    fewer = 1 + cv * torch.randn(4000, n // 2, generator=torch.Generator().manual_seed(1)).mean(1)
    assert float(((fewer - 1).abs() <= eps).double().mean()) < 0.88


def test_choosing_flatters_and_the_other_half_tells() -> None:
    """Without any true mean, the largest means of a few inputs look steadier than they are."""
    found = split_half(torch.randn(16, 300, generator=torch.Generator().manual_seed(0)), 10)
    assert found.same < 1.5 < 3 < found.other
    steady = split_half(5 + torch.randn(200, 20, generator=torch.Generator().manual_seed(0)), 10)
    assert steady.same == pytest.approx(steady.other, rel=0.05) == pytest.approx(0.2, rel=0.1)


# Where variance comes from ----------------------------------------------------------------------------------


def planted(n: int = 400, components: int = 50) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Effects of variance 4; a method with bias 1; one with bias -2 and an error of variance 9 that shrinks effects."""
    mean = torch.linspace(0, 10, components, dtype=torch.float64)
    base, noise = normal(n, components), normal(n, components, seed=1)
    noise = noise - (noise * base).mean(0) * base
    noise = noise / noise.std(0, correction=0)
    x = mean + 2 * base
    return x, {"exact": x, "biased": x + 1, "noisy": x - 2 + 3 * (0.8 * noise - 0.6 * base)}


def test_planted_parts_are_found_and_sum_to_the_total() -> None:
    x, methods = planted()
    found = variance_decomposition(x, methods, 10, samples=2000)
    biases = torch.tensor([0.0, 1.0, -2.0])
    expected = {
        "intrinsic": 4 / 10,
        "error": 9 / 3 / 10,
        "covariance": 2 * (2 * 3 * -0.6) / 3 / 10,
        "method": float(biases.var(correction=0)),
        "bias": float(biases.mean() ** 2),
    }
    assert tuple(found.parts) == PARTS and dict(found.parts) == pytest.approx(expected)
    assert found.intrinsic == pytest.approx(4) and found.sampling == pytest.approx(0.4, rel=0.05)
    assert found.explained == pytest.approx(1, abs=0.02)
    assert sum(found.anova.values()) == pytest.approx(1)
    noisy = found.approximations["noisy"]
    assert noisy.pearson == pytest.approx(1), "means differ by a constant"
    assert noisy.bias == pytest.approx(2) and noisy.error == pytest.approx(3)
    assert found.approximations["exact"].pearson == pytest.approx(1) == found.approximations["exact"].per_input
    assert 0.5 < noisy.per_input < noisy.pearson
    assert json.loads(json.dumps(found.record()))["explained"] == pytest.approx(found.explained)
    assert len(found.table()) == len(PARTS) + 5 and len(found.approximation_table()) == 3


def test_two_ways_of_variance() -> None:
    x = normal(100, 20)
    only_samples = variance_decomposition(x, {"a": x, "b": x}, samples=300).anova
    assert only_samples["sampling"] == pytest.approx(1) and only_samples["method"] == pytest.approx(0, abs=1e-12)
    constant = torch.zeros(100, 20, dtype=torch.float64)
    only_methods = variance_decomposition(constant, {"a": constant, "b": constant + 1}, samples=300).anova
    assert only_methods["method"] == pytest.approx(1)
    both = variance_decomposition(x, {"a": x, "b": -x}, samples=300).anova
    assert both["interaction"] == pytest.approx(1, abs=0.02)


def test_small_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, methods = planted(40, 12)
    whole = variance_decomposition(x, methods, samples=100, sizes=[4])
    monkeypatch.setattr("mechanome.circuits.variance._CELLS", 700)
    monkeypatch.setattr("mechanome.circuits.resampling._CELLS", 30)
    monkeypatch.setattr("mechanome.circuits.similarity._CELLS", 30)
    pieces = variance_decomposition(x, methods, samples=100, sizes=[4])
    assert pieces.total == pytest.approx(whole.total) and pieces.anova == pytest.approx(dict(whole.anova))
    assert pieces.structural[0].whole == pytest.approx(whole.structural[0].whole)


def test_simulated_scores_have_the_mean_and_covariance_of_a_sample() -> None:
    x = normal(9, 4) @ torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 2, 1], [0, 0, 0, 1]]).double() + 3
    found = simulated(x, 5, samples=40_000)
    assert torch.allclose(found.mean(0), x.mean(0), atol=0.03)
    assert torch.allclose(found.T.cov(), x.T.cov(correction=0) / 5, atol=0.02)


def test_the_cut_of_normal_effects_is_what_resampling_measures() -> None:
    x = torch.linspace(0, 1.5, 40, dtype=torch.float64) + normal(60, 40)
    found = variance_decomposition(x, {"exact": x}, 20, sizes=[5, 20], samples=600)
    for each in found.structural:
        assert each.simulated == pytest.approx(each.measured, abs=0.03)
        assert each.noise + each.cut + each.rest == pytest.approx(1 - each.measured)
        assert each.simulated > chance_level(each.size, 40) + 0.1
    assert [row["size"] for row in found.structural_table().records()] == [5, 20]


X = normal(6, 8)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "one input": (lambda: variation(X[:1]), TooFewRows, "one input shows none"),
    "one input to split": (lambda: variance_decomposition(X[:1], {"a": X[:1]}), TooFewRows, "at least two"),
    "three inputs in halves": (lambda: split_half(X[:3], 2), TooFewRows, "no two in each"),
    "too many": (lambda: variation(X).top(9), BadInput, "there are 8"),
    "eps": (lambda: required_n(1.0, 0.0), BadInput, "no relative error"),
    "level": (lambda: required_n(1.0, 0.1, 1.0), BadInput, "no level"),
    "cv": (lambda: required_n(-1.0), BadInput, "below 0"),
    "no method": (lambda: variance_decomposition(X, {}), BadInput, "there are none"),
    "other inputs": (lambda: variance_decomposition(X, {"a": X[:5]}), ShapeMismatch, "method 'a'"),
    "other components": (lambda: variance_decomposition(X, {"a": X[:, :5]}), ShapeMismatch, "method 'a'"),
    "everything": (lambda: variance_decomposition(X, {"a": X}, sizes=[8]), BadInput, "leaves nothing out"),
    "constant": (lambda: variance_decomposition(0 * X, {"a": 0 * X}), NotFinite, "nothing varies"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_be_answered_is_refused(case: str) -> None:
    act, error, said = REFUSED[case]
    with pytest.raises(error, match=said):
        act()
