import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import small

from mechanome.activations.accumulators import (
    CoActivation,
    Correlation,
    Density,
    DiffMean,
    Fired,
    Moments,
    PerSite,
    Quantiles,
    TopExamples,
)
from mechanome.core.errors import (
    BadInput,
    BudgetTooSmall,
    CorruptFile,
    NotFinite,
    ShapeMismatch,
    TooFewRows,
    UnknownSite,
)
from mechanome.core.state import flatten, unflatten
from mechanome.engine.generation import generate

UNITS = 4

# How rows (with their numbers, classes and groups) enter each accumulator, and what it says about them.
EXACT = {
    "top": (
        lambda: TopExamples(3),
        lambda a, x, i, y: a.update(x, ids=i, groups=i // 3),
        ("values", "ids", "groups"),
    ),
    "density": (lambda: Density(2), lambda a, x, i, y: a.update(x), ("counts", "edges", "fired", "frequency")),
    "coactivation": (lambda: CoActivation(), lambda a, x, i, y: a.update(x), ("counts",)),
    "chosen": (lambda: CoActivation([3, 1]), lambda a, x, i, y: a.update(x), ("counts",)),
    "extremes": (Moments, lambda a, x, i, y: a.update(x), ("least", "most")),
    "quantiles": (lambda: Quantiles(3), lambda a, x, i, y: a.update(x), ()),
}
ROUNDED = {
    "moments": (Moments, lambda a, x, i, y: a.update(x), ("mean", "variance", "second")),
    "correlation": (Correlation, lambda a, x, i, y: a.update(x, x[:, :2] + y[:, None]), ("covariance",)),
    "itself": (Correlation, lambda a, x, i, y: a.update(x), ("covariance",)),
    "diff-mean": (DiffMean, lambda a, x, i, y: a.update(x, y), ("counts",)),
}
ALL = EXACT | ROUNDED


def results(name, accumulator):
    found = [torch.as_tensor(getattr(accumulator, p)).double() for p in ALL[name][2]]
    if name == "quantiles":
        found += [accumulator.estimate(q) for q in (0, 0.1, 0.5, 0.9, 1)]
    if name == "diff-mean" and min(accumulator.counts):
        found.append(accumulator.difference)
    return found


@st.composite
def splits(draw):
    """Rows with ties, zeros and constant units, a split of them, and an order of merging."""
    rows = draw(st.integers(1, 24))
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    x = rng.choice([0.0, 0.5, 1.0, -2.0], size=(rows, UNITS)) + draw(st.sampled_from([0.0, 1e4])) * (rng.random() < 0.3)
    x *= rng.choice([1.0, 1e-3, 1.37], size=UNITS)
    x[:, 0] = draw(st.sampled_from([0.1, 0.0, 3.0]))
    part = np.array(draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)))
    order = draw(st.permutations(range(5)))
    return x, rng.integers(0, 2, rows), part, order, draw(st.lists(st.booleans(), min_size=5, max_size=5))


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60, deadline=None)
@given(case=splits())
def test_any_split_and_any_order_of_merging_give_the_same(name, case):
    x, y, part, order, nest = case
    make, feed, _ = ALL[name]
    ids = np.arange(len(x))
    whole = feed(make(), x, ids, y)
    pieces = [feed(make(), x[part == p], ids[part == p], y[part == p]) for p in order]
    while len(pieces) > 1:  # a tree of merges of any shape
        first = pieces.pop(0) if nest[len(pieces) % 5] else pieces.pop()
        pieces[0] = first.merge(pieces[0]) if nest[(len(pieces) + 1) % 5] else pieces[0].merge(first)
    assert pieces[0].rows == whole.rows == len(x)
    scale = max(1.0, np.abs(x).max()) ** 2
    for got, expected in zip(results(name, pieces[0]), results(name, whole), strict=True):
        if name in EXACT:
            assert torch.equal(got, expected)
        else:
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12 * scale)


@settings(max_examples=40, deadline=None)
@given(case=splits())
def test_fired_needs_only_the_clock_of_each_piece(case):
    x, _, _, order, _ = case
    cuts = np.linspace(0, len(x), 6).astype(int)
    whole = Fired().update(x, 0)
    merged = Fired()
    for p in order:
        merged.merge(Fired().update(x[cuts[p] : cuts[p + 1]], int(cuts[p])))
    assert torch.equal(merged.counts, whole.counts) and torch.equal(merged.last, whole.last)
    assert merged.clock == whole.clock == len(x)


@pytest.mark.parametrize("name", ALL)
def test_a_state_goes_through_files_and_goes_on_the_same(name):
    make, feed, _ = ALL[name]
    rng = np.random.default_rng(0)
    x, y, ids = rng.normal(size=(20, UNITS)), rng.integers(0, 2, 20), np.arange(20)
    half = feed(make(), x[:12], ids[:12], y[:12])
    tensors, skeleton = flatten(half.state_dict())
    again = make()
    again.load_state_dict(unflatten(tensors, json.loads(json.dumps(skeleton))))
    for a in (half, again):
        feed(a, x[12:], ids[12:], y[12:])
    assert again.rows == 20
    assert all(torch.equal(p, q) for p, q in zip(results(name, half), results(name, again), strict=True))


def test_a_state_is_a_copy():
    a = CoActivation().update(np.ones((2, 2)))
    state = a.state_dict()
    a.update(np.ones((2, 2)))
    b = CoActivation()
    b.load_state_dict(state)
    b.update(np.ones((1, 2)))
    assert state["fields"]["rows"] == 2 and state["fields"]["_counts"].tolist() == [[2, 2], [2, 2]]


def test_moments_by_hand_and_with_a_large_mean():
    x = torch.tensor([[1.0, 1e8], [3.0, 1e8 + 1], [5.0, 1e8 + 2]], dtype=torch.float64)
    a = Moments()
    for row in x:
        a.update(row[None])
    assert a.mean.tolist() == [3.0, 1e8 + 1] and a.variance.tolist() == pytest.approx([8 / 3, 2 / 3], rel=1e-9)
    assert a.second[0].item() == pytest.approx(35 / 3) and a.std[0].item() == pytest.approx((8 / 3) ** 0.5)


def test_a_unit_that_never_varies_has_exactly_no_variance():
    a = Moments()
    for rows in (3, 7, 11):
        a.update(np.full((rows, 1), 0.1))
    assert a.variance.item() == 0.0 and a.mean.item() == 0.1


def test_neither_in_one_batch():
    for rows in range(1, 40):
        a = Moments().update(np.full((rows, 1), 0.1))
        assert a.variance.item() == 0.0 and a.mean.item() == 0.1


def codes(x):
    """CSR codes of dense rows."""
    row, unit = np.nonzero(x)
    offsets = np.concatenate([[0], np.cumsum((x != 0).sum(1))])
    return SimpleNamespace(
        indices=torch.from_numpy(unit),
        values=torch.from_numpy(x[row, unit]),
        offsets=torch.from_numpy(offsets),
        width=x.shape[1],
    )


def test_sparse_codes_give_what_their_dense_rows_give():
    rng = np.random.default_rng(1)
    x = rng.normal(2, 1, (50, 9)) * (rng.random((50, 9)) < 0.2)
    x[:, 4] = 0.0
    y, ids = rng.normal(5, 1, (50, 2)), np.arange(50)
    pairs = [
        (Moments().update(codes(x)), Moments().update(x), ("mean", "variance", "least", "most")),
        (Density().update(codes(x)), Density().update(x), ("counts", "edges", "frequency")),
        (Correlation().update(codes(x), y), Correlation().update(x, y), ("covariance", "correlation")),
        (CoActivation().update(codes(x)), CoActivation().update(x), ("counts",)),
        (Fired().update(codes(x), 3), Fired().update(x, 3), ("counts", "last")),
        (TopExamples(4).update(codes(x), ids), TopExamples(4).update(x, ids), ("values", "ids")),
    ]
    for sparse, full, names in pairs:
        for name in names:
            torch.testing.assert_close(
                getattr(sparse, name), getattr(full, name), rtol=1e-12, atol=1e-12, equal_nan=True
            )


def test_correlation_is_numpys_and_undefined_where_nothing_varied():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    x[:, 1], x[:, 2] = 0.1, 1e5 + 1e-3 * y
    a = Correlation()
    for start in range(0, 60, 7):
        a.update(x[start : start + 7], y[start : start + 7])
    found = a.correlation[:, 0]
    assert found[0].item() == pytest.approx(np.corrcoef(x[:, 0], y)[0, 1], rel=1e-10)
    assert found[1].isnan() and found[2].item() == pytest.approx(1.0, abs=1e-6)
    assert a.x.rows == a.y.rows == 60 and a.covariance.shape == (3, 1)


def test_correlation_of_a_code_that_never_varied_is_undefined():
    x, y = np.full((30, 1), 0.3), np.random.default_rng(0).normal(size=(30, 8))
    assert Correlation().update(codes(x), y).correlation.isnan().all()


def test_difference_of_means_and_effect_by_hand():
    a = DiffMean().update([[0.0], [2.0], [5.0], [7.0]], [0, 0, 1, 1])
    assert a.counts == (2, 2) and a.difference.tolist() == [5.0]
    assert a.effect.item() == pytest.approx(5 / 2**0.5)


def test_top_examples_break_ties_by_id_and_give_a_group_one_place():
    x = [[1.0], [3.0], [3.0], [2.0], [0.0], [-1.0]]
    a = TopExamples(3).update(x, ids=[5, 9, 4, 7, 1, 2])
    assert a.ids.tolist() == [[4, 9, 7]] and a.values.tolist() == [[3.0, 3.0, 2.0]]
    b = TopExamples(3).update(x, ids=[5, 9, 4, 7, 1, 2], groups=[0, 1, 1, 0, 2, 2])
    assert b.ids.tolist() == [[4, 7, -1]] and b.groups.tolist() == [[1, 0, -1]]


def test_an_equal_value_of_a_smaller_id_still_enters_a_full_list():
    a = TopExamples(1).update([[3.0]], ids=[9]).update([[3.0]], ids=[4]).update([[3.0]], ids=[6])
    assert a.ids.tolist() == [[4]]
    b = TopExamples(1).update([[3.0], [3.0]], ids=[4, 9], groups=[8, 2])
    assert b.ids.tolist() == [[4]] and b.groups.tolist() == [[8]]


def test_density_counts_what_lies_between_its_edges():
    a = Density(bits=1).update([[1.0], [1.49], [1.5], [2.0], [0.0], [-3.0]])
    assert a.edges.tolist() == [1.0, 1.5, 2.0, 3.0] and a.counts.tolist() == [[2, 1, 1]]
    assert a.fired.tolist() == [4] and a.frequency.tolist() == [4 / 6]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-(2.0**90), 2.0**90, width=32, allow_subnormal=False), min_size=1, max_size=60),
    st.floats(0, 1),
    st.integers(1, 8),
)
def test_quantiles_keep_their_stated_error(values, q, bits):
    sketch = Quantiles(bits).update(np.array(values))
    true = sorted(values)[int(q * (len(values) - 1))]
    assert abs(sketch.estimate(q).item() - true) <= sketch.relative_error * abs(true)
    assert sketch.estimate(0).item() == min(values) and sketch.estimate(1).item() == max(values)


def test_coactivation_by_hand():
    a = CoActivation().update([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0], [0.0, 3.0, -1.0], [1.0, 1.0, 0.0]])
    assert a.counts.tolist() == [[3, 2, 0], [2, 3, 0], [0, 0, 0]]
    assert a.jaccard[0, 1].item() == 0.5 and a.lift[0, 1].item() == pytest.approx(8 / 9)
    assert a.jaccard[2, 2].isnan()


def test_fired_tells_dead_units_from_rare_ones():
    a = Fired().update([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]], start=0).update([[0.0, 1.0, 0.0]] * 3, start=2)
    assert a.last.tolist() == [0, 4, -1] and a.counts.tolist() == [1, 5, 0] and a.clock == 5
    assert a.dead(4).tolist() == [True, False, True] and a.dead(5).tolist() == [False, False, True]
    assert a.frequency.tolist() == [0.2, 1.0, 0.0]


def test_per_site_makes_one_a_site_and_merges():
    a, b = PerSite(Moments), PerSite(Moments)
    a.update("z.1", torch.ones(2, 3, 4)).update("z.2", torch.zeros(1, 5))
    b.update("z.1", torch.zeros(6, 4))
    a.merge(b)
    assert list(a) == ["z.1", "z.2"] and len(a) == 2 and a["z.1"].rows == 12 and a["z.1"].mean.tolist() == [0.5] * 4
    again = PerSite(Moments)
    again.load_state_dict(a.state_dict())
    assert torch.equal(again["z.1"].mean, a["z.1"].mean)
    with pytest.raises(UnknownSite, match=r"z\.1"):
        a["z.3"]


def test_half_precision_counts_as_what_it_holds():
    x = torch.tensor([[0.1], [0.3]], dtype=torch.bfloat16)
    assert Moments().update(x).mean.item() == x.double().mean().item()


ONE = np.ones((2, 3))
WRONG = {
    "nan": (lambda: Moments().update([[np.nan]]), NotFinite),
    "too-large": (lambda: Moments().update([[1e200], [-1e200]]), NotFinite),
    "other-width": (lambda: Moments().update(ONE).update(np.ones((2, 4))), ShapeMismatch),
    "no-rows": (lambda: Moments().mean, TooFewRows),
    "other-kind": (lambda: Moments().merge(Density()), BadInput),
    "other-settings": (lambda: TopExamples(3).merge(TopExamples(4)), BadInput),
    "outcome-rows": (lambda: Correlation().update(ONE, [1.0]), ShapeMismatch),
    "codes-alone": (lambda: Correlation().update(codes(ONE)), ShapeMismatch),
    "one-row": (lambda: Correlation().update([[1.0]]).correlation, TooFewRows),
    "class-two": (lambda: DiffMean().update(ONE, [1, 2]), BadInput),
    "one-class": (lambda: DiffMean().update(ONE, [1, 1]).difference, TooFewRows),
    "class-rows": (lambda: DiffMean().update(ONE, [1]), ShapeMismatch),
    "no-place": (lambda: TopExamples(0), BadInput),
    "negative-id": (lambda: TopExamples().update(ONE, [-1, 0]), BadInput),
    "half-an-id": (lambda: TopExamples().update(ONE, [0.5, 1.0]), BadInput),
    "top-width": (lambda: TopExamples().update(ONE, [0, 1]).update(np.ones((1, 2)), [2]), ShapeMismatch),
    "density-bits": (lambda: Density(11), BadInput),
    "density-width": (lambda: Density().update(ONE).update([[1.0]]), ShapeMismatch),
    "quantile-bits": (lambda: Quantiles(0), BadInput),
    "quantile-q": (lambda: Quantiles().update(ONE).estimate(1.5), BadInput),
    "quantile-rows": (lambda: Quantiles().estimate(0.5), TooFewRows),
    "unit-twice": (lambda: CoActivation([1, 1]), BadInput),
    "unknown-unit": (lambda: CoActivation([3]).update(ONE), BadInput),
    "many-units": (lambda: CoActivation().update(codes(np.ones((1, 20_000)))), BudgetTooSmall),
    "clock": (lambda: Fired().update(ONE, -1), BadInput),
    "window": (lambda: Fired().update(ONE, 0).dead(0), BadInput),
    "broken-codes": (
        lambda: Moments().update(SimpleNamespace(indices=[0, 3], values=[1.0, 1.0], offsets=[0, 2], width=3)),
        ShapeMismatch,
    ),
    "not-a-state": (lambda: Moments().load_state_dict({"kind": "Moments"}), CorruptFile),
    "state-of-another": (lambda: Moments().load_state_dict(Density().state_dict()), BadInput),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_counted_is_refused(name):
    call, error = WRONG[name]
    with pytest.raises(error):
        call()


def test_a_refused_batch_leaves_the_accumulator_as_it_was():
    a = Correlation().update(ONE, [1.0, 2.0])
    before = flatten(a.state_dict())
    with pytest.raises(ShapeMismatch):
        a.update(ONE, [[1.0, 2.0], [3.0, 4.0]])
    after = flatten(a.state_dict())
    assert before[1] == after[1] and all(torch.equal(before[0][k], after[0][k]) for k in before[0])


def test_a_generation_streams_into_accumulators_and_stores_nothing():
    settings = {"max_new_tokens": 5, "eos": None}
    prompts = ["w1 w2 w3", "w4 w5"]
    kept = generate(small(), prompts, capture=["resid_post.*"], **settings)
    streamed = PerSite(Moments)
    lean = generate(small(), prompts, capture=["resid_post.*"], reduce=streamed, **settings)
    assert not lean.sites and len(streamed) == len(kept.sites)
    for site in kept.sites:
        x = kept[site].double().flatten(0, 1)
        assert streamed[site].rows == len(x) == 10
        torch.testing.assert_close(streamed[site].mean, x.mean(0), rtol=1e-9, atol=1e-12)
