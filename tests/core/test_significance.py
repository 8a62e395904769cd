from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mechanome.core import (
    BadInput,
    NotFinite,
    ShapeMismatch,
    TooFewRows,
    UnknownName,
    benjamini_hochberg,
    holm,
    label_permutation_test,
    permutation_test,
)

A, B = np.array([5.0, 7.0, 6.5, 8.0]), np.array([4.0, 5.5, 6.0])


def exact(alternative):
    """The p-value over all 35 ways to choose which four are A."""
    pooled, rows = np.concatenate([A, B]), set(range(7))
    draws = [pooled[list(c)].mean() - pooled[list(rows - set(c))].mean() for c in combinations(range(7), 4)]
    observed = A.mean() - B.mean()
    reach = {
        "greater": lambda d: d >= observed - 1e-12,
        "less": lambda d: d <= observed + 1e-12,
        "two-sided": lambda d: abs(d) >= observed - 1e-12,
    }
    return np.mean([reach[alternative](d) for d in draws])


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_agrees_with_full_enumeration(alternative):
    result = permutation_test(A, B, alternative=alternative, resamples=20_000)
    assert result.p == pytest.approx(exact(alternative), abs=0.012)
    assert result.observed == pytest.approx(A.mean() - B.mean())
    assert result.n == 7


def test_paired_agrees_with_all_sign_flips():
    difference = np.array([1.0, 2.0, -0.5, 3.0, 0.7])
    flips = [np.mean(np.array(signs) * difference) for signs in product([1, -1], repeat=5)]
    expected = np.mean(np.array(flips) >= difference.mean() - 1e-12)
    for statistic in ("mean", np.mean):
        result = permutation_test(
            difference + 4, np.full(5, 4.0), statistic, paired=True, alternative="greater", resamples=20_000
        )
        assert result.p == pytest.approx(expected, abs=0.012)
        assert result.n == 5


def test_the_smallest_p_is_one_over_shuffles_plus_one():
    result = permutation_test(np.arange(30) + 100.0, np.arange(30.0), resamples=99)
    assert result.p == 1 / 100
    assert permutation_test([1.0, 1.0, 1.0], [1.0, 1.0], resamples=99).p == 1.0


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.2), (1e6 + 0.1, 1e6 + 0.2), (-3e9, -3e9 + 0.7)])
def test_rounding_does_not_split_ties(low, high):
    a, b = np.array([1] * 7 + [0] * 4), np.array([1] * 3 + [0] * 8)
    counted = permutation_test(a, b, resamples=3000)
    assert permutation_test(low + (high - low) * a, low + (high - low) * b, resamples=3000).p == counted.p


def test_summation_order_does_not_split_ties():
    values = np.where([1] * 7 + [0] * 4 + [1] * 3 + [0] * 8, 0.7, 0.1)
    for statistic in (np.mean, np.sum, lambda rows: sum(rows / 3)):
        counted = permutation_test(np.round(values[:11] * 10), np.round(values[11:] * 10), np.sum, resamples=3000)
        assert permutation_test(values[:11], values[11:], statistic, resamples=3000).p == counted.p


def test_p_values_are_uniform_under_the_null():
    rng = np.random.default_rng(0)
    p = [permutation_test(rng.normal(size=8), rng.normal(size=8), resamples=99, seed=s).p for s in range(300)]
    assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.045)
    assert np.mean(np.array(p) <= 0.5) == pytest.approx(0.5, abs=0.08)


def test_labels_shuffled_within_strata():
    strata = np.repeat([0, 1], 20)
    labels = strata.copy()
    values = strata * 10.0 + np.random.default_rng(0).normal(size=40)

    def separation(order):
        return values[order == 1].mean() - values[order == 0].mean()

    assert label_permutation_test(separation, labels, resamples=199).p == 1 / 200
    assert label_permutation_test(separation, labels, within=strata, resamples=199).p == 1.0


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TooFewRows, lambda: permutation_test([1.0], [1.0, 2.0])),
        (ShapeMismatch, lambda: permutation_test([1.0, 2.0], [1.0, 2.0, 3.0], paired=True)),
        (NotFinite, lambda: permutation_test([1.0, np.nan], [1.0, 2.0])),
        (NotFinite, lambda: label_permutation_test(lambda labels: np.nan, [0, 1], resamples=3)),
        (UnknownName, lambda: permutation_test([1.0, 2.0], [1.0, 2.0], alternative="bigger")),
        (BadInput, lambda: permutation_test([1.0, 2.0], [1.0, 2.0], resamples=0)),
        (TooFewRows, lambda: label_permutation_test(np.mean, [1])),
        (ShapeMismatch, lambda: label_permutation_test(np.mean, [1, 0], within=[1])),
        (BadInput, lambda: holm([0.5, 1.2])),
        (BadInput, lambda: benjamini_hochberg([-0.1])),
    ],
)
def test_refusals(error, call):
    with pytest.raises(error):
        call()


def test_holm_known_answer():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_benjamini_hochberg_is_scipys(p):
    assert benjamini_hochberg(p) == pytest.approx(stats.false_discovery_control(p))
    assert (holm(p) >= benjamini_hochberg(p) - 1e-12).all()
