"""Comparing circuits of one task: IoU, what all share, degenerate circuits, the picture of two."""

from __future__ import annotations

import math

import pytest
import torch

from mechanome.circuits import Circuit, Graph, execute
from mechanome.circuits.sheaves import Sheaves, SideBySide, iou_matrix, mean_iou, shared_edges
from mechanome.core import BadInput
from mechanome.engine import LogitDiff, load
from mechanome.zoo import RedundantRecipe, object_prompts, train_redundant

A = ("resid_pre.0->mlp_in.0", "mlp_out.0->logits", "resid_pre.0->logits")
B = ("resid_pre.0->v.0.kv0", "z.0.h0->logits", "resid_pre.0->logits")


@pytest.fixture(scope="module")
def graph() -> Graph:
    recipe = RedundantRecipe(layers=2, heads=2, width=16, mlp=16, steps=1)
    return Graph.of(load(train_redundant(0, recipe, quiet=True), device="cpu"))


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, None, LogitDiff]:
    prompts = object_prompts(6, seed=1)
    return prompts.ids, None, LogitDiff(prompts.good.tolist(), prompts.bad.tolist())


def test_what_circuits_share(graph: Graph) -> None:
    a, b = Circuit.of(graph, A), Circuit.of(graph, B)
    matrix = iou_matrix([a, b, Circuit.empty(graph)])
    assert matrix[0, 1] == matrix[1, 0] == 1 / 5 and matrix[0, 0] == 1 and matrix[0, 2] == 0
    assert math.isnan(matrix[2, 2]) and mean_iou([a, b]) == pytest.approx(0.2)
    shared = shared_edges([a, b, Circuit.of(graph, A[:2])])
    assert [(s.edges, s.mutual) for s in shared] == [(3, 1), (1, 1 / 5), (0, 0)]
    assert shared_edges([Circuit.empty(graph)])[0].mutual is None
    with pytest.raises(BadInput, match="no pair"):
        mean_iou([a])


def test_sheaves_are_pruned_run_and_flagged(graph: Graph, data: tuple) -> None:
    dangling = Circuit.of(graph, [*A, "resid_pre.0->v.1.kv0"])
    nowhere = Circuit.of(graph, ["resid_pre.0->v.1.kv0"])
    given = [dangling, Circuit.of(graph, A), nowhere, Circuit.empty(graph), Circuit.full(graph), Circuit.of(graph, B)]
    found = Sheaves.measured(given, data, quiet=True)
    assert [len(c) for c in found.circuits] == [3, 3, 0, 0, graph.n_edges, 3]
    assert [note.split(":")[0] for note in found.notes] == [
        "circuit 1", "circuit 2 is the same as circuit 1", "circuit 3 is empty", "circuit 4 has no edges",
        "circuit 5 is the whole model",
    ]  # fmt: skip
    ran = execute([*found.circuits, *(~c for c in found.circuits)], data, intervention="zero", quiet=True)
    right = (ran.values > 0).double().mean(1).tolist()
    assert [m.value for m in (*found.accuracy, *found.complement_accuracy)] == pytest.approx(right)
    assert [len(c) for c in found.random.circuits] == [len(c) for c in found.circuits]
    assert found.random.circuits[0] != found.circuits[0] and len(found.random_accuracy) == 6
    assert found.few(3) in found.circuits[:2] + found.circuits[5:] and found.few(2) is None
    assert found.table().rows[0][:2] == (1, 3) and "circuit 4" in found.table().title
    with pytest.raises(BadInput, match="no circuits"):
        Sheaves.measured([], data)


def test_two_circuits_are_drawn_side_by_side(graph: Graph) -> None:
    picture = SideBySide(Circuit.of(graph, A), Circuit.of(graph, B), ("one", "<two>"))
    html = str(picture.html())
    assert html.count("<svg") == 2 and "one: 3 edges" in html and "&lt;two&gt;: 3 edges" in html
    assert "1 edges are in both" in html and "0.2" in html
    assert [row[2] for row in picture.table().rows] == ["both", "one", "one", "<two>", "<two>"]
    assert str(SideBySide(Circuit.empty(graph), Circuit.of(graph, B)).html()).count("<svg") == 2
