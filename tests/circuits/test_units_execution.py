"""Circuits of units that are run: against the reference by hand, against edits of neurons, sparse against dense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from circuit_models import METRIC, apart, images, opened, pair, random_circuits
from masked_forward import Values, forward, masked
from torch import Tensor
from unit_models import Latents, graph_of, neurons_of, parts_of

import mechanome as mn
from mechanome.circuits import Circuit, Graph, Prepared, completeness, execute, faithfulness
from mechanome.circuits import execution as execution_module
from mechanome.core import BudgetTooSmall

NAMES = ["gpt2", "llama", "gpt_neox", "bert"]
WAYS = ["dense", "sparse"]


def by_hand(name: str, mask: Tensor, clean: Tensor, patched: Values) -> Tensor:
    """Logits of one row whose edges are kept as the mask `[source, target]` says, `[vocab]`."""
    return masked(graph_of(name), parts_of(name), mask, clean, patched)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_every_target_reads_its_own_masked_sum_of_units(name: str, way: str) -> None:
    (clean, other), graph = pair(2), graph_of(name)
    circuits = [*random_circuits(graph, 0.05, 0.3, 0.6, 0.95), Circuit.of_nodes(graph, graph.sources[::2])]
    found = execute(circuits, (clean, other), METRIC, method=way, logits=True, quiet=True)
    patched = [forward(parts_of(name), o[None])[1] for o in other]
    expected = torch.stack(
        [torch.stack([by_hand(name, c.edges.float(), x[None], p) for x, p in zip(clean, patched)]) for c in circuits]
    )
    assert found.logits is not None and apart(found.logits, expected) < 2e-5
    assert expected.std(0).min() > 1e-3, "the circuits would be told apart"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*NAMES, "gptj", "gemma2", "qwen3", "esm", "vit", "phi3", "opt", "distilbert"])
def test_all_units_are_the_model_and_none_the_other_input(name: str, way: str) -> None:
    model, data = opened(name), images() if name == "vit" else pair(2)
    acts: dict[str, Any] = {
        "mlp_act.0": Latents(model.weight("W_out.0").value.shape[0], 6),
        "mlp_out.1": Latents(32, 6),
    }
    for graph in (neurons_of(name), neurons_of(name, "svd"), Graph.of(model, units=acts)):
        circuits = [Circuit.full(graph), Circuit.empty(graph), *random_circuits(graph, 0.4)]
        found = execute(circuits, data, METRIC, method=way, logits=True, quiet=True)
        assert found.logits is not None
        for logits, inputs in zip(found.logits, data):
            run = model.run(inputs, logits="last").logits
            assert run is not None and apart(logits, run) < 2e-5
        assert found.divergence[0].max() < 1e-6 < found.divergence[2].min()


@pytest.mark.parametrize("name", [*NAMES, "gptj", "gemma2", "phi3"])
def test_both_ways_agree(name: str) -> None:
    graph = neurons_of(name)
    nodes = torch.rand(4, len(graph.sources), generator=torch.Generator().manual_seed(3)) < 0.3
    circuits = [*random_circuits(graph, 0.02, 0.2, 0.7), *(Circuit.of_nodes(graph, some) for some in nodes)]
    dense, sparse = (execute(circuits, pair(2), METRIC, method=way, logits=True, quiet=True) for way in WAYS)
    assert dense.logits is not None and sparse.logits is not None
    assert apart(sparse.logits, dense.logits) < 2e-5 and dense.logits.std(0).max() > 1e-2


@pytest.mark.parametrize("way", ["auto", *WAYS])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_a_circuit_of_neurons_is_the_model_with_the_others_replaced(name: str, way: str) -> None:
    (clean, other), graph, model = pair(2), neurons_of(name), opened(name)
    few = torch.rand(len(graph.sources), generator=torch.Generator().manual_seed(1)) < 0.3
    chosen = graph.kinds("embedding", "head") | few
    donor = model.run(other, capture=["mlp_act.*"])
    edits = [mn.Patch(s, donor) for s, kept in zip(graph.sources, chosen.tolist()) if not kept]
    circuit = Circuit.of_nodes(graph, chosen)
    found = execute([circuit, ~circuit], (clean, other), METRIC, method=way, logits=True, quiet=True)
    run = model.run(clean, edits=edits, logits="last").logits
    assert found.logits is not None and run is not None and apart(found.logits[0], run) < 2e-5
    assert faithfulness(found)[0].value is not None and completeness(found)[1].value is not None


@pytest.mark.parametrize("kind", ["zero", "mean", "positional-mean"])
def test_neurons_outside_are_ablated(kind: str) -> None:
    """Attention left alone, neurons outside the circuit at their mean over the inputs, or at zero."""
    (clean, _), graph, model = pair(3), neurons_of("llama"), opened("llama")
    few = torch.rand(len(graph.sources), generator=torch.Generator().manual_seed(2)) < 0.4
    chosen = graph.kinds("embedding", "head") | few
    run = model.run(clean, capture=["mlp_act.*"])
    edits = []
    for layer in range(3):
        value = run[f"mlp_act.{layer}"]
        mean = {"zero": 0 * value[0], "mean": value.mean((0, 1)).expand_as(value[0]), "positional-mean": value.mean(0)}
        group = next(g for g in graph.writers if g.kind == "unit" and g.layer == layer)
        out = ~chosen[group.nodes]

        def replaced(x: Tensor, by: Tensor = mean[kind], out: Tensor = out) -> Tensor:
            return torch.where(out, by, x)

        edits.append(mn.engine.Custom(f"mlp_act.{layer}", replaced))
    expected = model.run(clean, edits=edits, logits="last").logits
    circuit = Circuit.of_nodes(graph, chosen)
    found = execute(circuit, (clean, None), METRIC, intervention=kind, logits=True, quiet=True)
    assert found.logits is not None and expected is not None and apart(found.logits[0], expected) < 2e-5


@pytest.mark.parametrize("name", NAMES)
def test_soft_masks_and_their_gradients(name: str) -> None:
    (clean, other), graph = pair(2), graph_of(name)
    ready = Prepared.of(graph, (clean, other), METRIC)
    patched = [forward(parts_of(name), o[None])[1] for o in other]
    generator = torch.Generator().manual_seed(1)
    of_edges = torch.rand(2, *graph.shape, generator=generator) * graph.mask
    of_sources = torch.rand(2, graph.shape[0], generator=generator)
    for masks in (of_edges, of_sources):
        given, hand = masks.clone().requires_grad_(True), masks.clone().requires_grad_(True)
        logits = ready.logits(given)
        ready.measured(logits, range(2)).sum().backward()
        each = [m if m.dim() == 2 else m[:, None].expand(graph.shape) for m in hand]
        expected = torch.stack(
            [torch.stack([by_hand(name, m, x[None], p) for x, p in zip(clean, patched)]) for m in each]
        )
        torch.stack([METRIC(e, torch.arange(2)) for e in expected]).sum().backward()
        assert apart(logits.detach(), expected.detach()) < 2e-5
        assert given.grad is not None and hand.grad is not None and apart(given.grad, hand.grad) < 5e-5
        units = graph.kinds("unit", "rest")
        assert apart(given.grad[:, units], hand.grad[:, units]) < 1e-3
        there = hand.grad[:, units] if masks.dim() == 2 else hand.grad[:, graph.mask & units[:, None]]
        assert there.ne(0).float().mean() > 0.8, "a latent that never fires has none"


def test_the_cheapest_way_is_chosen_and_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = neurons_of("gpt2")
    few = Circuit.of(graph, ["resid_pre.0->mlp_in.0", "mlp_act.0.n3->logits"])
    nodes = Circuit.of_nodes(graph, graph.sources[:40])
    many = random_circuits(graph, 0.3)[0]
    whole = execute([few, nodes, many], pair(2), METRIC, quiet=True)
    assert whole.methods == ("sparse", "dense", "sparse")
    monkeypatch.setattr(execution_module, "_SPARSE_UNITS", 10)
    found = execute([few, nodes, many], pair(2), METRIC, quiet=True)
    assert found.methods == ("sparse", "dense", "dense") and apart(found.values, whole.values) < 2e-5
    settings: dict[str, Any] = {"budget": "250KB", "quiet": True}
    assert apart(execute(nodes, pair(2), METRIC, **settings).values, whole.values[1:2]) < 2e-5
    for way in WAYS:
        with pytest.raises(BudgetTooSmall, match="example"):
            execute(many, pair(2), METRIC, method=way, **settings)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_padding_and_batching_change_nothing(name: str, way: str) -> None:
    clean, other = pair(3, 8, where=2)
    rows = [(clean[i, :n].tolist(), other[i, :n].tolist()) for i, n in enumerate((8, 5, 7))]
    graph, circuits = graph_of(name), [*random_circuits(graph_of(name), 0.05, 0.6)]
    circuits.append(Circuit.of_nodes(graph, graph.sources[1::2]))
    settings: dict[str, Any] = {"method": way, "logits": True, "quiet": True}
    together = execute(circuits, ([c for c, _ in rows], [o for _, o in rows]), METRIC, **settings)
    assert together.logits is not None
    for k, circuit in enumerate(circuits):
        for i, (c, o) in enumerate(rows):
            alone = execute(circuit, ([c], [o]), METRIC, **settings)
            assert alone.logits is not None and apart(together.logits[k, i], alone.logits[0, 0]) < 2e-5
