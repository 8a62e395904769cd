"""Certificates of any function: equal to the fast way, two foreign methods, and what is no function of a set."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from mechanome.circuits import Circuit, Graph, Layer, Select
from mechanome.circuits.certification import Function, Scored, certify, neighborhood
from mechanome.circuits.effects import Effects
from mechanome.core import BadInput, ShapeMismatch, TooFewRows
from mechanome.studies.papers.certified_circuits.proofs import by_hand, by_scikit_learn, labelled

GRAPH = Graph((Layer(2, 1),))


def drawn(examples: int, components: int, seed: int = 0) -> torch.Tensor:
    """Normal scores whose means differ between components, `[example, component]`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(components, generator=generator) + torch.randn(examples, components, generator=generator)


def test_a_function_of_scores_gives_the_same_certificate_as_the_scores() -> None:
    scores = drawn(12, 15, 1)

    def top(rows: list[int]) -> torch.Tensor:
        mean = scores[rows].double().mean(0)
        return Select(4).sets(mean[None], Effects.of(scores).components)[0]

    fast = certify(Select(4), scores, n=400, seed=5, quiet=True)
    slow = certify(top, range(12), n=400, seed=5, quiet=True)
    assert (fast.how, slow.how) == ("scores", "function") and torch.equal(fast.found, slow.found)
    kept = torch.rand(200, 12, generator=torch.Generator().manual_seed(0)) < 0.4
    assert torch.equal(Scored(Effects.of(scores), Select(4)).sets(kept), Function.of(top, range(12)).sets(kept))
    assert torch.equal(fast.agree, slow.agree) and torch.equal(fast.guess, slow.guess)


# Two foreign methods ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [by_scikit_learn, by_hand], ids=["sklearn", "by-hand"])
def test_foreign_methods_are_certified(method: Any) -> None:
    found = certify(method, labelled(30, 0), n=400, names=[f"feature {i}" for i in range(10)], quiet=True)
    assert found.how == "function" and found.examples == 30
    if method is by_scikit_learn:
        assert found.decision("feature 0") == "in"
        assert found.counts() == {"in": 1, "out": 7, "abstain": 2}, "which of two weak features is second is chance"
    else:
        assert [found.decision(f"feature {i}") for i in (3, 4, 5)] == ["in", "in", "out"]
        assert found.counts()["abstain"] > 2


@pytest.mark.parametrize("method", [by_scikit_learn, by_hand], ids=["sklearn", "by-hand"])
def test_one_edit_never_turns_a_certified_majority_of_a_foreign_method_around(method: Any) -> None:
    examples = labelled(14, 3)
    near = neighborhood(Function.of(method, examples), range(8), range(8, 14), 0.6)
    certified = near.certified(0.95)
    assert 0 < int(certified.sum()) < 10
    assert int(near.flips[certified].sum()) == 0 < int(near.flips[~certified].sum())


def test_a_method_that_returns_circuits_is_certified_as_edges() -> None:
    edges = ["resid_pre.0->q.0.h1", "z.0.h0->logits"]

    def find(rows: list[int]) -> Circuit:
        return Circuit.of(GRAPH, edges if sum(rows) % 7 else edges[:1])

    found = certify(find, list(range(1, 20)), n=400, quiet=True)
    assert list(found.circuit()) == edges[:1] and found.decision(edges[1]) == "abstain"
    assert found.names[0] == GRAPH.name(*GRAPH.mask.nonzero()[0].tolist())


def test_the_same_part_is_looked_at_once_and_an_empty_one_never() -> None:
    seen: list[tuple[int, ...]] = []

    def find(rows: list[int]) -> list[bool]:
        seen.append(tuple(rows))
        return [True, len(rows) > 2]

    found = certify(find, range(4), p_del=0.8, n=500, quiet=True)
    assert () not in seen and len(set(seen)) <= 2**4 + 9 and len(seen) < 40
    assert float(found.votes[0]) == pytest.approx(1 - 0.8**4, abs=0.07)


# What is no function of a set ------------------------------------------------------------------------------------


def test_randomness_and_order_are_refused() -> None:
    flip = itertools.count()
    numbers = random.Random(0)
    with pytest.raises(BadInput, match="called twice with the same 10 examples"):
        certify(lambda rows: [next(flip) % 2 == 0, True], range(20), quiet=True)
    with pytest.raises(BadInput, match="called twice with the same 10 examples"):
        certify(lambda rows: [numbers.random() < 0.5 for _ in range(9)], range(20), quiet=True)
    with pytest.raises(BadInput, match="another order"):
        certify(lambda rows: [rows[0] < rows[-1], True], range(20), quiet=True)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([0, 1, 1], "no booleans"),
        (torch.tensor([0.5, 0.1]), "no booleans"),
        (None, "no booleans|returned a NoneType"),
        ([], "no booleans"),
        (True, "no booleans"),
    ],
    ids=["integers", "scores", "none", "empty", "single"],
)
def test_results_that_are_no_sets_are_refused(result: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        certify(lambda rows: result, range(20), quiet=True)


def test_results_that_change_their_shape_or_kind_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="booleans"):
        certify(lambda rows: [True] * len(rows), range(20), quiet=True)
    with pytest.raises(BadInput, match="several kinds"):
        certify(lambda rows: Circuit.full(GRAPH) if len(rows) == 20 else [True], range(20), quiet=True)


def test_datasets_and_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TooFewRows, match="empty"):
        certify(lambda rows: [True], [], quiet=True)
    with pytest.raises(BadInput, match="no length or no index"):
        certify(lambda rows: [True], iter([1, 2]), quiet=True)  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="3 names"):
        certify(lambda rows: [True, False], range(9), names=["a", "b", "c"], quiet=True)
    with pytest.raises(BadInput, match="scores bring their own"):
        certify(Select(1), drawn(9, 3), names=["a", "b", "c"], quiet=True)
