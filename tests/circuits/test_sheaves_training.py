"""Sheaf repulsion: losses against their formulas, schedules, and what repulsion, sparsity and forbidden edges do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechanome.circuits import GATES, Circuit, Graph, Moment, execute
from mechanome.circuits.search.running import Runner
from mechanome.circuits.sheaves import (
    Row,
    SheafLosses,
    SheafRecipe,
    SheafTrainer,
    density,
    discover_many,
    overlap,
    two_label,
    undecided,
)
from mechanome.core import BadInput, UnknownName
from mechanome.engine import LogitDiff, load
from mechanome.zoo import RedundantRecipe, object_prompts, train_redundant

TINY = SheafRecipe(epochs=6, batch=8, rate=0.3, sparsity=0.1)
APART = replace(TINY, repel=0.5, sparsity=0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = train_redundant(0, RedundantRecipe(layers=2, heads=2, width=16, mlp=16, steps=2), quiet=True)
    return Graph.of(load(model, device="cpu"))


@pytest.fixture(scope="module")
def data(graph: Graph) -> tuple[torch.Tensor, None, LogitDiff]:
    """Prompts on which the untrained model is right, because right is what it says."""
    ids = object_prompts(16, seed=1).ids
    logits = graph.opened().run(ids, [], logits="last").logits
    return ids, None, LogitDiff(logits.argmax(-1).tolist(), logits.argmin(-1).tolist())


def moment(graph: Graph, data: tuple, circuits: int = 2, progress: float = 0.0) -> Moment:
    runner = Runner.of(graph, data, None, two_label, intervention="zero", batch=8)
    logits = torch.randn(circuits, *graph.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return Moment(logits, graph.mask, GATES["gumbel"], runner, runner.parts[0], progress)


def test_losses_over_two_labels_are_cross_entropies(graph: Graph, data: tuple) -> None:
    at = moment(graph, data)
    said = at.said(at.draw())
    rows = list(said.rows)
    pair = torch.stack(
        [said.logits[..., range(len(rows)), [data[2].answer[r] for r in rows]],
         said.logits[..., range(len(rows)), [data[2].foil[r] for r in rows]]], -1,
    ).double().log_softmax(-1)  # fmt: skip
    torch.testing.assert_close(two_label(said), -pair[..., 0])
    torch.testing.assert_close(undecided(said), -pair.mean(-1))


def test_density_and_overlap_are_means_of_chances(graph: Graph, data: tuple) -> None:
    at = moment(graph, data)
    chances = at.logits.sigmoid()
    torch.testing.assert_close(density(at), torch.stack([c[graph.mask].mean() for c in chances]))
    references = torch.stack([graph.mask & (torch.rand(graph.shape) < share) for share in (0.2, 0.5)])
    means = torch.stack([torch.stack([c[r].mean() for r in references]).mean() for c in chances])
    torch.testing.assert_close(overlap(at, references, "reference"), means)
    by_graph = torch.stack([(c * references).sum() / 2 / graph.n_edges for c in chances])
    torch.testing.assert_close(overlap(at, references, "graph"), by_graph)
    for nothing in (references[:0], torch.zeros_like(references)):
        assert overlap(at, nothing, "reference").tolist() == [0, 0], "0, and no NaN, where there is nothing to leave"


def test_weights_rise_and_fall_by_the_epoch() -> None:
    recipe = SheafRecipe(epochs=40)
    assert [recipe.multiplier(e) for e in (0, 16, 32, 36)] == pytest.approx([1, 10.5, 20, 10.005])
    assert recipe.multiplier(40) == pytest.approx(0.01) and not recipe.completing(31) and recipe.completing(32)
    steps = 7 * recipe.epochs
    assert [recipe.epoch(i / steps) for i in range(steps)] == [i // 7 for i in range(steps)]


def test_step_a_adds_weighted_terms_and_step_b_waits(graph: Graph, data: tuple) -> None:
    recipe = SheafRecipe(epochs=10)
    reference = (graph.mask & (torch.rand(graph.shape) < 0.5))[None]
    plain = SheafLosses(recipe, reference, torch.zeros(2), torch.zeros(2))
    weighted = SheafLosses(recipe, reference, torch.tensor([2.0, 0.0]), torch.tensor([0.0, -3.0]))
    at = moment(graph, data, progress=0.4)
    torch.manual_seed(0)
    bare = plain.faithful(at)
    torch.manual_seed(0)
    more = weighted.faithful(at) - bare
    terms = torch.stack([2 * density(at)[0], -3 * overlap(at, reference, "reference")[1]])
    torch.testing.assert_close(more, recipe.multiplier(4) * terms.double())
    assert plain.complete(at) is None
    late = replace(at, progress=0.9)
    assert SheafLosses(replace(recipe, complete=0), reference, torch.zeros(2), torch.zeros(2)).complete(late) is None
    torch.manual_seed(0)
    found = plain.complete(late)
    torch.manual_seed(0)
    without = (graph.mask.float() - late.draw()).detach()
    said = late.said(without)
    assert found is not None
    torch.testing.assert_close(found, recipe.complete * undecided(said).mean(1))


def test_repulsion_parts_what_restarts_share(graph: Graph, data: tuple) -> None:
    first = Circuit(graph, graph.mask & (torch.rand(graph.shape, generator=torch.Generator().manual_seed(3)) < 0.5))
    trainer = SheafTrainer.of(graph, data, recipe=replace(TINY, sparsity=0), quiet=True)
    training = trainer._trained([Row(repel=r) for r in (0, 5.0, -5.0)], [first], 0)
    let_be, repelled, attracted = ((edges & first.edges).sum() / len(first) for edges in training.edges())
    assert repelled < 0.2 < let_be < 0.9 < attracted


def test_sheaves_are_found_one_after_the_other(graph: Graph, data: tuple) -> None:
    found = discover_many(graph, data, k=3, recipe=APART, quiet=True, seed=1)
    assert len(found.circuits) == len(found.trainings) == 3 and all(c.pruned() == c for c in found.circuits)
    control = discover_many(graph, data, k=3, reference="none", recipe=APART, quiet=True, seed=1)
    assert len(control.trainings) == 1 and found.mean_iou < control.mean_iou
    again = discover_many(graph, data, k=3, recipe=APART, quiet=True, seed=1)
    assert again.circuits == found.circuits
    each = discover_many(graph, data, k=3, reference="each", recipe=APART, quiet=True, seed=1)
    assert each.circuits[:2] == found.circuits[:2] and each.circuits[2] != found.circuits[2]
    alone = discover_many(graph, data, k=2, recipe=replace(APART, repel=0), quiet=True, seed=1)
    assert alone.circuits[0] == found.circuits[0] != alone.circuits[1], "each has a seed of its own"
    away = discover_many(graph, data, k=1, apart_from=found.circuits[:1], recipe=APART, quiet=True)
    assert len(away.circuits) == 1


def test_sheaves_are_run_as_execute_runs_them(graph: Graph, data: tuple) -> None:
    test = (object_prompts(5, seed=2).ids, None, LogitDiff([3] * 5, [4] * 5))
    found = discover_many(graph, data, k=2, test=test, recipe=TINY, quiet=True)
    ran = execute([*found.circuits, *(~c for c in found.circuits)], test, intervention="zero", quiet=True)
    torch.testing.assert_close(torch.cat([found.done.values, found.without.values]), ran.values)
    assert [len(c) for c in found.random.circuits] == [len(c) for c in found.circuits]


def test_more_sparsity_leaves_fewer_edges(graph: Graph, data: tuple) -> None:
    trainer = SheafTrainer.of(graph, data, recipe=replace(TINY, complete=0), quiet=True)
    sizes = [int(e.sum()) for e in trainer._trained([Row(sparsity=s) for s in (0, 0.05, 50)], [], 0).edges()]
    assert sizes[0] > sizes[1] > sizes[2]


def test_an_edge_that_is_forbidden_is_not_used(graph: Graph, data: tuple) -> None:
    trainer = SheafTrainer.of(graph, data, recipe=replace(TINY, sparsity=0), quiet=True)
    circuit = Circuit.of(graph, ["resid_pre.0->logits", "resid_pre.0->mlp_in.0"])
    found = trainer.without_each_edge(circuit)
    assert [edge in c for edge, c in zip(circuit, found.circuits)] == [False, False]
    used = trainer._trained([Row(forbidden=(edge,)) for edge in circuit], [], 0).edges()
    assert [int(e.sum()) > 10 for e in used] == [True, True], "all others remain allowed"


def test_bad_input(graph: Graph, data: tuple) -> None:
    for wrong in ({"epochs": 0}, {"rate": -1}, {"gate": "gumble"}, {"rise": 0}, {"divide": "all"}, {"sparsity": -1},
                  {"repel": float("nan")}):  # fmt: skip
        with pytest.raises(BadInput, match=next(iter(wrong))):
            SheafRecipe(**wrong)  # type: ignore[arg-type]
    trainer = SheafTrainer.of(graph, data, recipe=TINY, quiet=True)
    for call, said in (
        (lambda: trainer.many(0), "k=0"),
        (lambda: trainer.many(2, reference="unions"), "union"),
        (lambda: trainer.many(2, reference="none", apart_from=[Circuit.full(graph)]), "apart_from"),
        (lambda: trainer.together([]), "rows"),
        (lambda: trainer.together([Row(sparsity=float("inf"))]), "sparsity"),
        (lambda: trainer.together([Row(forbidden=tuple(Circuit.full(graph)))]), "no edge is left"),
        (lambda: trainer.without_each_edge(Circuit.empty(graph)), "without edges"),
    ):
        with pytest.raises(BadInput, match=said):
            call()
    with pytest.raises(UnknownName):
        trainer.together([Row(forbidden=("nowhere->logits",))])
