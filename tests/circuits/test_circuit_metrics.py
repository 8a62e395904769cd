"""Measures of circuits on numbers worked out by hand, and on a model that was run."""

from __future__ import annotations

import math

import pytest
import torch
from circuit_models import METRIC, opened, pair
from torch import Tensor

from mechanome.circuits import Circuit, Graph, Layer
from mechanome.circuits.execution import Executed, execute
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import (
    SIZES,
    accuracy,
    circuit_error,
    completeness,
    divergence,
    faithfulness,
    iou,
    metrics_table,
    ndf,
    size_curve,
    sizes_in_edges,
)
from mechanome.circuits.minimality import minimality
from mechanome.core import BadInput, NotFinite, ShapeMismatch

GRAPH = Graph((Layer(2, 1), Layer(2, 1)))


def made(values: list[list[float]], clean: list[float], empty: list[float], circuits: list[Circuit] | None = None,
         logits: Tensor | None = None) -> Executed:  # fmt: skip
    """Results as they would come from circuits that were run."""
    shape = len(values), len(clean)
    circuits = circuits or [Circuit.full(GRAPH)] * len(values)
    return Executed(
        tuple(circuits), torch.tensor(values), torch.tensor(clean), torch.tensor(empty), torch.rand(shape),
        torch.ones(shape, dtype=torch.bool), ("dense",) * len(values), "patch", logits,
    )  # fmt: skip


def growing(n: int) -> list[Circuit]:
    """Circuits of rising size, the last one full."""
    edges = GRAPH.mask.nonzero()
    found = []
    for k in torch.linspace(1, len(edges), n).long().tolist():
        chosen = torch.zeros_like(GRAPH.mask)
        chosen[edges[:k, 0], edges[:k, 1]] = True
        found.append(Circuit(GRAPH, chosen))
    return found


def test_faithfulness_is_a_ratio_of_means() -> None:
    found = made([[1.0, 2.0, 3.0], [4.0, 4.0, 4.0], [-2.0, 0.0, 0.0]], [4.0, 3.0, 5.0], [1.0, 0.0, -1.0])
    values = [m.value for m in faithfulness(found)]
    assert values == pytest.approx([(2 - 0) / 4, 1.0, (-2 / 3) / 4])
    half = faithfulness(found)[0]
    assert half.interval is not None and half.interval.n == 3
    # Of one example three times over, the ratio is that of the example: (2-0)/(3-0) and so on.
    ends = [(1 - 1) / 3, (2 - 0) / 3, (3 + 1) / 6]
    assert min(ends) <= half.interval.lo < 0.5 < half.interval.hi <= max(ends) + 1e-9 and float(half) == 0.5


def test_ndf_is_clipped_per_example_and_leaves_out_what_the_intervention_does_not_change() -> None:
    found = made([[3.0, 5.0, 9.0, -7.0]], [4.0, 4.0, 4.0, 4.0], [0.0, 0.0, 4.0, 0.0])
    (only,) = ndf(found)
    assert only.each == (0.75, 0.75, None, 0.0)
    assert only.value == pytest.approx(0.5) and only.interval is not None and only.interval.n == 3
    assert "1 of 4 examples left out" in only.note


def test_without_an_effect_there_is_a_reason_and_no_number() -> None:
    found = made([[1.0, 2.0]], [3.0, 3.0], [3.0, 3.0])
    for measure in (faithfulness(found)[0], ndf(found)[0], completeness(found)[0]):
        assert measure.value is None and measure.interval is None and "changes the metric by less" in measure.note
        assert "not defined" in str(measure)
        with pytest.raises(NotFinite, match="changes the metric by less"):
            float(measure)
    curve = size_curve(made([[1.0], [1.0]], [3.0], [3.0], growing(2)))
    assert curve.cpr.value is None and curve.cmd.value is None and curve.faithfulness[0].value is None


def test_an_effect_whose_sign_is_not_sure_has_no_interval() -> None:
    found = made([[1.0, -1.0, 0.5]], [4.0, -4.0, 0.1], [0.0, 0.0, 0.0])
    (only,) = faithfulness(found)
    assert only.value is not None and only.interval is None and "often not defined" in only.note
    (turned,) = faithfulness(made([[1.0, 1.0]], [0.0, 0.0], [2.0, 3.0]))
    assert turned.value == pytest.approx(0.6) and "lower on the clean inputs" in turned.note
    (single,) = faithfulness(made([[1.0]], [2.0], [0.0]))
    assert single.value == 0.5 and single.interval is None and "one example" in single.note


def test_accuracy_and_error_count_examples() -> None:
    found = made([[1.0, -1.0, 2.0, 0.0]], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0])
    found.agrees[0, 3] = False
    assert accuracy(found)[0].value == 0.5 and circuit_error(found)[0].value == 0.25
    interval = accuracy(found)[0].interval
    assert interval is not None and interval.lo < 0.1 and interval.method == "clopper-pearson"


def test_circuit_error_over_given_answers() -> None:
    logits = torch.tensor([[[0.0, 1.0, 9.0], [2.0, 1.0, 9.0]], [[1.0, 0.0, 9.0], [1.0, 0.0, 9.0]]])
    circuits = [Circuit.empty(GRAPH), Circuit.full(GRAPH)]
    found = made([[0.0, 0.0]] * 2, [1.0, 1.0], [0.0, 0.0], circuits, logits)
    assert [m.value for m in circuit_error(found, torch.tensor([0, 1]))] == [0.5, 0.0]
    assert circuit_error(found, torch.tensor([[0, 1], [0, 2]]))[0].value == 0.5
    with pytest.raises(ShapeMismatch, match="2 examples"):
        circuit_error(found, torch.zeros(3, 2, dtype=torch.long))
    with pytest.raises(BadInput, match="logits of the circuits"):
        circuit_error(made([[0.0]], [1.0], [0.0]), torch.tensor([0, 1]))


def test_iou_of_edges_and_of_nodes() -> None:
    a = Circuit.of(GRAPH, ["resid_pre.0->v.0.kv0", "resid_pre.0->logits", "z.0.h0->logits"])
    b = Circuit.of(GRAPH, ["resid_pre.0->v.0.kv0", "resid_pre.0->mlp_in.1"])
    assert iou(a, b).value == pytest.approx(1 / 4) and iou(a, b, "nodes").value == pytest.approx(1 / 2)
    assert iou(a, a).value == 1.0 and iou(Circuit.empty(GRAPH), a).value == 0.0
    neither = iou(Circuit.empty(GRAPH), Circuit.empty(GRAPH))
    assert neither.value is None and neither.note == "both circuits are empty"


def test_cpr_and_cmd_are_areas_by_trapezoids() -> None:
    """f = 0.5, 1.5, 1 at sizes 0.2, 0.6, 1: areas by hand; |1 - f| = 0.5, 0.5, 0."""
    found = made([[1.0, 1.0], [3.0, 3.0], [2.0, 2.0]], [2.0, 2.0], [0.0, 0.0], growing(3))
    curve = size_curve(found, [0.2, 0.6, 1.0])
    assert curve.cpr.value == pytest.approx(0.4 * 1.0 + 0.4 * 1.25)
    assert curve.cmd.value == pytest.approx(0.4 * 0.5 + 0.4 * 0.25)
    shuffled = made([[3.0, 3.0], [2.0, 2.0], [1.0, 1.0]], [2.0, 2.0], [0.0, 0.0], growing(3))
    assert size_curve(shuffled, [0.6, 1.0, 0.2]) == curve
    assert curve.sizes == (0.2, 0.6, 1.0) and [row[1] for row in curve.table().rows] == [0.5, 1.5, 1.0]


def test_a_perfect_method_at_the_sizes_of_mib() -> None:
    values = [[2.0, 2.5]] * len(SIZES)
    curve = size_curve(made(values, [2.0, 2.5], [0.0, 0.0]), SIZES)
    assert curve.cpr.value == pytest.approx(0.999) and curve.cmd.value == pytest.approx(0.0)
    assert curve.cpr.interval is not None and curve.cpr.interval.n == 2
    assert sizes_in_edges(GRAPH, (0.5, 1.0)) == [GRAPH.n_edges // 2, GRAPH.n_edges]


def test_sizes_of_a_curve_that_make_no_sense() -> None:
    found = made([[1.0], [2.0]], [2.0], [0.0])
    with pytest.raises(ShapeMismatch, match="2 circuits"):
        size_curve(found, [0.1])
    with pytest.raises(BadInput, match="differ"):
        size_curve(found)  # two full circuits


def test_measured_says_what_it_knows() -> None:
    assert str(Measured("x", 0.5)) == "x: 0.5" and float(Measured("x", 0.5)) == 0.5
    assert str(Measured("x", None, note="why")) == "x: not defined (why)"


def test_on_a_model() -> None:
    graph = Graph.of(opened("gpt2"))
    generator = torch.Generator().manual_seed(0)
    part = Circuit(graph, graph.mask & (torch.rand(graph.shape, generator=generator) < 0.5))
    circuits = [Circuit.empty(graph), part, Circuit.full(graph)]
    data = pair(4)
    found = execute(circuits, data, METRIC, logits=True, quiet=True)
    others = execute([~c for c in circuits], data, METRIC, quiet=True)
    assert [m.value for m in faithfulness(found)][::2] == pytest.approx([0.0, 1.0], abs=1e-4)
    assert [m.value for m in ndf(found)][::2] == pytest.approx([0.0, 1.0], abs=1e-4)
    assert [m.value for m in completeness(others)][::2] == pytest.approx([1.0, 0.0], abs=1e-4)
    assert found.logits is not None
    says = [found.logits[i].double().log_softmax(-1) for i in (2, 1)]
    by_hand = (says[0].exp() * (says[0] - says[1])).sum(-1)
    assert torch.allclose(found.divergence[1].double(), by_hand, atol=1e-5)
    assert divergence(found)[1].value == pytest.approx(float(by_hand.mean()), abs=1e-5)
    assert circuit_error(found)[2].value == 0.0 and circuit_error(found)[0].value == pytest.approx(
        float((found.logits[0].argmax(-1) != found.logits[2].argmax(-1)).double().mean())
    )
    shown = metrics_table(found, others)
    assert len(shown.rows) == 3 and {"faithfulness", "NDF", "complement accuracy"} <= set(shown.columns)


def test_minimality_takes_out_each_edge() -> None:
    graph, data = Graph.of(opened("gpt2")), pair(3)
    needed = ["resid_pre.0->v.0.kv1", "z.0.h1->logits"]
    needless = ["z.0.h0->mlp_in.0", "resid_pre.0->q.2.h3"]
    circuit = Circuit.of(graph, [*needed, *needless])
    found = minimality(circuit, data, METRIC, quiet=True)
    assert {next(iter(c)) for c in found.removed} == {*needed, *needless}
    losses = {next(iter(c)): loss for c, loss in zip(found.removed, found.losses)}
    assert all(losses[e] == pytest.approx(0.0, abs=1e-5) for e in needless)
    rest = execute([circuit, circuit - Circuit.of(graph, needed[:1])], data, METRIC, quiet=True)
    values = [float(m) for m in faithfulness(rest)]
    assert losses[needed[0]] == pytest.approx(values[0] - values[1], abs=1e-5) and abs(values[0] - values[1]) > 1e-3
    assert found.needless(1e-4).value == 0.5 and found.needless(math.inf).value == 1.0
    assert len(found.table(k=2).rows) == 2
    drawn = minimality(circuit, data, METRIC, sets=4, size=2, seed=1, quiet=True)
    assert [len(c) for c in drawn.removed] == [2] * 4 and all(c <= circuit for c in drawn.removed)
    assert drawn.removed == minimality(circuit, data, METRIC, sets=4, size=2, seed=1, quiet=True).removed
    with pytest.raises(BadInput, match="say how many"):
        minimality(circuit, data, METRIC, size=2)
    with pytest.raises(BadInput, match="the circuit has 4"):
        minimality(circuit, data, METRIC, size=6, sets=2)
