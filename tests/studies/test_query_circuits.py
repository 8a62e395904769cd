"""Paper 06's study: its queries, its statistics on numbers with a known answer, and a smoke run on a real model."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mechanome.core import silence
from mechanome.engine import load
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.query_circuits import ARMS, Settings, measuring
from mechanome.studies.papers.query_circuits.prompts import CAPITALS, KINDS, example_of, queries
from mechanome.tasks import Task
from registry_models import need

BUDGETS = (100, 1000, 5000)
SIZE = Settings(queries=2, samples=2, candidates=4, budgets=BUDGETS, between=(300,))


def one(best: float, single: float, elsewhere: float, winner: int = 1) -> dict[str, Any]:
    """A query whose circuits all have these NDFs, and 1 at the largest size."""

    def row(value: float) -> torch.Tensor:
        return torch.tensor([value, value, 1.0], dtype=torch.float64)

    ndf = {arm: row(0.1) for arm in ARMS} | {"best-of-n": row(best), "single": row(single)}
    return {
        "ndf": ndf,
        "nfs": {arm: x + (1.0 if best > 0.8 else 0.0) for arm, x in ndf.items()},
        "held_out": {arm: row(elsewhere if arm == "best-of-n" else 0.2) for arm in measuring.ELSEWHERE},
        "tried": torch.stack([row(single), row(best), row(0.0)]),
        "winner": [winner, winner, 0],
        "between": {arm: torch.tensor([best - gap]) for arm, gap in
                    (("best-of-n", 0.0), ("interpolated", 0.1), ("best-of-n-csm", 0.2))},
        "full": 1.0,
        "empty": 0.0,
        "effect": 2.0,
    }  # fmt: skip


def stored() -> measuring.Stored:
    found = [one(0.9, 0.4, 0.5), one(0.7, 0.4, 0.3), one(0.8, 0.6, 0.4, 0), one(0.6, 0.2, 0.4)]
    return measuring.Stored(("a", "a", "b", "b"), [[["q", "x", "y", "c"]]] * 4, found, {"a": (2, 3), "b": (2, 2)})


def test_means_are_over_queries_and_small_sizes() -> None:
    effects = measuring._methods(stored(), SIZE)
    value = {id: effect.interval.estimate for id, effect in effects.items() if effect.interval}
    assert value["ndf-best-of-n"] == pytest.approx(0.75) and value["ndf-single"] == pytest.approx(0.4)
    assert value["best-over-single"] == pytest.approx(0.35) and value["best-over-random"] == pytest.approx(0.65)
    assert value["others-win"] == pytest.approx(0.75) and "a 0.400, b 0.300" in effects["best-over-single"].note
    assert value["more-samples"] == 0, "the second sample adds nothing"


def test_what_is_left_elsewhere_and_between() -> None:
    value = {id: e.interval.estimate for id, e in measuring._elsewhere(stored(), SIZE).items() if e.interval}
    assert value["held-out-best"] == pytest.approx(0.4) and value["held-out-gain"] == pytest.approx(0.2)
    assert value["chosen-gain"] == pytest.approx(0.35)
    value = {id: e.interval.estimate for id, e in measuring._between(stored(), SIZE).items() if e.interval}
    assert value["ndf-between"] == pytest.approx(0.75) and value["interpolated-between"] == pytest.approx(-0.1)
    assert value["one-ranking-between"] == pytest.approx(-0.2)


def test_bounds_are_counted() -> None:
    value = {id: e.interval.estimate for id, e in measuring._sanity(stored(), SIZE).items() if e.interval}
    assert value["in-range"] == 1 and value["full-graph"] == 0 and value["empty-graph"] == 0
    assert value["nfs-leaves"] == 0.25 and value["reach-best"] == 1
    worse = one(0.1, 0.1, 0.1)
    worse["ndf"]["single"][0] = 1.5
    broken = measuring.Stored(("a", "a"), stored().rows[:2], [worse, one(0.5, 0.5, 0.5)], {})
    assert measuring._sanity(broken, SIZE)["in-range"].interval.estimate < 1


def test_every_claim_and_quantity_is_measured() -> None:
    study, found = STUDIES["query-circuits"], stored()
    parts = (measuring._methods, measuring._sanity, measuring._elsewhere, measuring._between)
    assert {id for part in parts for id in part(found, SIZE)} == {*study.ids}


@pytest.mark.parametrize("kind", list(KINDS))
def test_counterfactuals_change_what_decides(kind: str) -> None:
    class Words:
        """A model whose tokens are words."""

        def single_token(self, text: str) -> int:
            return 1

        def encode(self, texts: list[str]) -> Any:
            return SimpleNamespace(frame=SimpleNamespace(lengths=tuple(len(text.split()) for text in texts)))

    groups = list(KINDS[kind].draw(Words(), Random(0), 20))  # type: ignore[arg-type]
    assert len(groups) == 20 and len({key for key, _ in groups}) == {"receivers": 2, "capitals": 20, "sums": 1}[kind]
    for _, group in groups:
        assert len(group) == (len(CAPITALS) if KINDS[kind].wordings else 1)
        for example in group:
            assert example.answer != example.foil and example.inputs != example.counterfactual
            assert len(example.inputs.split()) == len(example.counterfactual.split())
            if kind == "sums":
                a, _, b, _ = example.inputs.splitlines()[-1].split()
                c = example.counterfactual.splitlines()[-1].split()[0]
                assert example.answer == f" {int(a) + int(b)}" and example.foil == f" {int(c) + int(b)}"


@pytest.mark.real_model
def test_queries_have_samples_of_their_template_and_one_more() -> None:
    need("smollm2-135m-instruct")
    model = load("smollm2-135m-instruct")
    with silence():
        found = queries(model, "receivers", 100, 3, 2, 16, 1.0)
    assert 0 < found["right"] <= found["asked"] == 16 and len(found["queries"]) == 3
    for group in found["queries"]:
        assert len(group) == 4 and len({tuple(row) for row in group}) == 4
        assert len({row[0].index(row[1].strip()) < row[0].index(row[2].strip()) for row in group}) == 1, "one order"
        task = Task("query", (example_of(group[0]),))
        clean, _, metric = task.batch(model)
        logits = model.run(clean, [], logits="last").logits
        assert logits is not None and logits.argmax(-1).tolist() == list(metric.answer)  # type: ignore[attr-defined]


@pytest.mark.real_model
def test_the_study_runs_on_a_real_model(tmp_path: Path) -> None:
    study = STUDIES["query-circuits"]
    need(study.scales["smoke"].models["decoder"])
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert all(f.effect is not None for f in found.values())
    assert abs(found["full-graph"].effect or 0) < 1e-3 and abs(found["empty-graph"].effect or 0) < 1e-3
    assert found["in-range"].effect == 1 and "Used:" in done.found.remarks[0]
    assert done.report.stat().st_size > 10_000 and json.dumps(done.found.record())
