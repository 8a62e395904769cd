import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mechanome.core import (
    BadInput,
    Interval,
    NotFinite,
    ShapeMismatch,
    TooFewRows,
    binomial,
    bootstrap,
    paired_bootstrap,
    spearman,
)
from mechanome.core import statistics as module

SKEWED = np.random.default_rng(3).exponential(size=40)


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize("statistic", ["mean", np.median, np.std])
def test_agrees_with_scipy_draw_for_draw(method, statistic):
    ours = bootstrap(SKEWED, statistic, resamples=2000, seed=5, method=method)
    function = np.mean if statistic == "mean" else statistic
    peer = stats.bootstrap(
        (SKEWED,), function, n_resamples=2000, method=method, rng=np.random.default_rng(5), vectorized=False
    )
    assert (ours.lo, ours.hi) == pytest.approx(tuple(peer.confidence_interval), rel=1e-9)
    assert ours.estimate == pytest.approx(function(SKEWED))
    assert (ours.n, ours.level, ours.method) == (40, 0.95, method)


def test_closed_jackknife_of_the_mean_is_the_general_one():
    groups = np.arange(40) // 3
    for labels in (None, groups):
        closed = bootstrap(SKEWED, "mean", groups=labels, resamples=500)
        general = bootstrap(SKEWED, np.mean, groups=labels, resamples=500)
        assert (closed.lo, closed.hi) == pytest.approx((general.lo, general.hi), rel=1e-9)


def test_pieces_do_not_change_the_numbers(monkeypatch):
    whole = bootstrap(SKEWED, np.median, resamples=300)
    monkeypatch.setattr(module, "_CELLS", 7 * len(SKEWED) + 1)
    assert bootstrap(SKEWED, np.median, resamples=300) == whole


def coverage(make, truth, trials=300, **options):
    """Share of intervals that hold the truth, over synthetic data sets with known seeds."""
    hits = sum(
        truth in bootstrap(*make(np.random.default_rng(s)), resamples=400, seed=s, **options) for s in range(trials)
    )
    return hits / trials


def test_coverage_of_independent_rows():
    assert 0.90 <= coverage(lambda rng: (rng.normal(2.0, 1.0, 40),), 2.0) <= 0.98
    assert 0.74 <= coverage(lambda rng: (rng.normal(2.0, 1.0, 40),), 2.0, level=0.8) <= 0.86


def test_clusters_need_the_cluster_bootstrap():
    groups = np.repeat(np.arange(30), 10)

    def correlated(rng):
        return (rng.normal(size=30)[groups] + 0.3 * rng.normal(size=300),)

    assert coverage(correlated, 0.0, trials=200) < 0.6
    assert coverage(correlated, 0.0, trials=200, groups=groups) > 0.88


def test_groups_are_the_units_whatever_their_labels():
    values = np.arange(12.0)
    named = bootstrap(values, groups=list("aaabbbcccddd"), resamples=200)
    assert named == bootstrap(values, groups=np.repeat([9, 2, 7, 1], 3), resamples=200)
    assert named.n == 4
    possible = {np.mean(draw) for draw in np.array(np.meshgrid(*[[1.0, 4.0, 7.0, 10.0]] * 4)).reshape(4, -1).T}
    exact = bootstrap(values, groups=list("aaabbbcccddd"), resamples=200, method="percentile", level=0.999)
    assert min(possible) <= exact.lo < exact.hi <= max(possible)


def test_equal_values_have_an_interval_without_width():
    interval = bootstrap([0.1] * 7)
    assert interval.lo == interval.hi == pytest.approx(0.1)
    assert not interval.has_spread
    assert "bca undefined" in interval.method
    assert bootstrap([0.1, 0.2]).has_spread


def test_undefined_bca_says_that_it_is_percentile():
    values = np.array([0.0] * 30 + [1.0])
    top = bootstrap(values, np.min, resamples=500)
    assert top.method == "percentile; bca undefined"


def test_undefined_resamples_are_left_out_and_counted():
    labels = np.array([0.0] * 6 + [1.0] * 4)

    def odds(rows):
        return rows.sum() / (rows == 0).sum() if 0 < rows.sum() < len(rows) else np.nan

    interval = bootstrap(labels, odds, resamples=2000)
    assert "of 2000 resamples undefined" in interval.method
    assert np.isfinite([interval.lo, interval.hi]).all()
    with pytest.raises(NotFinite, match="resamples"):
        bootstrap([0.0, 0.0, 0.0, 1.0], odds)


@pytest.mark.parametrize("values", [[1.0, np.nan, 2.0], [np.inf, 1.0], torch.tensor([1.0, float("nan")])])
def test_nan_is_refused_with_its_place(values):
    with pytest.raises(NotFinite, match=r"first at \[[01]\]"):
        bootstrap(values)


def test_too_few_rows_or_groups():
    for call in (lambda: bootstrap([1.0]), lambda: bootstrap([]), lambda: bootstrap([1.0, 2.0], groups=[0, 0])):
        with pytest.raises(TooFewRows):
            call()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (BadInput, lambda: bootstrap([1, 2, 3], level=95)),
        (BadInput, lambda: bootstrap([1, 2, 3], method="bcb")),
        (BadInput, lambda: bootstrap([1, 2, 3], resamples=0)),
        (BadInput, lambda: bootstrap(["a", "b"])),
        (BadInput, lambda: bootstrap(3.0)),
        (ShapeMismatch, lambda: bootstrap(np.ones((4, 2)))),
        (ShapeMismatch, lambda: bootstrap([1, 2, 3], groups=[1, 2])),
        (ShapeMismatch, lambda: paired_bootstrap([1, 2, 3], [1, 2])),
        (ShapeMismatch, lambda: spearman([1, 2, 3], [1, 2])),
        (NotFinite, lambda: spearman([1, 1, 1], [1, 2, 3])),
        (TooFewRows, lambda: binomial(0, 0)),
        (BadInput, lambda: binomial(5, 4)),
    ],
)
def test_refusals(error, call):
    with pytest.raises(error):
        call()


def test_tensors_of_any_dtype_and_grad():
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    assert bootstrap(values).estimate == pytest.approx(7 / 3)
    assert bootstrap(values.bfloat16()).estimate == pytest.approx(7 / 3)


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 10, 50)
    paired = paired_bootstrap(shared + 1 + rng.normal(0, 0.1, 50), shared)
    assert paired.lo > 0.9
    assert paired.hi < 1.1


@pytest.mark.parametrize(
    ("successes", "n", "lo", "hi"),
    [(0, 10, 0.0, 0.30850), (10, 10, 0.69150, 1.0), (4, 20, 0.05733, 0.43661), (81, 263, 0.25270, 0.36762)],
)
def test_clopper_pearson_known_answers(successes, n, lo, hi):
    interval = binomial(successes, n)
    assert (interval.lo, interval.hi) == pytest.approx((lo, hi), abs=5e-5)
    peer = stats.binomtest(successes, n).proportion_ci(method="exact")
    assert (interval.lo, interval.hi) == pytest.approx((peer.low, peer.high), abs=1e-9)


@given(st.integers(1, 60), st.floats(0.01, 0.99))
@settings(max_examples=40, deadline=None)
def test_clopper_pearson_never_covers_less_than_its_level(n, truth):
    covered = [truth in binomial(k, n, 0.9) for k in range(n + 1)]
    assert stats.binom.pmf(np.arange(n + 1), n, truth)[covered].sum() >= 0.9 - 1e-9


def test_spearman_known_answers():
    x = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    y = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    interval = spearman(x, y, resamples=500)
    assert interval.estimate == pytest.approx(-29 / 165)
    assert interval.lo < -29 / 165 < interval.hi
    tied = spearman([1, 1, 2, 3, 4, 4], [2, 1, 2, 5, 5, 6], resamples=500)
    assert tied.estimate == pytest.approx(stats.spearmanr([1, 1, 2, 3, 4, 4], [2, 1, 2, 5, 5, 6]).statistic)
    assert spearman(np.arange(9), np.arange(9) ** 3).estimate == pytest.approx(1.0)


def test_spearman_interval_is_that_of_the_general_bootstrap():
    rng = np.random.default_rng(1)
    x = rng.normal(size=25)
    y = x + rng.normal(size=25)
    ours = spearman(x, y, resamples=300, seed=2)
    general = bootstrap(
        np.stack([x, y], 1), lambda p: stats.spearmanr(p[:, 0], p[:, 1]).statistic, resamples=300, seed=2
    )
    assert (ours.lo, ours.hi) == pytest.approx((general.lo, general.hi), rel=1e-9)
    assert spearman(x, y, resamples=300, groups=np.arange(25) // 5).n == 5


def test_interval_prints_and_tabulates():
    interval = Interval(0.81234, 0.7, 0.9, 12)
    assert str(interval) == "0.8123 [0.7, 0.9] (95 %, n=12)"
    assert interval.table("accuracy").records()[0]["quantity"] == "accuracy"
    assert 0.8 in interval
    assert 0.95 not in interval
