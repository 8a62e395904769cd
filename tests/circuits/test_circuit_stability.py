"""Stability of circuits: resamples, sets, similarities and intervals against numbers known beforehand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from circuit_models import METRIC, opened, pair
from scipy.special import ndtr

from mechanome.circuits import Circuit, Graph, Layer, Scores, scores
from mechanome.circuits.effects import Effects
from mechanome.circuits.resampling import Resamples, jackknifed, left_out
from mechanome.circuits.selecting import Select
from mechanome.circuits.similarity import chance_level, jaccard, kendall, weighted_jaccard
from mechanome.circuits.stability import bootstrap_circuits, stability_report
from mechanome.circuits.stability_card import side_by_side
from mechanome.core import BadInput, NotFinite, ShapeMismatch, TooFewRows, UnknownName


def drawn(inputs: int, components: int, seed: int = 0, signal: float = 0.0) -> torch.Tensor:
    """Normal effects, whose means grow from 0 to `signal`, `[input, component]`."""
    generator = torch.Generator().manual_seed(seed)
    return signal * torch.linspace(0, 1, components) + torch.randn(inputs, components, generator=generator)


def edge_scores(each: torch.Tensor, graph: Graph) -> Scores:
    """Scores of edges per input."""
    zero = torch.zeros(len(each))
    return Scores(graph, each.mean(0), "edge", "exact", "patch", False, zero, zero, each)


# Resamples -----------------------------------------------------------------------------------------------------


def test_bootstrap_draws_with_replacement_and_fresh_pairs_share_no_input() -> None:
    again = Resamples.of(7, 5, 400, seed=1)
    assert again.rows.shape == (400, 5) and len(again.pairs) == 400 * 399 // 2
    counts = torch.bincount(again.rows.flatten(), minlength=7) / again.rows.numel()
    assert (counts - 1 / 7).abs().max() < 0.03 and bool((again.drawn.sum(1) < 5).any())
    fresh = Resamples.of(11, 5, 40, "fresh", seed=1)
    assert bool((fresh.drawn.sum(1) == 5).all()) and len(fresh.pairs) == 20
    assert not bool((fresh.drawn[fresh.pairs[:, 0]] & fresh.drawn[fresh.pairs[:, 1]]).any())
    assert torch.equal(Resamples.of(7, 5, 400, seed=1).rows, again.rows)


@pytest.mark.parametrize("aggregate", ["mean", "absolute", "median"])
@pytest.mark.parametrize("n", [4, 5])
def test_estimates_are_those_of_the_drawn_inputs(aggregate: Any, n: int) -> None:
    x, again = drawn(6, 3), Resamples.of(6, n, 10)
    plain = {"mean": lambda v: v.mean(0), "absolute": lambda v: v.abs().mean(0), "median": lambda v: v.quantile(0.5, 0)}
    expected = torch.stack([plain[aggregate](x[rows]) for rows in again.rows])
    assert torch.allclose(again.estimates(x, aggregate), expected, atol=1e-6)


def test_pairs_that_are_costly_are_few_and_spread_over_samples() -> None:
    some = Resamples.of(5, 5, 50).some_pairs(120)
    assert some.shape == (120, 2) and bool((some[:, 0] != some[:, 1]).all())
    assert torch.bincount(some.flatten(), minlength=50).min() >= 4
    assert len({tuple(sorted(p)) for p in some.tolist()}) == 120
    assert len(Resamples.of(5, 5, 4).some_pairs(120)) == 6


def test_what_is_left_without_an_input() -> None:
    members = torch.tensor([[True, False], [False, True], [False, False]])
    assert left_out(torch.tensor([1.0, 2.0, 6.0]), members).tolist() == [4.0, 3.5]
    with pytest.raises(TooFewRows, match="1 of 2 inputs are in all"):
        left_out(torch.tensor([1.0, 2.0]), torch.tensor([[True, False], [True, True]]))


def test_the_jackknife_after_the_bootstrap_gives_the_standard_error_of_a_mean() -> None:
    x = drawn(20, 1, seed=3)[:, 0]
    again = Resamples.of(20, 20, 20_000)
    found = again.over_samples(again.estimates(x[:, None])[:, 0])
    error = float(x.std()) / math.sqrt(20)
    assert found.estimate == pytest.approx(float(x.mean()), abs=0.01)
    assert (found.hi - found.lo) / 2 / 1.96 == pytest.approx(error, rel=0.15) and found.n == 20
    narrow = jackknifed(again.estimates(x[:, None])[:, 0], again.drawn, level=0.5)
    assert (narrow.hi - narrow.lo) / (found.hi - found.lo) == pytest.approx(0.6745 / 1.96, rel=1e-3)


def test_intervals_cover_what_other_inputs_give() -> None:
    """Over many sets of inputs, the interval of the mean Jaccard index is as wide as the index varies, or wider."""
    points = [bootstrap_circuits(drawn(16, 30, s, 1.5), None, 8, samples=150).point("8") for s in range(40)]
    middle = sum(p.jaccard.estimate for p in points) / 40
    assert sum(p.jaccard.lo <= middle <= p.jaccard.hi for p in points) >= 34
    spread = torch.tensor([p.jaccard.estimate for p in points]).std()
    width = sum((p.jaccard.hi - p.jaccard.lo) / 2 / 1.96 for p in points) / 40
    assert 0.8 < width / float(spread) < 3


# Sets ----------------------------------------------------------------------------------------------------------


def test_the_largest_by_size_or_by_sign() -> None:
    effects = Effects.of(torch.zeros(2, 4))
    row = torch.tensor([[1.0, -3.0, 2.0, 0.0]])
    chosen = {by: Select(2, by).sets(row, effects.components)[0].nonzero().flatten().tolist()
              for by in ("absolute", "highest", "lowest")}  # fmt: skip
    assert chosen == {"absolute": [1, 2], "highest": [0, 2], "lowest": [1, 3]}


def test_the_minimal_connected_circuit() -> None:
    graph = Graph((Layer(2, 2), Layer(2, 2)))
    path = ["resid_pre.0->v.0.kv1", "z.0.h1->mlp_in.1", "mlp_out.1->logits"]
    useless = ["z.0.h0->q.1.h0", "mlp_out.0->k.1.kv0"]
    values = torch.zeros(graph.shape)
    for rank, edge in enumerate([useless[0], path[0], path[1], useless[1], path[2], "resid_pre.0->logits"]):
        values[graph.index(edge)] = 6.0 - rank
    found = edge_scores(values.expand(3, *graph.shape), graph)
    sampled = bootstrap_circuits(found, None, Select(), samples=4)
    assert all(circuit == Circuit.of(graph, path) for circuit in sampled.circuits())
    cut = bootstrap_circuits(found, None, Select(5), samples=4)
    assert all(circuit == Circuit.of(graph, path + useless) for circuit in cut.circuits())
    pruned = bootstrap_circuits(found, None, Select(5, prune=True), samples=4)
    assert torch.equal(pruned.sets, sampled.sets)
    point = stability_report(found, sizes=["minimal", 2], samples=60, quiet=True).at("minimal")
    assert point.size == 3 and point.jaccard.estimate == 1 and point.nodes is not None
    assert point.node_chance == pytest.approx(3 / (2 * len(graph.sources) - 3))


def test_non_edges_are_no_candidates() -> None:
    graph = Graph((Layer(2, 1),))
    each = torch.zeros(4, *graph.shape)
    each[:, graph.mask] = 1.0
    found = bootstrap_circuits(edge_scores(each, graph), None, 5, samples=4)
    assert len(found.components) == graph.n_edges and not bool((found.sets & ~graph.mask).any())
    with pytest.raises(BadInput, match=f"there are {graph.n_edges} components"):
        bootstrap_circuits(edge_scores(each, graph), None, graph.n_edges)


# Similarity ----------------------------------------------------------------------------------------------------


def test_similarities_of_known_pairs() -> None:
    pairs = torch.tensor([[0, 1], [0, 2], [2, 2]])
    sets = torch.tensor([[True, True, False, False], [False, True, True, False], [False] * 4])
    assert jaccard(sets, pairs).tolist() == [1 / 3, 0, 1]
    weights = torch.tensor([[1.0, -2.0, 0.0], [-1.0, 4.0, 3.0], [0.0, 0.0, 0.0]])
    assert weighted_jaccard(weights, pairs).tolist() == pytest.approx([3 / 8, 0, 1])
    ranks = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    assert kendall(ranks, torch.tensor([[0, 1], [0, 2]])).tolist() == pytest.approx([-1, 1 / 3])


def test_noise_is_as_alike_as_chance_says() -> None:
    """Fresh samples of effects without a mean choose unrelated sets; bootstraps share what these inputs have."""
    x = drawn(60, 200, seed=2)
    for size in (10, 60):
        found = bootstrap_circuits(x, 30, size, draw="fresh", samples=1000).jaccard().mean()
        assert float(found) == pytest.approx(chance_level(size, 200), abs=0.02)
        assert float(bootstrap_circuits(x, None, size).jaccard().mean()) > 1.5 * float(found)


@pytest.mark.parametrize("n", [8, 40])
def test_two_components_have_the_jaccard_index_that_probability_gives(n: int) -> None:
    """One of two is chosen with p = Phi(d / se), so two samples agree with p^2 + (1 - p)^2."""
    x = drawn(40, 2, seed=5)
    x = x - x.mean(0) + torch.tensor([0.0, 0.15])
    difference = (x[:, 1] - x[:, 0]).double()
    p = float(ndtr(float(difference.mean() / difference.std(correction=0)) * math.sqrt(n)))
    found = bootstrap_circuits(x, n, Select(1, "highest"), samples=3000).jaccard().mean()
    assert 0.55 < p < 0.95 and float(found) == pytest.approx(p**2 + (1 - p) ** 2, abs=0.02)


def test_more_inputs_make_circuits_more_alike() -> None:
    x = drawn(32, 50, signal=2.0)
    found = [float(bootstrap_circuits(x, n, 10).jaccard().mean()) for n in (1, 2, 4, 8, 16, 32)]
    assert found == sorted(found) and found[-1] > 2 * found[0]


# Report card ---------------------------------------------------------------------------------------------------


def test_the_report_card_of_effects() -> None:
    x = drawn(12, 40, signal=3.0)
    report = stability_report(x, 8, sizes=[5, 20], samples=60, quiet=True)
    small, large = report.points
    assert (report.n, report.inputs, report.samples, report.kind) == (8, 12, 60, "nodes")
    assert small.size == 5 and small.chance == 5 / 75 and small.nodes is None
    assert 0 <= small.jaccard.lo < small.jaccard.estimate < small.jaccard.hi <= 1
    assert small.weighted is not None and report.tau is not None and 0 < report.tau.estimate < 1
    assert float(large.inclusion.sum()) == pytest.approx(20)
    again = Resamples.of(12, 8, 60)
    plain = [Select(5).sets(x[rows].mean(0)[None], Effects.of(x).components)[0] for rows in again.rows]
    assert small.jaccard.estimate == pytest.approx(float(jaccard(torch.stack(plain), again.pairs).mean()))
    some, estimates = again.some_pairs(200), again.estimates(x)
    kept = weighted_jaccard(estimates * torch.stack(plain), some)
    assert small.weighted.estimate == pytest.approx(float(kept.mean()))
    lowest = stability_report(x, 8, sizes=[5], by="lowest", samples=60, quiet=True).points[0]
    assert float(lowest.inclusion[:20].sum()) > 4.9 and float(small.inclusion[20:].sum()) > 4.9
    assert report.variation is not None and report.split_half is not None and report.split_half.size == 20
    assert report.at(20) is large and report.inclusion(5).rows[0][1] > 0.5
    assert len(report.table()) == 2 and "chance" in report.picture().rows
    assert json.loads(json.dumps(report.record()))["points"][1]["named"] == "20"
    assert side_by_side({"a": report, "b": report}).rows == ["a", "b", "chance"]
    with pytest.raises(UnknownName, match="20"):
        report.at(21)


def test_fresh_samples_have_a_card_too() -> None:
    x = drawn(13, 40, signal=3.0)
    fresh, again = (stability_report(x, sizes=[10], samples=300, draw=d, quiet=True) for d in ("fresh", "bootstrap"))  # type: ignore[arg-type]
    assert (fresh.n, again.n) == (4, 13) and fresh.at(10).jaccard.lo < fresh.at(10).jaccard.estimate
    assert fresh.at(10).jaccard.estimate < again.at(10).jaccard.estimate
    with pytest.raises(TooFewRows, match="12 of 12 inputs are in all"):
        stability_report(x[:12], 6, sizes=[10], draw="fresh", quiet=True)


@pytest.mark.parametrize("kind", ["tensor", "scores", "circuit"])
def test_any_method_gets_the_same_card(kind: str) -> None:
    """A method that averages the inputs it is given, and returns its answer in any of three forms."""
    graph = Graph((Layer(2, 1), Layer(2, 1)))
    each = torch.zeros(10, *graph.shape)
    each[:, graph.mask] = drawn(10, graph.n_edges, signal=2.0)

    def method(rows: torch.Tensor) -> Any:
        mean = each[rows].mean(0)
        if kind == "tensor":
            return mean[graph.mask]
        if kind == "scores":
            return edge_scores(each[rows], graph)
        chosen = torch.zeros(graph.shape, dtype=torch.bool)
        chosen[graph.mask] = mean[graph.mask] >= mean[graph.mask].sort().values[-6]
        return Circuit(graph, chosen)

    sizes = None if kind == "circuit" else [6]
    found = stability_report(method, 7, inputs=10, sizes=sizes, by="highest", samples=30, quiet=True)
    known = stability_report(edge_scores(each, graph), 7, sizes=[6], by="highest", samples=30, quiet=True)
    assert found.points[0].jaccard.estimate == pytest.approx(known.points[0].jaccard.estimate)
    assert found.points[0].jaccard.lo == pytest.approx(known.points[0].jaccard.lo)
    assert (found.tau is None) == (kind == "circuit") and found.variation is None
    assert (found.points[0].nodes is None) == (kind == "tensor")


def test_what_circuits_do_is_measured_once_per_circuit() -> None:
    x = drawn(10, 12, signal=1.5)
    seen = []

    def measure(sets: torch.Tensor) -> dict[str, list[float]]:
        seen.append(sets)
        return {"faithfulness": (sets.double() @ torch.arange(12.0).double()).tolist(), "off": [0.0] * len(sets)}

    report = stability_report(x, sizes=[3], samples=40, measure=measure, measured=30, quiet=True)
    assert len(seen) == 1 and 1 < len(seen[0].unique(dim=0)) == len(seen[0]) < 30
    spread = report.points[0].quality["faithfulness"]
    sets = bootstrap_circuits(x, None, 3, samples=40).sets[:30]
    values = sets.double() @ torch.arange(12.0).double()
    assert spread.mean.estimate == pytest.approx(float(values.mean())) and spread.sd == pytest.approx(
        float(values.std())
    )
    assert spread.cv == pytest.approx(spread.sd / spread.mean.estimate)
    assert report.points[0].quality["off"].cv is None, "a mean of 0 has no CV"
    with pytest.raises(BadInput, match="1 numbers for"):
        stability_report(x, sizes=[3], samples=40, measure=lambda sets: {"bad": [1.0]}, quiet=True)


def test_a_real_model_from_scores_to_card() -> None:
    graph = Graph.of(opened("llama"))
    found = scores(graph, pair(6), METRIC, method="eap", per_input=True, quiet=True)
    report = stability_report(found, sizes=[10, "minimal"], samples=20, quiet=True)
    assert report.components.name(0) == "resid_pre.0->q.0.h0"
    assert report.at(10).size == 10 and report.at("minimal").size >= 1
    nodes = scores(graph, pair(6), METRIC, method="exact", level="node", per_input=True, quiet=True)
    sampled = bootstrap_circuits(nodes, 6, 4, samples=10)
    assert sampled.circuits()[0] == Circuit.of_nodes(graph, sampled.sets[0])
    assert sampled.table().rows[0][0] in graph.sources


# Refusals ------------------------------------------------------------------------------------------------------

X = drawn(6, 8)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "one input": (lambda: bootstrap_circuits(X[:1], None, 3), TooFewRows, "one input shows no variation"),
    "too few for fresh": (lambda: bootstrap_circuits(X, 4, 3, draw="fresh"), TooFewRows, "need 8 inputs"),
    "everything": (lambda: bootstrap_circuits(X, None, 8), BadInput, "leaves nothing out"),
    "no size": (lambda: bootstrap_circuits(X, None, 0), BadInput, "size=0"),
    "minimal nodes": (lambda: bootstrap_circuits(X, None, Select()), BadInput, "no edges of a graph"),
    "rank": (lambda: Select(3, "biggest"), BadInput, "by='biggest'"),  # type: ignore[arg-type]
    "aggregate": (lambda: bootstrap_circuits(X, None, 3, aggregate="max"), BadInput, "aggregate='max'"),  # type: ignore[arg-type]
    "draw": (lambda: bootstrap_circuits(X, None, 3, draw="jack"), BadInput, "draw='jack'"),  # type: ignore[arg-type]
    "odd fresh": (lambda: bootstrap_circuits(X, 2, 3, draw="fresh", samples=5), BadInput, "an even number"),
    "n": (lambda: bootstrap_circuits(X, 0, 3), BadInput, "n=0"),
    "axes": (lambda: bootstrap_circuits(X[0], None, 3), ShapeMismatch, "one row per input"),
    "nan": (lambda: bootstrap_circuits(X / 0, None, 3), NotFinite, "NaN or infinite"),
    "method without inputs": (lambda: stability_report(lambda rows: X[0]), BadInput, "give inputs="),
    "no sizes": (lambda: stability_report(X, sizes=[]), BadInput, "there are none"),
    "level": (lambda: stability_report(X, sizes=[2], level=1.0, quiet=True), BadInput, "not between 0 and 1"),
    "one component": (lambda: stability_report(X[:, :1]), BadInput, "leaves any out"),
    "two kinds": (
        lambda: stability_report(lambda rows: X[0] if rows[0] else "no", inputs=6, quiet=True),  # type: ignore[arg-type, return-value]
        BadInput,
        "several kinds",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_be_answered_is_refused(case: str) -> None:
    act, error, said = REFUSED[case]
    with pytest.raises(error, match=said):
        act()


def test_means_over_inputs_are_refused() -> None:
    graph = Graph((Layer(2, 1),))
    zero = torch.zeros(3)
    means = Scores(graph, torch.zeros(graph.shape), "edge", "exact", "patch", False, zero, zero)
    with pytest.raises(BadInput, match="per_input=True"):
        stability_report(means)


def test_degenerate_samples_are_noted() -> None:
    single = stability_report(drawn(6, 8), 1, sizes=[2], samples=60, quiet=True)
    assert "one input" in single.notes[0]
    assert stability_report(drawn(6, 8), 3, sizes=[2], samples=60, quiet=True).notes == ()
    flat = stability_report(torch.ones(6, 8), sizes=[2], samples=60, quiet=True)
    assert flat.tau is None and "tau is not defined" in flat.notes[0]
