import itertools

import numpy as np
import pytest
import torch

from mechanome.activations.planted import PlantedFeatures
from mechanome.activations.planting import block_correlation
from mechanome.core.errors import BadInput, CorruptFile, ShapeMismatch, UnknownName


def codes_of(planted: PlantedFeatures, batches: int) -> torch.Tensor:
    return torch.cat([planted.batch(i)[1] for i in range(batches)])


def test_a_row_is_the_sum_of_its_active_features_and_the_bias():
    planted = PlantedFeatures(40, 16, active=3, bias=2.0, batch=64, seed=1)
    x, codes = planted.batch(5)
    assert x.shape == (64, 16) and codes.shape == (64, 40) and codes.min() == 0
    torch.testing.assert_close(x, codes @ planted.features + planted.bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(planted.features.norm(dim=1), torch.ones(40))
    assert planted.bias.norm().item() == pytest.approx(2.0, rel=1e-5)


def test_noise_is_gaussian_of_the_named_size():
    planted = PlantedFeatures(20, 50, noise=0.1, batch=2000)
    x, codes = planted.batch(0)
    rest = x - codes @ planted.features
    assert rest.std().item() == pytest.approx(0.1, rel=0.02)


def test_frequencies_follow_the_power_law_and_average_to_active():
    planted = PlantedFeatures(50, 8, active=5, decay=1.0, batch=20_000)
    f = planted.frequencies
    assert f.sum().item() == pytest.approx(5) and f.max() <= 1
    assert (f[10] / f[20]).item() == pytest.approx(21 / 11)
    measured = (codes_of(planted, 2) > 0).double().mean(0)
    assert (measured - f).abs().max() < 0.02


def test_where_the_power_law_passes_one_the_average_is_kept():
    f = PlantedFeatures(20, 4, active=5, decay=3.0).frequencies
    assert f.max() == 1 and f.sum().item() == pytest.approx(5) and (f[:-1] >= f[1:]).all()


@pytest.mark.parametrize("values", ["constant", "uniform", "folded", "exponential", "lognormal"])
def test_values_have_mean_one(values):
    codes = PlantedFeatures(10, 4, active=5, values=values, batch=20_000).batch(0)[1]
    assert codes[codes > 0].mean().item() == pytest.approx(1.0, abs=0.02)


def test_correlation_changes_who_fires_together_and_no_frequency():
    rho = block_correlation(8, 4, 0.9)
    planted = PlantedFeatures(8, 4, active=1.6, correlation=rho, batch=20_000)
    on = (planted.batch(0)[1] > 0).double()
    assert (on.mean(0) - 0.2).abs().max() < 0.015
    together = on.T @ on / len(on)
    assert together[0, 1] > 0.12 and together[0, 7] == pytest.approx(0.04, abs=0.01)


def test_a_child_is_active_only_where_its_parent_is_with_its_frequency_kept():
    planted = PlantedFeatures(
        4, 4, frequencies=[0.5, 0.2, 0.1, 0.3], hierarchy={2: 1, 1: 0}, values="constant", batch=40_000
    )
    on = planted.batch(0)[1] > 0
    assert not (on[:, 2] & ~on[:, 1]).any() and not (on[:, 1] & ~on[:, 0]).any()
    assert (on.double().mean(0) - planted.frequencies).abs().max() < 0.01


def test_exact_draws_the_same_number_in_each_row_by_weight():
    planted = PlantedFeatures(12, 4, active=4, decay=0.7, exact=True, batch=20_000)
    on = planted.batch(0)[1] > 0
    assert (on.sum(1) == 4).all()
    share = on.double().mean(0)
    assert share[0] > share[3] > share[11] > 0


def test_batch_i_is_a_function_of_seed_and_i():
    a, b = (PlantedFeatures(30, 8, batch=32, seed=3) for _ in range(2))
    list(itertools.islice(b, 4))
    assert all(torch.equal(p, q) for p, q in zip(a.batch(7), b.batch(7)))
    assert not torch.equal(a.batch(7)[0], a.batch(8)[0])
    assert not torch.equal(a.batch(7)[1], PlantedFeatures(30, 8, batch=32, seed=4).batch(7)[1])


def test_the_stream_goes_on_exactly_where_a_state_says():
    planted = PlantedFeatures(30, 8, batch=32, noise=0.1)
    reader = iter(planted)
    next(reader), next(reader)
    state = planted.state()
    following = [next(reader) for _ in range(2)]
    again = PlantedFeatures(30, 8, batch=32, noise=0.1)
    again.seek(state)
    for expected, got in zip(following, again):
        assert torch.equal(expected.x, got.x) and torch.equal(expected.labels["row"], got.labels["row"])
    assert following[0].labels["row"].tolist() == list(range(64, 96))
    assert again.sites == ("planted",) and again.widths == {"planted": 8} and again.rows is None


def test_a_position_of_other_features_is_refused():
    planted = PlantedFeatures(30, 8, batch=32)
    with pytest.raises(BadInput, match="other planted features"):
        PlantedFeatures(30, 8, batch=32, seed=1).seek(planted.state())
    with pytest.raises(CorruptFile):
        planted.seek({"batch": 3})


def test_directions_can_be_given_or_orthogonal():
    q = PlantedFeatures(6, 8, features="orthogonal").features
    torch.testing.assert_close(q @ q.T, torch.eye(6), atol=1e-6, rtol=0)
    mine = 2 * torch.eye(3)
    assert torch.equal(PlantedFeatures(3, 3, active=1, features=mine).features, mine)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"active": 0}, BadInput),
        ({"active": 9}, BadInput),
        ({"batch": 0}, BadInput),
        ({"noise": -1.0}, BadInput),
        ({"values": "unifrom"}, UnknownName),
        ({"frequencies": [0.5] * 7}, ShapeMismatch),
        ({"frequencies": [1.5] * 8}, BadInput),
        ({"features": torch.zeros(8, 3)}, ShapeMismatch),
        ({"features": "orthogonal"}, BadInput),
        ({"bias": torch.zeros(3)}, ShapeMismatch),
        ({"hierarchy": {0: 8}}, BadInput),
        ({"hierarchy": {0: 1, 1: 0}}, BadInput),
        ({"decay": 1.0, "hierarchy": {0: 3}}, BadInput),
        ({"correlation": np.eye(7)}, ShapeMismatch),
        ({"correlation": 2 * np.eye(8)}, BadInput),
        ({"correlation": block_correlation(8, 2, 0.5), "hierarchy": {1: 0}}, BadInput),
        ({"exact": True, "active": 2.5}, BadInput),
        ({"exact": True, "hierarchy": {1: 0}}, BadInput),
        ({"values": lambda rng, n: -np.ones(n)}, BadInput),
    ],
    ids=[
        "nobody-active", "too-many-active", "no-rows", "negative-noise", "unknown-values", "frequencies-shape",
        "frequencies-range", "features-shape", "not-orthogonal", "bias-shape", "unknown-parent", "circle",
        "frequent-child", "correlation-shape", "correlation-diagonal", "correlated-ancestor", "inexact",
        "exact-hierarchy", "negative-values",
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(settings, error):
    with pytest.raises(error):
        PlantedFeatures(**({"n_features": 8, "d": 4} | settings)).batch(0)


def test_no_correlation_of_blocks_beyond_what_exists():
    with pytest.raises(BadInput):
        block_correlation(6, 3, -0.6)
    matrix = np.full((8, 8), -0.9)
    np.fill_diagonal(matrix, 1)
    with pytest.raises(BadInput, match="eigenvalue"):
        PlantedFeatures(8, 4, correlation=matrix)
