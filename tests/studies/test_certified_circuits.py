"""Paper 26's study: its proofs, its statistics on numbers made by hand, its networks in small, and a smoke run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechanome.core import silence
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.certified_circuits import SCORERS, Settings, measuring, photos, proofs, vision
from mechanome.studies.papers.certified_circuits.measuring import Curves
from mechanome.zoo import Recipe, train_on_shapes
from registry_models import need

SMALL = Settings(train=64, epochs=1, concept=12, tests=3, shares=(0.3, 0.6, 1.0), abstentions=2)


def test_listed_masks_confirm_the_theorem_and_show_that_it_says_something() -> None:
    found = proofs.of_random_scores(100, 1)
    assert found["flips"] == 0 < found["other_flips"] and (found["certified"] + found["other"]) == 30 * 116
    assert found["certified"] % 116 == 0 and found["certified"] > 0


def test_foreign_methods_do_not_break_it() -> None:
    found = proofs.of_foreign_methods(100)
    assert found["flips"] == 0 < found["other_flips"] and found["certified"] + found["other"] == 20 * 116


def test_certificates_that_are_wrong_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proofs.wrong_certificates(100, 20) <= 1
    monkeypatch.setattr(proofs, "share_of_masks", lambda *_: torch.full((30,), 0.5, dtype=torch.float64))
    assert proofs.wrong_certificates(100, 20) == 20, "if no share were above tau, all of them would be"


def test_peaks_are_the_smallest_of_the_best() -> None:
    right = np.zeros((4, 2, 2, 3))
    right[0, 0] = [[0.2, 0.9, 0.9], [0.4, 0.9, 0.9]]
    right[1, 0] = [[0.1, 0.5, 1.0], [0.1, 0.5, 0.9]]
    right[0, 1] = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    kept = np.zeros((4, 2, 3))
    kept[0], kept[1] = [[0.1, 0.2, 0.6], [0.1, 0.4, 0.6]], [[0.3, 0.6, 1.0], [0.3, 0.6, 1.0]]
    curves = Curves(kept, right)
    assert (curves.peak(0), curves.peak(1), curves.peak(0, 1)) == (1, 2, 0)
    assert curves.at_peak(0, 0).tolist() == [0.9, 0.9] and curves.at_peak(1, 0, of=0).tolist() == [0.5, 0.5]
    assert curves.kept_at_peak(0).tolist() == [0.2, 0.4]
    assert measuring._dropped(curves).tolist() == pytest.approx([0.8, 0.6])
    assert measuring._as_good(curves) == pytest.approx((0.3, -0.05))
    assert measuring._differences([curves], [0])[0].tolist() == pytest.approx([-0.1, 0.0])


def test_a_circuit_that_always_names_its_class_detects_nothing() -> None:
    kept, right = np.ones((4, 2, 2)), np.ones((4, 5, 2, 2))
    called = np.zeros((3, 2, 2))
    called[0, :, 0] = called[1:] = 1
    found = measuring._detection([Curves(kept, right)], [called], replace(SMALL, shares=(0.3, 0.6)))
    assert found["detection-certified"].interval.estimate == 1 and "K = 0.6" in found["detection-certified"].note
    assert found["detection-plain"].interval.estimate == 0.5
    assert (
        found["detection-minus-plain"].interval.estimate == found["detection-minus-same-size"].interval.estimate == 0.5
    )


def test_what_is_not_defined_is_left_out_and_counted() -> None:
    found = measuring.over([1.0, float("nan"), 3.0], "why")
    assert found.interval is not None and found.interval.estimate == 2 and found.interval.n == 2
    assert found.note == "why; 1 of 3 are not defined"
    assert measuring.over([1.0], "why").interval is None
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, 4.0]])
    assert measuring._mean_known(values)[[0, 2]].tolist() == [1, 3] and np.isnan(measuring._mean_known(values)[1])


def test_overlap_of_nothing_is_not_defined() -> None:
    a, b, none = torch.tensor([True, True, False]), torch.tensor([True, False, True]), torch.zeros(3, dtype=torch.bool)
    assert vision.overlap(a, b) == pytest.approx(1 / 3) and vision.overlap(a, a) == 1
    assert np.isnan(vision.overlap(none, none)) and vision.overlap(a, none) == 0


def test_circuits_of_a_network_are_measured() -> None:
    weights = train_on_shapes(100, Recipe(images=SMALL.train, epochs=1), quiet=True).state_dict()
    found = vision.measured(100, weights, SMALL)
    for scorer in SCORERS:
        kept, right = found[scorer]["kept"], found[scorer]["right"]
        assert kept.shape == (4, 8, 3) and right.shape == (4, 5, 8, 3)
        assert torch.equal(kept[0], kept[2]) and bool((kept[0] <= kept[1]).all() and (kept[3] <= kept[1]).all())
        assert kept[1, 0].tolist() == pytest.approx([0.3, 0.6, 1.0], abs=0.03)
        # With every channel the circuit is the network.
        assert right[1, :, :, 2].mean(1).tolist() == pytest.approx(found["full"])
    assert bool((found["relevance"]["kept"] != found["rank"]["kept"]).any())
    assert found["iou"].shape == (3, 8, 3) and found["elsewhere"].shape == (2, 3, 8, 3) and found["cost"].shape == (8,)
    said = found["elsewhere"]
    assert bool((said.sum(0) <= 1).all()), "no image of another class is done right and called the circuit's class"
    assert float(found["iou"].nan_to_num().min()) >= 0 and float(found["iou"].nan_to_num().max()) <= 1
    assert float(found["cost"].min()) > 1


def test_random_abstentions_are_averaged_for_each_share() -> None:
    values = torch.cat([torch.arange(6.0), torch.tensor([1.0, 3.0, 10.0, 30.0])])
    found = vision._by_method(values, 2, 2)
    assert found.tolist() == [[0, 1], [2, 3], [4, 5], [2, 20]]


def test_crops_show_the_photograph() -> None:
    taken = photos.photographs()
    assert set(taken) == {"china.jpg", "flower.jpg"}
    found = photos.crops(taken["flower.jpg"], 5, 3)
    assert found.shape == (5, 3, 224, 224) and torch.equal(found, photos.crops(taken["flower.jpg"], 5, 3))
    assert not torch.equal(found, photos.crops(taken["flower.jpg"], 5, 4))
    assert float(found.min()) >= -1 and float(found.max()) <= 1
    assert len({round(float(crop.mean()), 4) for crop in found}) == 5


@pytest.mark.real_model
def test_the_study_runs_on_real_models(tmp_path: Path) -> None:
    study = STUDIES["certified-circuits"]
    need(*study.scales["smoke"].models.values())
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert found["no-flips"].effect == 0 and found["foreign-no-flips"].effect == 0
    single = {"smaller-as-good", "language-smaller"}
    assert all((f.effect is None) == (name in single) for name, f in found.items()), "one seed has no interval"
    assert found["teeth"].effect > 0 and found["language-accuracy"].n == 3
    assert done.report.stat().st_size > 10_000
    assert json.dumps(done.found.record())
