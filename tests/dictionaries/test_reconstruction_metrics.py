"""Reconstruction and sparsity: goldens worked out by hand, and what must not change a value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mechanome.core import NotFinite, ShapeMismatch, TooFewRows
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.metrics import (
    FiringCounts,
    LegacySums,
    ReconstructionSums,
    cosine,
    dead,
    density,
    fvu,
    l0,
    norm_ratio,
    reconstruction_measures,
    sparsity_measures,
)

# Mean (2, 1); squared distances from it 2 + 2 = 4; squared errors 1 + 0 = 1.
X = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
MADE = torch.tensor([[1.0, 1.0], [3.0, 2.0]])


def measured(sums: ReconstructionSums) -> dict[str, float | None]:
    return {m.definition.name: m.value for m in reconstruction_measures(sums)}


def some(rows: int = 300, d: int = 7, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, d, generator=g, dtype=torch.float64) * torch.linspace(0.5, 3, d, dtype=torch.float64)
    made = 0.8 * x + 0.3 * torch.randn(rows, d, generator=g, dtype=torch.float64)
    return x, made, torch.randint(0, 40, (rows,), generator=g)


def test_goldens_by_hand():
    assert fvu(X, MADE) == 0.25
    assert cosine(X, MADE) == pytest.approx((1 / math.sqrt(2) + 1) / 2)
    assert norm_ratio(X, MADE) == pytest.approx((math.sqrt(2) + math.sqrt(13)) / (1 + math.sqrt(13)))
    sums = ReconstructionSums(2).update(X, MADE, l0=torch.tensor([1, 3]))
    found = measured(sums)
    assert found["fvu.v1"] == 0.25
    assert found["mse.v1"] == 0.25
    assert found["log2_mse.v1"] == -2.0
    assert found["l0.v1"] == 2.0


def test_the_mean_explains_nothing_and_a_perfect_copy_all():
    x, _, _ = some()
    assert fvu(x, x.mean(0).expand_as(x)) == pytest.approx(1.0, abs=1e-12)
    assert fvu(x, x) == 0.0
    assert math.isnan(fvu(torch.ones(3, 2), torch.zeros(3, 2)))


@pytest.mark.parametrize("batch", [1, 7, 64, 300])
def test_batch_size_changes_nothing(batch):
    x, made, units = some()
    whole = ReconstructionSums(7).update(x, made, units)
    parts = ReconstructionSums(7)
    for i in range(0, len(x), batch):
        parts.update(x[i : i + batch], made[i : i + batch], units[i : i + batch])
    assert {k: pytest.approx(v, rel=1e-12) for k, v in measured(whole).items()} == measured(parts)
    for a, b in zip(reconstruction_measures(whole), reconstruction_measures(parts)):
        assert (a.lo, a.hi) == (pytest.approx(b.lo, rel=1e-9), pytest.approx(b.hi, rel=1e-9))


def test_fvu_is_invariant_to_scale_and_shift():
    x, made, _ = some()
    plain = fvu(x, made)
    assert fvu(1000 * x, 1000 * made) == pytest.approx(plain, rel=1e-12)
    assert fvu(x + 1e5, made + 1e5) == pytest.approx(plain, rel=1e-9)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert fvu(x[order], made[order]) == pytest.approx(plain, rel=1e-12)
    assert fvu(x.bfloat16(), made.bfloat16()) == pytest.approx(plain, rel=2e-2)


def test_any_order_of_merging_is_the_same():
    x, made, units = some()
    x[150:] += 5.0  # parts whose first rows say nothing of their mean
    whole = ReconstructionSums(7).update(x, made, units)
    pieces = [[slice(0, 50)], [slice(50, 90), slice(90, 210)], [slice(210, 215), slice(215, 300)]]
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        merged = ReconstructionSums(7)
        for i in order:
            part = ReconstructionSums(7)
            for rows in pieces[i]:
                part.update(x[rows], made[rows], units[rows])
            merged.merge(part)
        assert measured(merged) == {k: pytest.approx(v, rel=1e-12) for k, v in measured(whole).items()}
        assert np.allclose(merged.units()["scatter"], whole.units()["scatter"], rtol=1e-10)


def test_intervals_draw_documents_not_tokens():
    # Every document holds the same row many times: tokens alone would promise far too much.
    x, made, _ = some(rows=30)
    x, made = x.repeat_interleave(20, 0), made.repeat_interleave(20, 0)
    by_document = next(iter(reconstruction_measures(
        ReconstructionSums(7).update(x, made, torch.arange(30).repeat_interleave(20))
    )))  # fmt: skip
    by_row = next(iter(reconstruction_measures(ReconstructionSums(7).update(x, made))))
    assert by_document.value == pytest.approx(by_row.value, rel=1e-12)
    assert by_document.lo < by_document.value < by_document.hi
    assert by_document.hi - by_document.lo > 2 * (by_row.hi - by_row.lo)


def test_refusals():
    x, made, _ = some()
    with pytest.raises(TooFewRows, match="no rows"):
        next(iter(reconstruction_measures(ReconstructionSums(7))))
    with pytest.raises(ShapeMismatch, match="must be"):
        ReconstructionSums(7).update(x, made[:, :3])
    broken = made.clone()
    broken[5, 2] = float("nan")
    sums = ReconstructionSums(7)
    with pytest.raises(NotFinite, match=r"reconstructions.*row 5"):
        sums.update(x, broken)
    with pytest.raises(NotFinite, match=r"activations.*row 5"):
        sums.update(broken, made)
    assert sums.rows == 0


def test_legacy_definitions_by_hand():
    sums = LegacySums()
    sums.update(X, MADE)
    found = {m.definition.name: m.value for m in sums.measures()}
    assert found["fvu.zero"] == pytest.approx(1 / 14)
    assert found["fvu.tokenmean"] == pytest.approx((1 / 2 + 0) / 2)
    assert found["fvu.batchmean"] == 0.25
    assert found["fvu.saebench-0.6"] == pytest.approx(0.5 / (7 - (14 / 4) ** 2))


def test_legacy_definitions_move_with_the_batch_and_ours_does_not():
    x, made, _ = some()
    found = []
    for batch in (10, 300):
        sums, ours = LegacySums(), ReconstructionSums(7)
        for i in range(0, len(x), batch):
            sums.update(x[i : i + batch], made[i : i + batch])
            ours.update(x[i : i + batch], made[i : i + batch])
        found.append(({m.definition.name: m.value for m in sums.measures()}, measured(ours)["fvu.v1"]))
    (few, mine), (many, also_mine) = found
    assert mine == pytest.approx(also_mine, rel=1e-12)
    assert few["fvu.tokenmean"] != pytest.approx(many["fvu.tokenmean"], rel=1e-3)
    assert few["fvu.batchmean"] != pytest.approx(many["fvu.batchmean"], rel=1e-3)


CODES = torch.tensor([[1.0, 0, 0, 2], [0, 0, 0, 3], [0, 0, 0, 0], [4, -1, 0, 5]])


def test_sparsity_by_hand():
    codes = SparseCodes.of_dense(CODES)
    assert l0(codes) == 6 / 4
    assert density(codes).tolist() == [0.5, 0.25, 0.0, 0.75]
    assert dead(codes) == 0.25
    counts = FiringCounts(4)
    counts.update(codes.take([0, 1]))
    counts.merge(_counted(codes.take([2, 3])))
    found = {m.definition.name: m.value for m in sparsity_measures(counts)}
    assert found["l0_p5.v1"] == 0.0  # rows hold 0, 1, 2 and 3 active latents
    assert found["l0_p50.v1"] == 1.0
    assert found["l0_p95.v1"] == 3.0
    assert found["dead.v1"] == 0.25
    assert found["dense.v1"] == 0.75
    assert found["density_p50.v1"] == 0.25
    assert [n for _, _, n in counts.histogram(per_decade=1)] == [3]
    assert sum(n for _, _, n in counts.histogram()) == 3


def _counted(codes: SparseCodes) -> FiringCounts:
    return FiringCounts(codes.width).update(codes)


def test_counts_of_another_dictionary_are_refused():
    with pytest.raises(ShapeMismatch):
        FiringCounts(5).update(SparseCodes.of_dense(CODES))
    with pytest.raises(TooFewRows):
        _ = FiringCounts(4).density


def test_state_of_sums_survives_a_round_trip():
    x, made, units = some()
    sums = ReconstructionSums(7).update(x[:100], made[:100], units[:100])
    again = ReconstructionSums(7)
    again.load_state_dict(sums.state_dict())
    for each in (sums, again):
        each.update(x[100:], made[100:], units[100:])
    assert measured(sums) == measured(again)
    assert np.array_equal(sums.units()["error"], again.units()["error"])
