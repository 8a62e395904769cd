"""Paper 20's study: its parts on small models and known numbers, and a smoke run on the real one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechanome as mn
from families import build
from mechanome.circuits.neurons import Fill, NodeCircuit, Nodes, NodeScores
from mechanome.core import silence
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.neuron_circuits import BASES, KINDS, SCALES, Settings, facts, measuring, pictures
from mechanome.studies.papers.neuron_circuits.prompts import CITIES, NOUNS, Agreement, VerbDifference
from registry_models import need

SIZE = Settings()
IDS = [[11, 45, 23, 67], [71, 24, 9, 33], [12, 46, 24, 68]]


@cache
def model() -> mn.Model:
    return mn.load(build("llama"), check="off")


def test_the_metric_turns_with_the_subject() -> None:
    logits = torch.zeros(2, 9)
    logits[:, 3], logits[:, 5] = 2.0, 4.0  # two singular forms, plural ones at 0
    metric = VerbDifference(torch.tensor([3, 5]), torch.tensor([4, 6]), torch.tensor([False, True]))
    assert metric(logits, torch.tensor([0, 1])).tolist() == [3.0, -3.0]
    assert metric(logits, torch.tensor([1, 1])).tolist() == [-3.0, -3.0]
    assert len(dict(NOUNS)) == 30 and len(dict(CITIES)) == len(CITIES)


def test_random_neurons_are_of_the_same_place_and_as_active() -> None:
    nodes = Nodes.of(model(), IDS)
    fill = Fill.means(nodes, IDS[:1])
    chosen = NodeCircuit.random(nodes, 12, seed=2)
    found = facts._alike(chosen, fill, 1)
    assert len(found) == 12 and not set(found) & set(chosen)
    where = [sorted(nodes.where(i)[:2] for i in some) for some in (chosen, found)]
    assert where[0] == where[1] and list(facts._alike(chosen, fill, 2)) != list(found)


def test_specific_neurons_speak_for_their_own_answer_more_than_others_do() -> None:
    nodes = Nodes.of(model(), IDS)
    each = torch.zeros(3, len(nodes))
    each[:, 4] = 5.0  # of every prompt alike
    each[0, 7], each[1, 8], each[2, 9] = 2.0, 3.0, 4.0
    each[1:, 11] = 3.5  # of both prompts about one state
    found = NodeScores(nodes, each.mean(0), "relp", torch.zeros(3), each)
    answers = torch.tensor([30, 31, 31])
    assert list(facts._specific(found, answers, 0, 1)) == [7]
    assert list(facts._specific(found, answers, 1, 1)) == [11], "prompts about the same state are no contrast"


def runs(sizes: list[int], values: list[float], rows: int = 4) -> dict[str, Any]:
    """Runs of a model whose metric is about 4, and 0 without any node."""
    spread = torch.linspace(0.9, 1.1, rows)
    return {
        "sizes": sizes,
        "values": torch.stack([4 * v * spread for v in values]),
        "without": torch.stack([4 * (1 - v) * spread for v in values]),
        "clean": 4 * spread,
        "empty": torch.zeros(rows),
    }


def stored() -> measuring.Stored:
    circuits, integrated = {}, {}
    for kind in KINDS:
        for seed in (0, 1):
            circuits[kind, seed] = {
                "relp": runs(list(SIZE.sizes), [0.3, 0.6, 0.9, 1.0, 1.0]),
                "gradient": runs([30, 100], [0.2, 0.7]),
                "random": runs([1000], [0.01]),
                "nouns": [f"boy {seed}", f"boy {seed}", f"girl {seed}", f"girl {seed}"],
                "overlap": 0.6 + 0.1 * seed,
                "number": 0.8 + 0.1 * seed,
                "layers": torch.ones(30, 5),
                "nodes": 5000,
            }
        integrated[kind, 0] = runs([30, 100], [0.4, 0.8])
    base = {name: runs([30, 100, 300, 1000, 3000], [0.0, 0.1, 0.2, 0.3, 1.0]) for name in BASES}
    p = torch.tensor([0.4, 0.8])
    found = {
        "cities": ["Dallas (Texas)", "Miami (Florida)"],
        "answers": torch.tensor([30, 31]),
        "clean": p,
        "scaled": p[:, None] * torch.tensor([0.1, 0.25, 0.5, 1.1, 1.2]),
        "random": p * torch.tensor([0.9, 1.0]),
        "moved": torch.tensor([[0.4, 0.2], [0.05, 0.8]]),
        "moved-random": torch.tensor([[0.4, 0.05], [0.05, 0.8]]),
        "before": torch.tensor([[0.4, 0.1], [0.1, 0.8]]),
        "likeliest": torch.tensor([[30, 30], [30, 31]]),
    }
    return measuring.Stored(circuits, [base, base], integrated, found, [["a@-1", "metric", 1.0, 0.5]])


def test_claims_are_measured_as_they_say() -> None:
    found = stored()
    effects = {**measuring._circuits(found, SIZE), **measuring._sparser(found, SIZE)}
    effects |= {**measuring._compared(found, SIZE), **measuring._facts(found.facts)}
    assert set(effects) == set(STUDIES["neuron-circuits"].ids)
    value = {name: effect.interval.estimate for name, effect in effects.items() if effect.interval}
    near = {
        "faithful-simple": 0.9, "complete-nounpp": 0.1, "random-simple": 0.01, "random-without-simple": 0.99,
        "faithful-nounpp-few": 0.6, "off-simple": 0.1, "logit-difference-simple": 4.0, "overlap": 0.65, "number": 0.85,
        "over-gradient-simple-few": 0.4, "over-gradient-simple-top": 0.2, "over-ig-nounpp-few": 0.2,
        "over-ig-nounpp-top": 0.1, "gradient-simple-top": 0.7, "ig-simple-few": 0.4,
        "removed": 0.75, "removed-random": 0.05, "moved": 0.5, "moved-random": 0.0, "moved-likeliest": 0.5,
        "probability": 0.6, "doubled": 0.66, "moved-nats": 0.0,
    }  # fmt: skip
    for name, expected in near.items():
        assert value[name] == pytest.approx(expected, abs=1e-5), name
    act = 10 * 3 ** ((0.5 - 0.3) / 0.3)
    out = 1000 * 3 ** ((0.5 - 0.3) / 0.7)
    assert value["needed-mlp-act"] == pytest.approx(act, rel=1e-4) and value["sparser"] == pytest.approx(
        out / act, rel=1e-4
    )
    assert "1 seed" in effects["over-ig-simple-few"].note and "2 seeds" in effects["over-gradient-simple-few"].note
    assert effects["faithful-simple"].interval and effects["faithful-simple"].interval.n == 4, "nouns, not rows"
    shown = pictures.sections(found, SIZE)
    assert all(section.picture.html() for section in shown) and len(shown) == 5
    none = replace(found, integrated={})
    assert measuring._compared(none, SIZE)["over-ig-simple-few"].interval is None and pictures.sections(none, SIZE)
    assert np.isclose(measuring._off(np.array([[3.0, 2.0, 0.0]])), 0.5) and SCALES.index(0.0) == 1


@pytest.mark.real_model
def test_the_study_runs_on_the_real_model(tmp_path: Path) -> None:
    study = STUDIES["neuron-circuits"]
    need(*study.scales["smoke"].models.values())
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found: dict[str, Any] = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert found["faithful-simple"].effect > 0.5 and abs(found["random-simple"].effect) < 0.1
    assert found["sparser"].effect > 5 and found["moved"].effect > 0 and done.report.stat().st_size > 10_000


@pytest.mark.real_model
def test_prompts_agree_in_number_and_differ_in_the_subject_alone() -> None:
    need("smollm2-135m-instruct")
    real = mn.load("smollm2-135m-instruct", check="off")
    data = Agreement.of(real, "nounpp", [("doctor", "doctors"), ("girl", "girls")])
    own, other = (["".join(row) for row in batch.tokens] for batch in (data.batch, data.other))
    assert own[:4] == [
        "The doctor near the girl", "The doctor near the girls",
        "The doctors near the girl", "The doctors near the girls",
    ]  # fmt: skip
    assert other[:4] == [own[2], own[3], own[0], own[1]]
    assert data.plural.tolist() == [False, False, True, True] * 2 and data.nouns == ("doctor",) * 4 + ("girl",) * 4
    assert data.halves() == ([0, 1, 2, 3], [4, 5, 6, 7])
    logits = real.run(data.batch, logits="last").logits
    assert logits is not None and float(data.metric(logits, torch.arange(8)).mean()) > 1
    simple = Agreement.of(real, "simple", [("doctor", "doctors")])
    assert ["".join(row) for row in simple.batch.tokens] == ["The doctor", "The doctors"]
    one = data.take([3])
    assert one.metric(logits[3:4], torch.tensor([0])) == data.metric(logits, torch.arange(8))[3]
