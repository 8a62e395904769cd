"""Paper 40's study: its statistics on numbers with a known answer, its small model, and a smoke run on a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mechanome.circuits import Graph
from mechanome.core import silence
from mechanome.engine import load
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.circuit_variance import heads, synthetic, trained
from registry_models import need


def effects(inputs: int = 24, noise: float = 1.0, seed: int = 0, mean: torch.Tensor | None = None) -> torch.Tensor:
    """Effects of 40 heads whose means grow from 0 to 4, `[input, head]`."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.linspace(0, 4, 40) if mean is None else mean
    return mean + noise * torch.randn(inputs, 40, generator=generator)


def test_variation_of_the_top_heads() -> None:
    found = heads.median_cv(effects(400), 10)
    assert found.estimate == pytest.approx(1 / 3.54, rel=0.05) and found.lo < found.estimate < found.hi
    signs = heads.sign_consistency(effects(400), 10)
    assert signs.estimate == pytest.approx(1, abs=0.01)


def test_single_inputs_are_compared_with_other_inputs() -> None:
    one, two = torch.zeros(40), torch.zeros(40)
    one[:10], two[5:15] = 1.0, 1.0
    found = heads.single_inputs(torch.stack([one, one, two, two]), 10)
    assert found.estimate == pytest.approx((2 * 1 + 4 / 3) / 6) and found.n == 4


def test_the_curve_rises_and_its_correlation_says_so() -> None:
    trend, curve = heads.rising(effects(), 10, (1, 2, 4, 8, 16, 24), 200)
    assert curve == sorted(curve) and trend.estimate == pytest.approx(1)
    resampled = heads.Resampled(24, 16, 200)
    assert curve[4] == pytest.approx(resampled.mean(resampled.each(effects(), 10)).estimate)


def test_templates_that_share_nothing_are_below_bootstrap_samples() -> None:
    other = torch.linspace(0, 4, 40).flip(0)
    apart = {"a": effects(noise=0.3), "b": effects(noise=0.3, seed=1, mean=other)}
    across, difference = heads.across_templates(apart, 10, 200)
    assert across.estimate == 0 and difference.hi < -0.5
    same = {"a": effects(noise=0.3), "b": effects(noise=0.3)}
    across, difference = heads.across_templates(same, 10, 200)
    assert across.estimate == 1 and difference.estimate > 0


def test_the_repetition_starts_anywhere_and_goes_around() -> None:
    ids, start = trained.TASK.sequences(50, torch.Generator().manual_seed(0))
    first, second = ids[:, : trained.TASK.period], ids[:, trained.TASK.period :]
    assert all(len(set(row)) == trained.TASK.period for row in first.tolist())
    for one, two, begins in zip(first.tolist(), second.tolist(), start.tolist()):
        assert one[begins:] + one[:begins] == two
    assert len(set(start.tolist())) == trained.TASK.period


def test_prompts_are_answered_by_what_followed_before() -> None:
    clean, other, metric = trained.prompts(50, 3)
    for row, changed, answer, foil in zip(clean.tolist(), other.tolist(), metric.answer, metric.foil):
        place = row.index(row[-1])
        assert place < trained.TASK.period - 1 and row[place + 1] == answer and changed[place + 1] == foil
        assert answer not in row[trained.TASK.period :] and foil not in row
        assert [a == b for a, b in zip(row, changed)].count(False) == 1


def test_the_small_model_is_scored_in_every_way() -> None:
    found = trained.measured(100, 2, 3, (5, 50), 40)
    assert len(found["scores"]) == len(trained.GRID) == 16
    assert all(x.shape == (3, 110) and bool(torch.isfinite(x).all()) for x in found["scores"].values())
    exact, zero = found["scores"]["exact patch"], found["scores"]["exact zero"]
    assert not torch.allclose(exact, zero)
    assert list(found["quality"]) == ["5", "50"] and set(found["quality"]["5"]) == {"error", "faithfulness", "KL"}


def test_the_whole_small_model_does_what_it_does_and_no_edge_does_nothing() -> None:
    graph, data = Graph.of(load(trained.train(100, 2))), trained.prompts(4, 1)
    found = trained.done(graph, data, torch.stack([graph.mask, torch.zeros_like(graph.mask)]))
    assert found["faithfulness"] == pytest.approx([1, 0], abs=1e-3)
    assert found["error"][0] == 0 and found["KL"][0] == pytest.approx(0, abs=1e-6) and found["KL"][1] > 1e-6


def test_known_scores_vary_as_they_should() -> None:
    found = [synthetic.known(cv, 7, 200) for cv in synthetic.LEVELS]
    predicted = [each["predicted"] for each in found]
    assert predicted == sorted(predicted, reverse=True) and predicted[0] - predicted[-1] > 0.2
    assert all(each["ratio"] == pytest.approx(1, abs=0.1) for each in found)
    assert all(each["fresh"] == pytest.approx(each["predicted"], abs=0.15) for each in found)


@pytest.mark.real_model
def test_the_study_runs_on_a_real_model(tmp_path: Path) -> None:
    study = STUDIES["circuit-variance"]
    need(study.scales["smoke"].models["decoder"])
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    single = {"hyperparameters-lower", "ig-agrees-better", "parts-sum"}
    assert all((f.effect is None) == (name in single) for name, f in found.items()), "one model has no interval"
    assert found["top-cv"].n == 3 and 0 <= found["single-jaccard"].effect <= 1
    assert "prompts done right" in done.found.remarks[0] and done.report.stat().st_size > 10_000
    assert json.dumps(done.found.record())
