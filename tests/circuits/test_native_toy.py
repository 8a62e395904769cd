"""The toy whose features are known, and the theorem behind it."""

from __future__ import annotations

import pytest
import torch

from mechanome.circuits.native import KnownFeatures, TrainedToy, fitted, predicted, train_known_features
from mechanome.core import BadInput, ShapeMismatch


def test_the_best_rank_one_map_is_the_theorems() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 6, generator=generator, dtype=torch.float64) * torch.linspace(1, 3, 6, dtype=torch.float64)
    y = torch.randn(15, 5, generator=generator, dtype=torch.float64)
    u, v = fitted(x, y, seed=1)
    assert abs(float(u @ predicted(x))) > 0.9999 and abs(float(v @ predicted(y))) > 0.9999
    assert abs(float(u @ x[0] / x[0].norm())) < 0.99, "the feature itself is not the answer here"
    tight = torch.linalg.qr(torch.randn(12, 6, generator=generator, dtype=torch.float64)).Q
    assert torch.allclose(predicted(tight), tight[0] / tight[0].norm())
    with pytest.raises(ShapeMismatch, match="span"):
        predicted(x[:4])


def test_a_small_toy_learns_its_pair() -> None:
    settings = KnownFeatures(6, 4, 4, ((0, 1, 1.0),), absent=0.7, steps=600, batch=128, lr=1e-2)
    toy = train_known_features(settings, seed=0)
    found = toy.alignment()
    assert found.worst > 0.9 and toy.units().values[1] < 0.3 * toy.units().values[0]
    assert torch.equal(train_known_features(settings, seed=0).written, toy.written)
    assert not torch.equal(train_known_features(settings, seed=1).written, toy.written)
    bare = train_known_features(KnownFeatures(6, 4, 4, ((0, 1, 1.0),), absent=0.7, steps=5, weight=0.0), seed=0)
    assert bare.alignment().mean < found.mean


def test_alignment_matches_pairs_to_units() -> None:
    settings = KnownFeatures.graded(2, features=6, width=6, d_head=3)
    assert settings.pairs == ((0, 1, 1.0), (2, 3, 1.2))
    written = torch.eye(6)
    query, key = torch.zeros(6, 3), torch.zeros(6, 3)
    query[0, 0], key[1, 0] = 2.0, 1.0  # pair 0 with strength 2
    query[2, 1], key[3, 1] = 1.0, 3.0  # pair 1 with strength 3
    toy = TrainedToy(settings, written, query, key, 0.0, 0.0)
    found = toy.alignment()
    assert found.query.tolist() == pytest.approx([1, 1]) and found.key.tolist() == pytest.approx([1, 1])
    assert found.values.tolist() == pytest.approx([2, 3]) and found.strengths.tolist() == [1.0, 1.2]
    assert (found.mean, found.worst) == pytest.approx((1.0, 1.0)) and toy.crowding() == 0.0
    assert found.units.tolist() in ([1, 0], [0, 1]) and found.shared == 0.0
    assert toy.chance(1).mean < 0.9
    opposite = torch.eye(6)
    opposite[2], opposite[3] = -opposite[0], -opposite[1]  # both sides reversed: one unit serves two pairs
    packed = TrainedToy(settings, opposite, query, key, 0.0, 0.0)
    assert packed.alignment().mean == pytest.approx(1.0) and packed.alignment().shared == 1.0
    assert packed.alignment(apart=True).mean == pytest.approx(0.5) and packed.alignment(apart=True).shared == 0.0
    crowded = TrainedToy(settings, torch.eye(6) + 1.0, query, key, 0.0, 0.0)
    assert crowded.crowding() == pytest.approx(8 / 9)


def test_settings_that_make_no_toy_are_refused() -> None:
    with pytest.raises(BadInput, match="outside 0 to 5"):
        KnownFeatures(features=6, pairs=((0, 9, 1.0),))
    with pytest.raises(BadInput, match="no toy"):
        KnownFeatures(width=4, d_head=8)
    with pytest.raises(BadInput, match="outside"):
        KnownFeatures(pairs=())
