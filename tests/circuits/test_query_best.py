"""Circuits of one query, against a loop over circuits one by one; what is refused; what is not defined."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from circuit_models import METRIC, opened, pair
from torch import Tensor

import mechanome as mn
from mechanome.circuits import (
    BUDGETS,
    QUERY_METHODS,
    Circuit,
    Graph,
    Intervention,
    ScoredQuery,
    execute,
    faithfulness,
    ndf,
    query_circuits,
    scores,
)
from mechanome.core import BadInput, ShapeMismatch

SIZES = (5, 20, 60)
QUERY = pair(1, 6, seed=2)
SAMPLES = [pair(1, 6, seed=3), (*pair(1, 9, seed=4), mn.LogitDiff(9, 11)), pair(1, 6, where=3, seed=5)]
"""Two of the query's length and one longer, that one with a metric of its own."""


@cache
def graph_of(name: str = "llama") -> Graph:
    return Graph.of(opened(name))


def found(method: str = "best-of-n", **settings: Any) -> Any:
    given = {"samples": SAMPLES, "budgets": SIZES, "quiet": True, **settings}
    return query_circuits(graph_of(), QUERY, METRIC, method=method, **given)


def naive(values: Tensor, n: int) -> Circuit:
    """The n edges of the largest scores, one after the other."""
    graph = graph_of()
    flat = [(float(values[i, j].abs()), -k, i, j) for k, (i, j) in enumerate(graph.mask.nonzero().tolist())]
    edges = torch.zeros_like(graph.mask)
    for _, _, i, j in sorted(flat, reverse=True)[:n]:
        edges[i, j] = True
    return Circuit(graph, edges)


@cache
def matrices(steps: int = 5) -> list[Tensor]:
    """Scores of the query and of each sample, each in a call of its own."""
    data = [(*QUERY, METRIC), *((*s, METRIC)[:3] for s in SAMPLES)]
    return [scores(graph_of(), d, steps=steps, quiet=True).values for d in data]


def alone(circuit: Circuit, data: Any = (*QUERY, METRIC)) -> tuple[float, float]:
    """NDF and NFS of one circuit, run alone."""
    ran = execute(circuit, data, quiet=True)
    return float(ndf(ran)[0]), float(faithfulness(ran)[0])


def test_each_size_has_the_best_circuit_of_query_and_samples() -> None:
    circuits = found()
    expected = [[naive(values, n) for n in SIZES] for values in matrices()]
    tried = torch.tensor([[alone(c)[0] for c in row] for row in expected])
    assert torch.allclose(circuits.tried.float(), tried, atol=2e-4)
    assert circuits.winner == tuple(tried.argmax(0).tolist()) and len({*circuits.winner}) > 1
    for i, (n, best) in enumerate(zip(SIZES, circuits.winner)):
        assert circuits.circuits[i] == expected[best][i] and len(circuits.circuits[i]) == n
        assert (circuits.ndf[i], circuits.nfs[i]) == pytest.approx(alone(expected[best][i]), abs=2e-4)
    assert circuits.ndf == pytest.approx(circuits.tried.max(0).values)
    ran = execute(circuits.circuits[0], (*QUERY, METRIC), quiet=True)
    assert circuits.values[0] == pytest.approx(float(ran.values[0, 0]), abs=1e-5)
    assert circuits.total_effect == pytest.approx(float(ran.clean[0] - ran.empty[0]), abs=1e-5)


def test_single_and_averaging_have_one_proposal() -> None:
    for method, values in (("single", matrices()[0]), ("averaging", torch.stack(matrices()).mean(0))):
        circuits = found(method)
        assert circuits.circuits == tuple(naive(values, n) for n in SIZES)
        assert circuits.tried.shape == (1, 3) and circuits.winner == (0, 0, 0)


def test_one_ranking_is_nested_and_begins_with_the_best() -> None:
    best, circuits = found(), found("best-of-n-csm", anchors=SIZES, budgets=(3, 5, 12, 20, 45, 60))
    assert all(a <= b for a, b in zip(circuits.circuits, circuits.circuits[1:]))
    assert circuits.circuits[1] == best.circuits[0] and [len(c) for c in circuits.circuits] == [3, 5, 12, 20, 45, 60]
    assert circuits.winner == best.winner and circuits.ndf[1] == pytest.approx(best.ndf[0])
    for c, near in zip(circuits.circuits, circuits.ndf.tolist()):
        assert near == pytest.approx(alone(c)[0], abs=2e-4)


def test_interpolation_is_the_best_at_anchors_and_between_two_of_them_in_between() -> None:
    best, circuits = found(), found("interpolated", anchors=SIZES, budgets=(5, 12, 20, 45, 60))
    assert circuits.circuits[::2] == best.circuits and [len(c) for c in circuits.circuits] == [5, 12, 20, 45, 60]
    small, middle, large = best.circuits
    assert small <= circuits.circuits[1] <= small | middle and middle <= circuits.circuits[3] <= middle | large
    assert found("interpolated").circuits == best.circuits


def test_the_whole_graph_is_the_model_and_no_edge_is_the_other_input() -> None:
    graph = graph_of()
    circuits = found(budgets=(1, graph.n_edges))
    assert circuits.ndf[-1] == pytest.approx(1, abs=1e-4) and circuits.nfs[-1] == pytest.approx(1, abs=1e-4)
    assert alone(Circuit.empty(graph)) == pytest.approx((0, 0), abs=1e-4)
    assert float(circuits.ndf.min()) >= 0


def test_more_proposals_are_never_worse() -> None:
    curve = found().best_of()
    assert curve.shape == (4, 3) and bool((curve.diff(dim=0) >= 0).all()) and bool((curve[-1] > curve[0]).any())
    assert torch.equal(curve[-1], found().ndf)


def test_a_batch_of_samples_is_scored_as_one_by_one() -> None:
    ready = ScoredQuery.of(graph_of(), QUERY, METRIC, samples=SAMPLES, quiet=True)
    assert len(ready.scores) == 4
    for mine, values in zip(ready.scores, matrices()):
        assert torch.allclose(mine.values, values, atol=1e-5 * float(values.abs().max()))
    assert [float(s.clean) for s in ready.scores][2] != pytest.approx(float(ready.scores[0].clean), abs=1e-3)


def test_scores_and_steps_are_those_asked_for() -> None:
    ready = ScoredQuery.of(graph_of(), QUERY, METRIC, score="eap-ig", steps=2, quiet=True)
    assert torch.allclose(ready.scores[0].values, matrices(2)[0], atol=1e-6) and ready.scores[0].steps == 2
    assert not torch.allclose(matrices(2)[0], matrices()[0], atol=1e-6)
    exact = ScoredQuery.of(graph_of(), QUERY, METRIC, score="exact", quiet=True).scores[0]
    assert not exact.estimate


def test_methods_share_what_they_ran() -> None:
    ready = ScoredQuery.of(graph_of(), QUERY, METRIC, samples=SAMPLES, quiet=True)
    for method in ("best-of-n", "single", "best-of-n-csm"):
        shared, own = ready.circuits(method, SIZES), found(method)
        assert shared.circuits == own.circuits and shared.ndf == pytest.approx(own.ndf, abs=2e-4)


@pytest.mark.parametrize("method", ["gaussian", "edge-replacement", "random"])
def test_controls_choose_among_as_many_circuits_without_looking_at_samples(method: str) -> None:
    circuits = found(method)
    assert len(circuits.candidates) == 4 and circuits.tried.shape == (4, 3)
    assert circuits.ndf == pytest.approx(circuits.tried.max(0).values)
    assert found(method, seed=0).circuits == circuits.circuits
    other = found(method, samples=[SAMPLES[2]] * 3)
    assert other.circuits == circuits.circuits and not any("sample" in note for note in circuits.notes)
    assert len(found(method, samples=()).candidates) == 10 and len(found(method, draws=2).candidates) == 3


def test_without_samples_only_the_query_proposes_and_this_is_said() -> None:
    circuits, single = found(samples=()), found("single")
    assert circuits.circuits == single.circuits and circuits.candidates == ("query",)
    assert any("no samples" in note for note in circuits.notes) and not any("no samples" in n for n in single.notes)


def test_a_held_out_input_is_measured_and_nothing_is_chosen_on_it() -> None:
    other = pair(1, 7, seed=9)
    circuits = found(held_out=other)
    assert circuits.circuits == found().circuits and circuits.held_out is not None
    for c, near in zip(circuits.circuits, circuits.held_out):
        assert float(near) == pytest.approx(alone(c, (*other, METRIC))[0], abs=2e-4)
    assert circuits.table().columns[-1] == "NDF held out" and found().held_out is None
    assert any("chosen by their NDF" in n for n in found().notes)
    assert not any("chosen by their NDF" in n for n in circuits.notes)


def test_the_smallest_circuit_is_the_first_that_is_good_enough() -> None:
    circuits = found(budgets=(5, 20, 60, graph_of().n_edges))
    values = circuits.ndf.tolist()
    assert circuits.smallest(0) == (circuits.circuits[0], values[0])
    first = next(i for i, v in enumerate(values) if v >= 0.8)
    assert circuits.smallest() == (circuits.circuits[first], values[first]) and circuits.smallest(1.1) is None


def test_tables_say_what_was_found() -> None:
    circuits = found("best-of-n-csm", anchors=(5, 60), budgets=(5, 20, 60))
    table, curve = circuits.table(), circuits.curve()
    assert [row[0] for row in table.rows] == [5, 20, 60]
    assert [row[4] for row in table.rows] == circuits.ndf.tolist() and table.rows[0][2] <= 5
    names = [circuits.candidates[w] for w in circuits.winner]
    assert [row[6] for row in table.rows] == [names[0], " and ".join(dict.fromkeys(names)), names[1]]
    assert tuple(curve.columns[3:]) == circuits.candidates
    assert list(curve.rows[0][3:]) == circuits.tried[:, 0].tolist() and set(curve.rows[1][3:]) == {None}
    assert "5 to 60" in repr(circuits) and "<table" in circuits._repr_html_()


def test_a_counterfactual_that_changes_nothing_gives_no_number() -> None:
    def flat(logits: Tensor, rows: Tensor) -> Tensor:
        return METRIC(logits, rows) * 1e-6

    circuits = query_circuits(graph_of(), QUERY, flat, samples=SAMPLES, budgets=SIZES, quiet=True)
    assert bool(circuits.ndf.isnan().all()) and bool(circuits.nfs.isnan().all()) and bool(circuits.tried.isnan().all())
    assert "less than" in circuits.undefined and any(circuits.undefined in note for note in circuits.notes)
    assert circuits.smallest(0) is None and circuits.winner == (0, 0, 0)
    assert [row[4] for row in circuits.table().rows] == [None] * 3 and "not defined" in repr(circuits)


@pytest.mark.parametrize("change", ["zero", Intervention("mean", reference=pair(4)[0])], ids=["zero", "mean"])
def test_other_interventions_need_no_counterfactual(change: Any) -> None:
    circuits = query_circuits(
        graph_of(),
        (QUERY[0], None),
        METRIC,
        samples=[(SAMPLES[0][0], None)],
        budgets=SIZES,
        intervention=change,
        quiet=True,
    )
    ran = execute(circuits.circuits[1], (QUERY[0], None), METRIC, intervention=change, quiet=True)
    assert circuits.ndf[1] == pytest.approx(float(ndf(ran)[0]), abs=2e-4) and len(circuits.candidates) == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown method": ({"method": "best"}, "best-of-n"),
    "unknown score": ({"score": "eapig"}, "eap-ig"),
    "unknown intervention": ({"intervention": "swap"}, "intervention"),
    "no metric": ({"metric": None}, "metric"),
    "budgets beyond the graph": ({"budgets": (5, 10**6)}, "edges"),
    "default budgets on a tiny graph": ({"budgets": BUDGETS}, "sizes_in_edges"),
    "budgets that fall": ({"budgets": (20, 5)}, "rise"),
    "budgets twice": ({"budgets": (5, 5)}, "rise"),
    "no budget": ({"budgets": ()}, "none"),
    "a budget of no edge": ({"budgets": (0, 5)}, "positive"),
    "budgets as text": ({"budgets": "100"}, "sizes"),
    "several queries": ({"query": pair(2)}, "samples="),
    "no counterfactual": ({"query": (QUERY[0], None)}, "corrupted"),
    "no pair": ({"query": "a text"}, "pair"),
    "samples that are no pairs": ({"samples": "text"}, "Task"),
    "a sample that is no pair": ({"samples": ["text"]}, "pair"),
    "anchors of another method": ({"anchors": (5, 60)}, "interpolated"),
    "a budget beyond the anchors": ({"method": "interpolated", "anchors": (5, 20)}, "anchor"),
    "a strength of another method": ({"strength": 0.1}, "gaussian"),
    "a share above one": ({"method": "edge-replacement", "strength": 1.5}, "share"),
    "no noise": ({"method": "gaussian", "strength": 0.0}, "above 0"),
    "no draws": ({"method": "random", "draws": 0}, "draws"),
    "means over nothing": ({"intervention": "mean"}, "reference"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_cannot_be_done_is_refused_with_the_fix(case: str) -> None:
    wrong, said = WRONG[case]
    given: dict[str, Any] = {"query": QUERY, "metric": METRIC, "samples": SAMPLES, "budgets": SIZES, **wrong}
    with pytest.raises(BadInput, match=said):
        query_circuits(graph_of(), given.pop("query"), given.pop("metric"), quiet=True, **given)


def test_both_sides_of_a_pair_are_of_one_length() -> None:
    uneven = QUERY[0], pair(1, 7)[1]
    with pytest.raises(ShapeMismatch, match="tokens"):
        query_circuits(graph_of(), uneven, METRIC, budgets=SIZES, quiet=True)
    with pytest.raises(ShapeMismatch, match="tokens"):
        query_circuits(graph_of(), QUERY, METRIC, samples=[uneven], budgets=SIZES, quiet=True)


def test_scores_must_be_of_edges_of_this_graph() -> None:
    ready = ScoredQuery.of(graph_of(), QUERY, METRIC, quiet=True)
    nodes = scores(graph_of(), (*QUERY, METRIC), level="node", quiet=True)
    with pytest.raises(BadInput, match="edges"):
        ScoredQuery(ready.graph, ready.data, (nodes,), ready.intervention)
    with pytest.raises(BadInput, match="different graphs"):
        ScoredQuery(graph_of("gpt2"), ready.data, ready.scores, ready.intervention)
    with pytest.raises(BadInput, match="score the query"):
        ScoredQuery(ready.graph, ready.data, (), ready.intervention)


def test_every_method_is_told_of() -> None:
    assert all(method.definition for method in QUERY_METHODS.values())
    assert {"single", "averaging", "best-of-n", "best-of-n-csm", "interpolated"} < {*QUERY_METHODS}
