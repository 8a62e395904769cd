"""Searches by scores, against plain loops; and the one call behind all searches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from circuit_models import METRIC, opened, pair
from torch import Tensor

from mechanome.circuits import SEARCHES, Circuit, Graph, Layer, Scores, greedy, scores, search, top_n
from mechanome.circuits.live_edges import live_edges
from mechanome.core import BadInput, NotFinite, ShapeMismatch

SHAPES = {
    "grouped": Graph((Layer(4, 2), Layer(4, 1), Layer(4, 2, style="parallel"))),
    "serial": Graph((Layer(3, 3), Layer(3, 3, mlp=False), Layer(0, 0))),
}


def made(graph: Graph, seed: int = 0, values: Tensor | None = None, **more: Any) -> Scores:
    """Random scores, whole numbers so that many are equal."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(-9, 10, graph.shape, generator=generator).float() if values is None else values
    given = {"level": "edge", "method": "eap", "intervention": "patch", "estimate": True, "clean": torch.zeros(2)}
    return Scores(graph, drawn * graph.mask, **{**given, **more})


RANK = {"absolute": abs, "highest": lambda x: x, "lowest": lambda x: -x}


def best(found: Scores, by: str, fits: Any) -> tuple[int, int] | None:
    """The edge of the highest rank among those that fit, the first one of equals."""
    edges = [tuple(e) for e in found.known.nonzero().tolist() if fits(*e)]
    return max(edges, key=lambda e: RANK[by](float(found.values[e])), default=None)  # type: ignore


@pytest.mark.parametrize("by", RANK)
@pytest.mark.parametrize("shape", SHAPES)
def test_top_n_takes_the_best_edges_one_after_the_other(shape: str, by: Any) -> None:
    graph = SHAPES[shape]
    found = made(graph)
    taken: list[tuple[int, int]] = []
    for n in range(1, 12):
        edge = best(found, by, lambda *e: e not in taken)
        assert edge is not None
        taken.append(edge)
        assert {*map(tuple, top_n(found, n, by=by, prune=False).circuit.edges.nonzero().tolist())} == {*taken}


@pytest.mark.parametrize("by", RANK)
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_grows_from_the_logits(shape: str, by: Any) -> None:
    graph = SHAPES[shape]
    found = made(graph, 1)
    taken: list[tuple[int, int]] = []
    inside = {len(graph.targets) - 1}
    for n in range(1, graph.n_edges + 1, 1):
        edge = best(found, by, lambda i, j, inside=frozenset(inside): (i, j) not in taken and j in inside)
        assert edge is not None
        taken.append(edge)
        inside |= {*graph.feeds[:, edge[0]].nonzero()[:, 0].tolist()}
        if n % 7 == 0 or n < 7:
            chosen = greedy(found, n, by=by, prune=False).circuit
            assert {*map(tuple, chosen.edges.nonzero().tolist())} == {*taken}
            assert torch.equal(live_edges(graph, chosen.edges[None], False)[0], chosen.edges)
    assert n == graph.n_edges


def test_greedy_says_when_nothing_more_is_in_reach() -> None:
    graph = SHAPES["grouped"]
    found = made(graph, values=torch.ones(graph.shape))
    cut = found.values.clone()
    cut[:, -1] = float("nan")
    cut[2, -1] = 1.0
    reached = greedy(made(graph, values=cut), 50, prune=False)
    within = live_edges(graph, Circuit(graph, cut.eq(1) & graph.mask).edges[None], False)[0]
    assert reached.circuit.edges.equal(within) and len(reached.circuit) < 50
    assert any(f"only {len(reached.circuit)} scored edges" in note for note in reached.notes)
    assert not greedy(found, 50, prune=False).notes


@pytest.mark.parametrize("of", [top_n, greedy])
def test_a_threshold_takes_what_reaches_it(of: Any) -> None:
    graph = SHAPES["grouped"]
    found = made(graph, 2)
    chosen = of(found, threshold=6, prune=False).circuit.edges
    assert bool((found.values[chosen].abs() >= 6).all())
    if of is top_n:
        assert torch.equal(chosen, (found.values.abs() >= 6) & graph.mask)
    assert torch.equal(of(found, threshold=0, prune=False).circuit.edges, graph.mask)
    assert len(of(found, threshold=10).circuit) == 0


@pytest.mark.parametrize("of", [top_n, greedy])
def test_what_was_not_measured_is_never_taken(of: Any) -> None:
    graph = SHAPES["grouped"]
    values = made(graph, 3).values.clone()
    values[1] = float("nan")
    found = made(graph, values=values)
    known = int(found.known.sum())
    assert known < graph.n_edges and not of(found, known, prune=False).circuit.edges[1].any()
    with pytest.raises(BadInput, match=f"there are {known}"):
        of(found, known + 1)


def test_idle_edges_go_and_are_counted() -> None:
    """Without a clean path a source has its patched value, if that comes from a run; a mean is another matter."""
    graph = SHAPES["grouped"]
    idle, rootless, kept = "z.0.h0->mlp_in.0", "z.1.h1->logits", "resid_pre.0->logits"
    values = torch.zeros(graph.shape)
    for edge in (idle, rootless, kept):
        values[graph.index(edge)] = 5.0
    found = top_n(made(graph, values=values), 3)
    assert list(found.circuit) == [kept] and found.notes == ("2 chosen edges change nothing and were left out",)
    of_means = top_n(made(graph, values=values, intervention="mean"), 3)
    assert set(of_means.circuit) == {rootless, kept} and "1 chosen" in of_means.notes[0]
    assert set(top_n(made(graph, values=values), 3, prune=False).circuit) == {idle, rootless, kept}


def test_one_call_is_the_functions_behind_it() -> None:
    graph, data = Graph.of(opened("llama")), pair(2)
    by_hand = scores(graph, data, METRIC, quiet=True)
    for method, of in (("top-n", top_n), ("greedy", greedy)):
        found = search(graph, data, METRIC, method=method, size=30, by="lowest", quiet=True)
        assert found.circuit == of(by_hand, 30, by="lowest").circuit and found.method == method
        assert found.scores is not None and torch.equal(found.scores.values, by_hand.values)
        assert search(graph, None, method=method, size=30, scores=by_hand).circuit == of(by_hand, 30).circuit
    zero = search(graph, (data[0], None), METRIC, size=9, intervention="zero", quiet=True)
    assert zero.scores is not None and zero.scores.intervention == "zero"
    assert "top-n" in repr(zero) and len(zero.table().rows) == len(zero.circuit) and "<table" in zero._repr_html_()


@pytest.mark.parametrize(
    "more, error, why",
    [
        ({"method": "topn"}, BadInput, "top-n"),
        ({"size": None}, BadInput, "nothing says where to stop"),
        ({"threshold": 0.1}, BadInput, "two limits"),
        ({"size": 0}, BadInput, "positive"),
        ({"size": 2.5}, BadInput, "positive"),
        ({"size": 10_000}, BadInput, "there are 190"),
        ({"size": None, "threshold": -1.0}, BadInput, "0 or more"),
        ({"size": None, "threshold": float("nan")}, BadInput, "finite"),
        ({"size": None, "threshold": "much"}, BadInput, "real number"),
        ({"by": "size"}, BadInput, "absolute"),
        ({"pruned": True}, BadInput, "prune"),
        ({"steps": 3}, BadInput, "no such setting"),
        ({"data": None}, BadInput, "pair of inputs"),
        ({"metric": None}, BadInput, "no metric"),
        ({"metric": lambda logits, rows: logits[:, 0] * float("nan")}, NotFinite, "NaN"),
        ({"data": (pair(2)[0], pair(2)[1][:, :-1])}, ShapeMismatch, "clean and"),
        ({"scores": made(SHAPES["serial"])}, BadInput, "different graphs"),
        ({"method": "acdc", "threshold": 0.1}, BadInput, "size"),
        ({"method": "acdc", "size": None}, BadInput, "give threshold="),
        ({"method": "gumbel", "gate": "deterministic"}, BadInput, "no such setting"),
        ({"method": "gumbel", "scores": made(Graph.of(opened("llama")))}, BadInput, "leave it out"),
    ],
)
def test_refusals(more: dict[str, Any], error: type[Exception], why: str) -> None:
    given = {"data": pair(2), "metric": METRIC, "size": 5, "quiet": True, **more}
    with pytest.raises(error, match=why):
        search(Graph.of(opened("llama")), given.pop("data"), given.pop("metric"), **given)


def test_scores_of_sources_choose_no_edges() -> None:
    graph = Graph.of(opened("llama"))
    nodes = scores(graph, pair(1), METRIC, method="eap", level="node", quiet=True)
    with pytest.raises(BadInput, match="of sources"):
        top_n(nodes, 3)


def test_the_table_of_searches() -> None:
    assert list(SEARCHES) == ["top-n", "greedy", "acdc", "edge-pruning", "gumbel", "deterministic"]
    assert SEARCHES["acdc"].limits == ("threshold",) and SEARCHES["top-n"].limits == ("size", "threshold")
    assert all("gate" not in s.takes for s in SEARCHES.values())
