"""Matches, distances between classes, sparse probes: against values by hand and slow restatements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from mechanome.core import BadInput, NotFinite, ShapeMismatch, TooFewRows
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.metrics import (
    class_distances,
    match,
    nearest_stability,
    planted_mcc,
    pooled,
    probes_table,
    seed_stability,
    sparse_probing,
    wasserstein,
)

EYE = torch.eye(4)


def test_planted_features_found_in_any_order_and_length():
    mcc, recall = planted_mcc(EYE, EYE[[2, 0, 3, 1]] * torch.tensor([[2.0], [5], [1], [9]]))
    assert (mcc.value, recall.value) == (1.0, 1.0)


def test_planted_by_hand():
    # One atom lies between features 0 and 1 (cosine 0.6 and 0.8), one is feature 2 turned round, one is feature 3.
    atoms = torch.stack([0.6 * EYE[0] + 0.8 * EYE[1], -EYE[2], EYE[3]])
    mcc, recall = planted_mcc(EYE, atoms)
    assert mcc.value == pytest.approx((0.8 + 0.0 + 1.0) / 4)  # the turned atom is matched to feature 0, at cosine 0
    assert recall.value == 0.25
    unsigned, _ = planted_mcc(EYE, atoms, signed=False)
    assert unsigned.value == pytest.approx((0.8 + 1.0 + 1.0) / 4)


def test_one_atom_serves_one_feature_only():
    atoms = torch.stack([EYE[0] + 0.1 * EYE[1], EYE[0], EYE[0] + 0.2 * EYE[2]])
    found = match(EYE, atoms)
    assert len(set(found.second.tolist())) == 3
    # Taken greedily, feature 1 would be left with nothing.
    assert found.cosine.sum() == pytest.approx(1.0 + 0.1 / np.sqrt(1.01) + 0.2 / np.sqrt(1.04))


def test_seed_stability():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(30, 16, generator=g), torch.randn(30, 16, generator=g)
    assert seed_stability(a, a[torch.randperm(30, generator=g)]).value == pytest.approx(1.0)
    between = seed_stability(a, b)
    assert between.value == pytest.approx(seed_stability(b, a).value, rel=1e-12)
    assert between.value <= nearest_stability(a, b).value < 1.0


def test_matches_refuse():
    with pytest.raises(ShapeMismatch, match="widths 4 and 3"):
        match(EYE, torch.ones(2, 3))
    with pytest.raises(NotFinite):
        match(EYE, EYE * float("nan"))
    with pytest.raises(BadInput, match="too many"):
        match(torch.ones(7000, 1), torch.ones(7000, 1))


def codes_of(rows: int = 200, width: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, width, generator=g, dtype=torch.float64) * (torch.rand(rows, width, generator=g) < 0.3)
    y = torch.randint(0, 3, (rows,), generator=g)
    z[:, 1] += 2.0 * (y == 2)
    z[:, 5] = 0.0
    return z, y


def test_wasserstein_by_hand():
    # Class 0 holds 0 and 4, class 1 holds 2 and 2: distance 2; deviation sqrt(2).
    codes = SparseCodes.of_dense(torch.tensor([[0.0], [4.0], [2.0], [2.0]]))
    found = wasserstein(codes, torch.tensor([0, 0, 1, 1]))
    assert found.value == pytest.approx(2 / np.sqrt(2))


def test_wasserstein_equals_scipy_on_dense_columns():
    z, y = codes_of()
    found = class_distances(SparseCodes.of_dense(z), y)
    assert found.shape == (3, 12)
    for c in range(3):
        for latent in range(12):
            column = z[:, latent].numpy()
            own = (y == c).numpy()
            spread = column.std()
            expected = wasserstein_distance(column[own], column[~own]) / spread if spread else 0.0
            assert float(found[c, latent]) == pytest.approx(expected, abs=1e-12)


def test_wasserstein_refuses():
    codes = SparseCodes.of_dense(torch.ones(3, 2))
    with pytest.raises(TooFewRows, match="one class"):
        wasserstein(codes, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ShapeMismatch):
        wasserstein(codes, torch.zeros(4, dtype=torch.long))


def planted_classes(groups: int = 60, each: int = 5, seed: int = 0):
    """Classes belong to groups; latent 3 tells class 1, latents 7 and 8 together tell class 2."""
    g = torch.Generator().manual_seed(seed)
    owner = torch.arange(groups).repeat_interleave(each)
    y = (torch.arange(groups) % 3).repeat_interleave(each)
    z = torch.rand(len(y), 20, generator=g) * (torch.rand(len(y), 20, generator=g) < 0.2)
    z[:, 3] = torch.where(y == 1, 1.0, 0.0) + 0.1 * torch.rand(len(y), generator=g)
    z[:, 7] = torch.where((y == 2) & (owner % 2 == 0), 2.0, 0.0)
    z[:, 8] = torch.where((y == 2) & (owner % 2 == 1), 2.0, 0.0)
    return SparseCodes.of_dense(z), y, owner


def test_probes_find_planted_latents():
    codes, y, owner = planted_classes()
    one, two, three = sparse_probing(codes, y, owner, k=(1, 2, 3))
    assert one.latents[1] == (3,)
    assert set(two.latents[2]) == {7, 8}
    assert one.accuracy.estimate < two.accuracy.estimate < three.accuracy.estimate
    assert three.accuracy.estimate > 0.99  # with three latents class 0 is what is neither of the others
    assert two.accuracy.lo <= two.accuracy.estimate <= two.accuracy.hi
    assert np.mean(two.control) < 0.75
    assert [m.definition.name for m in one.measures()] == ["probe_accuracy.v1", "probe_f1.v1", "probe_control.v1"]
    assert len(probes_table([one, two])) == 2


def test_groups_are_never_split():
    # A latent for each group: with groups split, it would tell the class of rows it has seen; held out, it cannot.
    groups, each = 40, 10
    owner = torch.arange(groups).repeat_interleave(each)
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (groups,), generator=g).repeat_interleave(each)
    codes = SparseCodes.of_dense(torch.nn.functional.one_hot(owner).float())
    (apart,) = sparse_probing(codes, y, owner, k=40)
    (mixed,) = sparse_probing(codes, y, None, k=40)
    assert mixed.accuracy.estimate > 0.95
    assert apart.accuracy.estimate < 0.7
    assert apart.groups == pytest.approx(0.3 * groups, abs=1)


def test_shuffled_labels_keep_groups_whole():
    codes, y, owner = planted_classes()
    (probe,) = sparse_probing(codes, y, owner, k=1, shuffles=20)
    # One class against two: always saying "other" is right for two of three.
    assert 0.55 < np.mean(probe.control) < 0.75
    again = sparse_probing(codes, y, owner, k=1, shuffles=20)[0]
    assert again.control == probe.control


def test_f1_by_hand():
    # Perfect latents for two classes: every score is 1.
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 20)
    (probe,) = sparse_probing(z, [0, 1] * 20, k=1)
    assert (probe.accuracy.estimate, probe.f1.estimate) == (1.0, 1.0)


def test_pooling_is_the_mean_over_each_group():
    z, _ = codes_of(rows=30)
    owner = torch.randint(0, 4, (30,), generator=torch.Generator().manual_seed(1)) + 10
    codes, names = pooled(SparseCodes.of_dense(z), owner)
    expected = torch.stack([z[owner == g].mean(0) for g in names])
    assert torch.allclose(codes.dense(), expected)
    assert names.tolist() == sorted(set(owner.tolist()))


def test_probes_refuse():
    codes, y, owner = planted_classes()
    with pytest.raises(TooFewRows, match="one class"):
        sparse_probing(codes, torch.zeros_like(y), owner)
    with pytest.raises(TooFewRows, match="more groups"):
        sparse_probing(codes, torch.cat([y[:-5].clamp(max=1), torch.full((5,), 2)]), owner)
    with pytest.raises(BadInput, match="k = 21"):
        sparse_probing(codes, y, owner, k=21)
    with pytest.raises(ShapeMismatch):
        sparse_probing(codes, y[:-1], owner)
    with pytest.raises(NotFinite):
        sparse_probing(torch.full((4, 2), float("nan")), [0, 1, 0, 1])
