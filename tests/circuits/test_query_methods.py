"""Rankings that propose query circuits, and how winners of several sizes become one circuit, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from circuit_models import opened
from torch import Tensor

from mechanome.circuits import QUERY_METHODS, Circuit, Graph, Scores
from mechanome.circuits.query_methods import Draw, Ranking, circuit_of, merged

TIERS = [torch.tensor([3, 1]), torch.tensor([4, 1, 0, 3]), torch.tensor([5, 4, 2, 6, 0, 1])]
ANCHORS = (2, 4, 6)


@pytest.mark.parametrize(
    ("n", "edges"), [(1, [3]), (2, [3, 1]), (3, [3, 1, 4]), (4, [3, 1, 4, 0]), (5, [3, 1, 4, 0, 5])]
)
def test_one_ranking_is_filled_by_the_winners_of_one_size_after_another(n: int, edges: list[int]) -> None:
    assert QUERY_METHODS["best-of-n-csm"].circuit(TIERS, ANCHORS, n).tolist() == edges


@pytest.mark.parametrize(
    ("n", "edges"),
    [(1, [3]), (2, [3, 1]), (3, [3, 1, 4]), (4, [4, 1, 0, 3]), (5, [4, 1, 0, 3, 5]), (6, [5, 4, 2, 6, 0, 1])],
)
def test_between_two_sizes_only_their_winners_count(n: int, edges: list[int]) -> None:
    assert QUERY_METHODS["interpolated"].circuit(TIERS, ANCHORS, n).tolist() == edges


def test_a_winner_is_taken_at_its_own_size() -> None:
    assert QUERY_METHODS["best-of-n"].circuit(TIERS, ANCHORS, 4).tolist() == [4, 1, 0, 3]


def test_merging_keeps_the_first_place_of_an_edge() -> None:
    assert merged([torch.tensor([2, 0]), torch.tensor([0, 1, 2])]).tolist() == [2, 0, 1]


def test_edges_are_ranked_by_the_size_of_their_scores() -> None:
    assert Ranking.of("query", torch.tensor([0.1, -3.0, 2.0, -2.0])).top(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("share", "n", "gone"), [(0.3, 10, 3), (0.1, 4, 0), (0.5, 19, 1), (0.5, 20, 0)])
def test_a_share_of_the_top_edges_is_replaced_by_edges_behind_them(share: float, n: int, gone: int) -> None:
    plain = Ranking("query", torch.randperm(20, generator=torch.Generator().manual_seed(1)))
    top = replace(plain, replaced=share).top(n)
    assert len(set(top.tolist())) == n and len({*top.tolist()} & {*plain.top(n).tolist()}) == n - gone
    assert torch.equal(top, replace(plain, replaced=share).top(n))
    assert gone == 0 or n > 18 or not torch.equal(top, replace(plain, replaced=share, seed=1).top(n))


def drawn(method: str, count: int = 3, strength: float = 0.0, seed: int = 0) -> list[Ranking]:
    return QUERY_METHODS[method].propose(Draw(SCORES, count, strength, seed))


def scores(values: Tensor) -> Scores:
    graph = Graph.of(opened("gpt2"))
    whole = torch.zeros(graph.shape)
    whole[graph.mask] = values
    return Scores(graph, whole, "edge", "eap", "patch", True, torch.zeros(1))


def _values(seed: int) -> Tensor:
    return torch.randn(Graph.of(opened("gpt2")).n_edges, generator=torch.Generator().manual_seed(50 + seed))


SCORES = tuple(scores(_values(seed)) for seed in range(3))


def test_the_query_and_each_sample_propose_and_the_mean_is_that_of_signed_scores() -> None:
    assert [r.name for r in drawn("best-of-n")] == ["query", "sample 1", "sample 2"]
    assert [r.name for r in drawn("single")] == ["query"]
    for ranking, seed in zip(drawn("best-of-n"), range(3)):
        assert ranking.order.tolist() == _values(seed).abs().argsort(descending=True).tolist()
    mean = torch.stack([_values(seed) for seed in range(3)]).mean(0)
    assert [r.order.tolist() for r in drawn("averaging")] == [mean.abs().argsort(descending=True).tolist()]


@pytest.mark.parametrize("method", ["gaussian", "edge-replacement", "random"])
def test_controls_draw_as_many_as_asked_and_the_same_ones_again(method: str) -> None:
    found, again = drawn(method, 4, 0.3), drawn(method, 4, 0.3)
    other = drawn(method, 4, 0.3, seed=1)
    assert len(found) == 5
    tops = [r.top(20).tolist() for r in found]
    assert tops == [r.top(20).tolist() for r in again] and len({*map(tuple, tops)}) == 5
    assert all(a != r.top(20).tolist() for a, r in zip(tops[1:], other[1:]))
    own = SCORES[0].values[SCORES[0].graph.mask].abs().argsort(descending=True)[:20].tolist()
    assert (tops[0] == own) == (method != "random")


def test_noise_has_the_strength_that_was_asked_for() -> None:
    weak, strong = drawn("gaussian", 1, 1e-9)[1], drawn("gaussian", 1, 100.0)[1]
    own = drawn("single")[0].top(30).tolist()
    assert weak.top(30).tolist() == own and len({*strong.top(30).tolist()} & {*own}) < 30


def test_a_circuit_has_the_edges_of_these_numbers() -> None:
    graph = SCORES[0].graph
    names = list(Circuit.full(graph))
    assert list(circuit_of(graph, torch.tensor([7, 2]))) == [names[2], names[7]]
