"""Screening: the strongest estimates are measured, both numbers are kept, and the exact one is what counts."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from circuit_models import METRIC, apart, opened, pair
from scipy.stats import spearmanr
from torch import Tensor

from mechanome.circuits import Circuit, Graph, Layer, Scores, scores
from mechanome.circuits.screening import VERIFIED, Screened, cost, screen, top
from mechanome.core import BadInput

SMALL = Graph((Layer(2, 1, True), Layer(2, 1, True)))


def graph() -> Graph:
    return Graph.of(opened("llama"))


def made(values: Tensor, method: str, estimate: bool) -> Scores:
    zeros = torch.zeros(3)
    return Scores(SMALL, values, "edge", method, "patch", estimate, zeros, zeros - 1.0)


def by_hand(pairs: list[tuple[str, float, float | None]]) -> Screened:
    """Estimates and exact effects of named edges; other estimates are tiny and rising."""
    estimate = torch.linspace(1e-6, 2e-6, SMALL.mask.numel()).reshape(SMALL.shape) * SMALL.mask
    exact = torch.full(SMALL.shape, float("nan")).masked_fill(~SMALL.mask, 0.0)
    for edge, guess, measured in pairs:
        estimate[SMALL.index(edge)] = guess
        if measured is not None:
            exact[SMALL.index(edge)] = measured
    return Screened(made(estimate, "eap", True), made(exact, "exact", False))


PAIRS: list[tuple[str, float, float | None]] = [
    ("resid_pre.0->q.0.h0", -0.9, -0.1),
    ("z.0.h0->q.1.h1", -0.8, 0.5),
    ("z.1.h1->logits", 0.7, 0.6),
    ("mlp_out.0->logits", 0.6, 0.7),
    ("z.0.h1->logits", -0.4, None),
]


def test_the_strongest_are_measured_and_both_columns_are_kept() -> None:
    clean, other = pair(2)
    data = clean, other
    found = screen(graph(), data, METRIC, by="eap", verify=20, quiet=True)
    estimate = scores(graph(), data, METRIC, method="eap", quiet=True)
    exact = scores(graph(), data, METRIC, method="exact", quiet=True)
    strongest = estimate.values.abs().flatten().topk(20).indices
    assert set(found.verified.flatten().nonzero()[:, 0].tolist()) == set(strongest.tolist())
    assert torch.equal(found.estimate.values, estimate.values)
    assert found.exact is not None and apart(found.exact.values[found.verified], exact.values[found.verified]) < 1e-6
    expected = torch.where(found.verified, exact.values, estimate.values)
    assert apart(found.scores.values, expected) < 1e-6 and found.scores.estimate
    correlation = spearmanr(estimate.values[found.verified], exact.values[found.verified]).statistic
    assert found.agreement is not None and abs(found.agreement.estimate - correlation) < 1e-9
    assert found.agreement.lo <= correlation <= found.agreement.hi and found.agreement.n == 20


def test_signs_and_orders_that_change_are_counted() -> None:
    found = by_hand(PAIRS)
    assert found.signs_changed == 1
    guess, real = (x.abs().tolist() for x in found.pairs())
    swapped = [(guess[i] - guess[j]) * (real[i] - real[j]) < 0 for i, j in combinations(range(4), 2)]
    assert found.reordered is not None and found.reordered == pytest.approx(sum(swapped) / 6) and any(swapped)


def test_a_circuit_is_chosen_by_the_exact_effect_where_it_is_known() -> None:
    found = by_hand(PAIRS)
    assert set(top(found.estimate, 2)) == {"resid_pre.0->q.0.h0", "z.0.h0->q.1.h1"}
    assert set(top(found.scores, 2)) == {"z.1.h1->logits", "mlp_out.0->logits"}
    assert set(top(found.scores, 4)) == {"z.1.h1->logits", "mlp_out.0->logits", "z.0.h0->q.1.h1", "z.0.h1->logits"}
    assert set(top(found.scores, 1, "lowest")) == {"z.0.h1->logits"}
    assert len(found.circuit(2)) == 0  # on no path from the embedding
    [first, *_, last] = found.table(5).rows
    assert first[:2] == ("mlp_out.0", "logits") and first[2:4] == (pytest.approx(0.6), pytest.approx(0.7))
    assert last[:4] == ("resid_pre.0", "q.0.h0", pytest.approx(-0.9), pytest.approx(-0.1))
    remarks = {row[0]: row[4] for row in found.table(5).rows}
    assert remarks["z.0.h0"] == "another sign" and remarks["z.0.h1"] == "" and remarks["z.1.h1"] == ""


def test_nothing_needs_to_be_measured() -> None:
    found = screen(graph(), pair(2), METRIC, by="eap", verify=0, quiet=True)
    assert found.exact is None and not found.verified.any() and found.scores is found.estimate
    assert found.agreement is None and found.reordered is None and found.signs_changed == 0


def test_one_edge_has_no_correlation() -> None:
    found = screen(graph(), pair(2), METRIC, by="eap", verify=1, quiet=True)
    assert int(found.verified.sum()) == 1 and found.agreement is None and found.reordered is None


def test_usually_a_hundred_are_measured_and_what_it_costs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = screen(graph(), pair(1), METRIC, by="eap")
    assert int(found.verified.sum()) == min(VERIFIED, graph().n_edges)
    said = capsys.readouterr().err
    chosen = Circuit(found.graph, found.verified)
    assert "measuring 100 edges exactly" in said and f"{cost(chosen, 1):,.0f} forward passes" in " ".join(said.split())
    screen(graph(), pair(1), METRIC, by="eap", verify=3, quiet=True)
    assert capsys.readouterr().err == ""


def test_of_sources_as_many_are_measured_as_asked(capsys: pytest.CaptureFixture[str]) -> None:
    found = screen(graph(), pair(2), METRIC, by="eap", level="node", verify=3)
    assert "measuring 3 sources exactly: at most 6 forward passes" in " ".join(capsys.readouterr().err.split())
    strongest = found.estimate.values.abs().argsort(descending=True, stable=True)[:3]
    assert sorted(found.verified.nonzero()[:, 0].tolist()) == sorted(strongest.tolist())
    exact = scores(graph(), pair(2), METRIC, method="exact", level="node", quiet=True)
    assert torch.allclose(found.scores.values[strongest], exact.values[strongest], atol=1e-6)
    with pytest.raises(BadInput, match="sources"):
        screen(graph(), pair(2), METRIC, by="eap", level="node", verify=len(graph().sources) + 1)


def test_what_an_edge_costs_is_what_runs_behind_it() -> None:
    def of(edge: str) -> float:
        return cost(Circuit.of(SMALL, [edge]), 3)

    assert of("resid_pre.0->q.0.h0") == 3 and of("resid_pre.0->mlp_in.1") == 1.5 and of("mlp_out.0->logits") == 0


def test_sources_are_all_measured() -> None:
    found = screen(graph(), pair(2), METRIC, by="eap-ig", level="node", quiet=True, steps=3)
    exact = scores(graph(), pair(2), METRIC, method="exact", level="node", quiet=True)
    assert found.verified.all() and found.estimate.steps == 3
    assert apart(found.scores.values, exact.values) < 1e-6 and not found.scores.estimate
    assert found.table(3).columns[:3] == ("source", "estimate", "exact")
    strongest = graph().sources[int(exact.values.abs().argmax())]
    assert top(found.scores, 1) == Circuit.of_nodes(graph(), [strongest])


def test_what_measuring_sources_costs_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    screen(graph(), pair(2), METRIC, by="eap", level="node")
    n = len(graph().sources)
    said = " ".join(capsys.readouterr().err.split())
    assert f"measuring {n} sources exactly" in said and f"{2 * n} forward passes" in said


def test_scores_per_input_are_combined_input_by_input() -> None:
    found = screen(graph(), pair(3), METRIC, by="eap", verify=10, per_input=True, quiet=True)
    each = found.scores.each
    assert each is not None and each.shape[0] == 3
    assert apart(each.mean(0), found.scores.values) < 1e-5


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"by": "exact"}, "it is no estimate"),
        ({"by": "ep"}, "did you mean 'eap'"),
        ({"verify": -1}, "the graph has"),
        ({"verify": 10**6}, "the graph has"),
        ({"verify": 1.5}, "the graph has"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        screen(graph(), pair(1), METRIC, quiet=True, **settings)
    with pytest.raises(BadInput, match="choose a smaller size"):
        top(by_hand(PAIRS).scores, 1000)
