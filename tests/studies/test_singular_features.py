"""Paper 28's study: its texts and statistics, the small model, and a smoke run on the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mechanome.core import silence
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.singular_features import Settings, emergence, measuring, pictures
from mechanome.studies.papers.singular_features.texts import KINDS, texts
from registry_models import need


def stored() -> measuring.Stored:
    theorem = {"general": torch.tensor([0.9999, 1.0]), "isotropic": torch.tensor([1.0, 0.9995])}
    toy = {
        "mean": 0.99, "worst": 0.97,
        "strongest-mean": 0.9, "strongest-worst": 0.8, "apart": 0.7, "shared": 0.5,
        "second": 0.1, "ranks": 1.0, "chance": 0.3, "crowding": 0.1, "losses": [0.1, 0.2],
        "values": torch.tensor([2.0, 0.2]), "query": torch.ones(1), "key": torch.ones(1),
    }  # fmt: skip
    names = measuring.toy_settings(Settings())
    toys = [
        {name: {**toy, "crowding": 0.3 if "without" in name else 0.1 + seed / 100} for name in names}
        for seed in range(2)
    ]
    cases = {
        "head": torch.tensor([[0, 1], [0, 1], [2, 0], [2, 2]]), "weight": torch.full((4,), 0.5),
        "own": torch.tensor([0.2, 0.3, 0.2, 0.3]), "rotated": torch.tensor([0.4, 0.5, 0.4, 0.3]),
        "respectral": torch.tensor([0.3, 0.3, 0.3, 0.3]), "needed": torch.tensor([2, 4, 9, -1]),
        "needed-rotated": torch.tensor([9, 4, 9, -1]), "largest": torch.tensor([0, 5, 1, 2]), "error": 1e-6,
        "bare-head": torch.tensor([[0, 1], [2, 0]]), "bare-own": torch.tensor([0.2, 0.2]),
        "bare-rotated": torch.tensor([0.4, 0.5]),
    }  # fmt: skip
    small = {"own": [0.4, 0.3, 0.2], "rotated": [0.4, 0.41, 0.4], "induction": [0.0, 0.5, 0.9], "accuracy": 0.95,
             "head": 1}  # fmt: skip
    return measuring.Stored([theorem, theorem], toys, [cases, {**cases, "error": 2e-6}], [small, small])


def test_claims_are_measured_as_they_say() -> None:
    found = stored()
    effects = {**measuring._theorem(found.theorem), **measuring._toys(found.toys)}
    effects |= {**measuring._real(found.cases, 4), **measuring._small(found.small)}
    assert set(effects) == set(STUDIES["singular-features"].ids)
    estimate = {name: effect.interval.estimate for name, effect in effects.items()}
    assert estimate["crowding"] == pytest.approx(-0.195) and estimate["single-rank-one"] == pytest.approx(0.1)
    assert estimate["sparser-rotated"] == pytest.approx(1.0 / 1.6) and effects["sparser-rotated"].interval.n == 3
    assert estimate["sparser-respectral"] == pytest.approx(-0.05)
    assert estimate["few-terms"] == pytest.approx(2 / 3 - 1.5 / 3) and estimate["few"] == pytest.approx(2 / 3)
    assert estimate["terms"] == pytest.approx(5.0) and "median 4" in effects["terms"].note
    assert estimate["sparser-without-first"] == pytest.approx(0.4 / 0.9)
    assert estimate["emerges"] == pytest.approx(0.5) and estimate["control-stays"] == pytest.approx(0.0)
    shown = pictures.sections(found, Settings())
    assert len(shown) == 3 and all(section.picture.html() for section in shown)


def test_texts_are_drawn_from_their_seed() -> None:
    assert len(texts(2, 0)) == 2 * len(KINDS) == len(set(texts(2, 0)))
    assert texts(2, 0) == texts(2, 0) and not set(texts(2, 0)) & set(texts(2, 1))
    compile(texts(1, 0)[-1], "code", "exec")


def test_a_small_model_is_measured_in_training() -> None:
    found = emergence.measured(0, steps=20, prompts=1)
    assert len(found["own"]) == len(found["rotated"]) == emergence.CHECKPOINTS + 1
    assert all(0 < value <= 1 for value in (*found["own"], *found["rotated"])) and 0 <= found["head"] < 4
    assert found["own"][0] != found["own"][-1]


def test_repetitions_start_anywhere_and_places_are_what_followed() -> None:
    ids, start = emergence.TASK.sequences(5, torch.Generator().manual_seed(0))
    assert len(set(start.tolist())) > 1 and ids.shape == (5, 2 * emergence.TASK.period)
    assert torch.equal(ids[:, : emergence.TASK.period].sort(1).values, ids[:, emergence.TASK.period :].sort(1).values)
    found = emergence.places(start)
    assert len(found) > 5 * (emergence.TASK.period - 3)
    for row, query, key in found:
        assert ids[row, key - 1] == ids[row, query] and ids[row, key] == ids[row, query + 1]


@pytest.mark.real_model
def test_the_study_runs_on_the_real_model(tmp_path: Path) -> None:
    study = STUDIES["singular-features"]
    need(*study.scales["smoke"].models.values())
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found: dict[str, Any] = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert 0 < found["sparser-rotated"].effect < 2 and done.report.stat().st_size > 10_000
    errors = next(r for r in done.found.reported if r.quantity.id == "sum-error")
    assert errors.interval is not None and errors.interval.hi < 1e-3
