"""Paper 34's study: its statistics on numbers with a known answer, its prompts, and a smoke run on real models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mechanome.core import silence
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.contribution_weights import METRICS, measuring, pictures, prompts
from registry_models import need


def stored(n: int = 12, keys: int = 9) -> measuring.Stored:
    """Contribution weights are the effects; attention ranks them in reverse; the rest is noise. The answer is at 4."""
    torch.manual_seed(0)
    scores, masked = [], []
    for i in range(n):
        effects = torch.rand(keys, dtype=torch.float64)
        effects[4] = 2.0
        found = {metric: torch.rand(keys, dtype=torch.float64) for metric in METRICS}
        found |= {"contribution_layer": effects, "attention": -effects}
        sink = {m: torch.tensor([0.5, 0.25]) for m in ("attention", "contribution_head", "contribution_layer")}
        scores.append({"scores": found, "sink": sink, "clipped": 0.25, "tokens": ["x"] * keys})
        cost = dict.fromkeys(METRICS, 1.0)
        masked.append({"prompt": i, "effects": effects, "drop": cost, "kept": cost})
    heads = {
        "curvature": torch.tensor([[1.0, -1.0], [2.0, float("nan")]]),
        "squared": torch.tensor([[1.0, -1.0], [2.0, float("nan")]]),
        "falling": torch.tensor([[-0.5, -0.5], [-0.5, 0.5]]),
        "rest": torch.tensor([[-0.2, 0.4], [-0.4, 0.9]]),
        "suppression": torch.tensor([[0.5, 0.5], [-0.5, 0.9]]),
        "heavy": torch.tensor([[True, True], [True, False]]),
        "rate": torch.full((2, 2), 0.5),
        "pairs": torch.tensor([[0.1, 0.4], [0.1, 0.6]], dtype=torch.float64),
    }
    entropy = torch.linspace(0, 1, 20)
    removed = [{"entropy": entropy, "increase": entropy**3 + 0.1 * torch.rand(20)} for _ in range(4)]
    found_prompts = [{"text": str(i), "critical": [4], "kind": "recall", "answer": 1} for i in range(n)]
    counts = {"recall": n}
    return measuring.Stored(
        found_prompts, scores, masked, removed, {"decoder": heads, "encoder": heads}, counts, {"recall": 2 * n}
    )


def test_claims_are_measured_as_they_say() -> None:
    found = stored()
    values = measuring._values(found, 3)
    margins = measuring._margins(values, ["recall"] * 6 + ["facts"] * 6, ["recall"] * 12)
    assert margins["hit-margin"].note.endswith("by kind: recall 1.00, facts 1.00")
    assert margins["agreement-margin"].interval.estimate == pytest.approx(2.0)
    assert margins["hit-margin"].interval.estimate == pytest.approx(1.0)
    beside = measuring._side_by_side(values)
    assert beside["agreement-attention"].interval.estimate == pytest.approx(-1.0)
    assert beside["hit-contribution-layer"].interval.lo < 1 == beside["hit-contribution-layer"].interval.hi
    assert beside["auc-contribution-layer"].interval.estimate == 1.0
    sinks = measuring._sink_effects(found)
    assert sinks["sink-share-decoder"].interval.estimate == pytest.approx(0.2)
    assert (sinks["sink-convex-decoder"].interval.estimate, sinks["sink-convex-decoder"].interval.n) == (2 / 3, 3)
    assert (sinks["sink-louder-encoder"].interval.estimate, sinks["sink-louder-encoder"].interval.n) == (2 / 3, 3)
    assert sinks["sink-convex-decoder"].note.endswith("-0.30 in those that bend up and 0.40 in those that bend down")
    assert sinks["sink-falling-decoder"].interval.estimate == 0.75
    assert sinks["sink-convex-squared-decoder"].interval.n == 3
    assert sinks["suppression-encoder"].interval.estimate == pytest.approx(0.5 / 3)
    drift = measuring._drift(found.removed)
    assert drift["drift-entropy"].interval.estimate > 0.8 and drift["drift-entropy"].interval.n == 4
    wide, narrow = drift["drift-significant"].interval, drift["drift-entropy"].interval
    assert wide.level == 0.99 and wide.hi - wide.lo > narrow.hi - narrow.lo


def test_no_sink_heavy_head_is_said_and_not_measured() -> None:
    found = stored()
    found.sinks["decoder"]["heavy"][:] = False
    effects = measuring._sink_effects(found)
    assert effects["sink-louder-decoder"].interval is None and "0 of 4 heads" in effects["sink-louder-decoder"].note


def test_the_strongest_measure_is_named_even_where_no_claim_is_about_it() -> None:
    found = stored()
    for scored, masked in zip(found.scores, found.masked):
        scored["scores"]["norm"] = masked["effects"]
        scored["scores"]["contribution_layer"] = -masked["effects"]
    values = measuring._values(found, 3)
    effects = measuring._margins(values, ["recall"] * 12, ["recall"] * 12) | measuring._side_by_side(values)
    shown = pictures.sections(found, effects)
    assert "strongest here: norm-based weights" in shown[0].finding[0]
    assert all(section.picture.html() for section in shown)
    assert "silenced" in shown[-1].picture.html() and "opposes the output" in shown[2].picture.html()


@pytest.mark.parametrize("kind", prompts.KINDS)
def test_prompts_are_distinct_and_bear_their_answer(kind: str) -> None:
    rows = list(prompts.KINDS[kind](20, 5))
    again = [example.inputs for example, _ in prompts.KINDS[kind](20, 5)]
    other = [example.inputs for example, _ in prompts.KINDS[kind](20, 6)]
    texts = [example.inputs for example, _ in rows]
    assert len(set(texts)) == 20 and texts == again and not set(texts) & set(other)
    for example, span in rows:
        start, end = example.spans[span]
        assert example.inputs[start:end] == example.answer.strip()
        assert not example.inputs.endswith(example.answer)


def test_facts_ask_in_other_words() -> None:
    for example, _ in prompts.facts(30, 1):
        assert example.inputs.count(example.answer) == 1 and example.inputs.count(". ") == 4


@pytest.mark.real_model
def test_the_study_runs_on_real_models(tmp_path: Path) -> None:
    study = STUDIES["contribution-weights"]
    need(*study.scales["smoke"].models.values())
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found: dict[str, Any] = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert all(f.effect is not None for f in found.values())
    assert 0 < found["sink-share-decoder"].effect < 0.7 and found["sink-convex-decoder"].n > 200
    assert "Answered right" in done.found.remarks[0] and done.report.stat().st_size > 10_000
