"""Paper 10's study: its statistics on circuits made by hand, and a smoke run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mechanome.circuits import Circuit, Graph, Layer
from mechanome.core import silence
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.sheaf_repulsion import SEARCHES, measuring
from mechanome.studies.papers.sheaf_repulsion.measuring import Stored


def packed(graph: Graph, sets: list[list[int]], right: list[float], without: float = 0.5) -> dict:
    """Circuits of the edges of these numbers, right on a share of ten prompts."""
    places = graph.mask.nonzero()
    edges = torch.zeros(len(sets), *graph.shape, dtype=torch.bool)
    for row, numbers in zip(edges, sets):
        for i in numbers:
            row[tuple(places[i])] = True
    rows = torch.arange(10) < 10 * torch.tensor(right)[:, None]
    half = (torch.arange(10) < 10 * without).expand(len(sets), -1)
    return {"edges": edges, "right": rows, "without": half, "random": half, "notes": []}


@pytest.fixture
def stored() -> Stored:
    graph = Graph((Layer(2, 2), Layer(2, 2)))
    sheaves = packed(graph, [[0, 1, 2], [2, 3, 4], [5, 6, 7]], [1.0, 0.9, 1.0])
    restarts = packed(graph, [[0, 1, 2], [0, 1, 3], [0, 1, 4]], [1.0, 1.0, 1.0])
    others = packed(graph, [[0, 1, 2]] * len(SEARCHES), [0.8] * len(SEARCHES))
    ladder = packed(graph, [list(range(9)), [0, 5]], [1.0, 0.7])
    chosen = list(Circuit(graph, ladder["edges"][1]))
    few = {"ladder": ladder, "chosen": chosen, "others": packed(graph, [[1, 2], [3]], [0.9, 0.5])}
    return Stored(graph, [torch.ones(10).bool()], [sheaves], [restarts], [others], [few], [], [])


def test_claims_follow_from_the_circuits(stored: Stored) -> None:
    found = {name: effect.interval for name, effect in measuring._claims(stored).items()}
    assert found["accuracy"].estimate == 0.9 and found["accuracy"].n == 10, "of the worst sheaf"
    assert found["complement"].estimate == 0.5
    assert found["density"].estimate == found["density"].hi == 3 / stored.graph.n_edges
    assert found["apart"].estimate == pytest.approx((1 / 5 / 3) / 0.5)
    assert found["as-accurate"].estimate == pytest.approx(-1 / 30)
    assert found["mutual"].estimate == pytest.approx(0 - 2 / 5) and found["pair"].estimate == 0


def test_what_is_not_defined_is_said(stored: Stored) -> None:
    assert measuring._ratio(np.array([[0.1, 0.0], [0.2, 0.5]])) is None
    empty = packed(stored.graph, [[], []], [0.5, 0.5])
    nothing = Stored(stored.graph, stored.right, [empty], [empty], stored.others, [{"chosen": []}], [], [])
    found = measuring._claims(nothing)
    assert [found[name].interval for name in ("apart", "mutual", "pair")] == [None] * 3
    assert measuring._few(nothing)["few-edges"].interval is None
    assert measuring._language(nothing)["language-iou"].interval is None


def test_few_edges_and_what_is_found_without_them(stored: Stored) -> None:
    found = measuring._few(stored)
    assert found["few-edges"].interval.estimate == 2 and found["few-accuracy"].interval.estimate == 0.7
    assert found["few-without-one"].interval.estimate == pytest.approx(0.7)
    assert "0.900, 0.500" in found["few-without-one"].note


def test_sheaves_of_the_language_model(stored: Stored) -> None:
    each = (([0, 1, 2], 0.8), ([2, 3], 0.6))
    two = [{**packed(stored.graph, [s], [r]), "total": 100, "prompts": [10, 10]} for s, r in each]
    found = measuring._language(Stored(stored.graph, [], [], [], [], [], [], two))
    assert found["language-iou"].interval.estimate == 0.25
    assert found["language-density"].interval.estimate == 0.025
    assert found["language-accuracy"].interval.estimate == pytest.approx(0.7)
    assert found["language-accuracy"].interval.n == 10 and "0.800, 0.600" in found["language-accuracy"].note
    assert found["language-random"].interval.estimate == 0.5 and "would share 0.1" in found["language-iou"].note


def test_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MECHANOME_CACHE", str(tmp_path / "cache"))
    study = STUDIES["sheaf-repulsion"]
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert found["accuracy"].n == 8 and found["complement"].effect is not None
    assert done.report.stat().st_size > 10_000 and json.dumps(done.found.record())
