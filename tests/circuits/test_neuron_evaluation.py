"""Circuits of nodes run, scaled, set and wired, against a llama written out by hand and plain edits."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from circuit_models import METRIC, apart, opened, pair
from neuron_models import deltas, naive
from torch import Tensor
from unit_models import Latents

import mechanome as mn
from mechanome.circuits.neurons import (
    Fill,
    NodeCircuit,
    Nodes,
    attribute,
    evaluate,
    node_edges,
    nodes_needed,
    run_edited,
    steer,
)
from mechanome.core import BadInput, BudgetTooSmall, NotFinite, NotServed, ShapeMismatch

CLEAN, OTHER = pair(4)
ROWS = torch.arange(4)
LLAMA = opened("llama")
NODES = Nodes.of(LLAMA, CLEAN)
FILL = Fill.means(NODES, CLEAN)
NONE = NodeCircuit.of(NODES, ())


def large(logits: Tensor, rows: Tensor) -> Tensor:
    """Large enough that ratios may be taken."""
    return 10 * METRIC(logits, rows)


def by_hand(kept: Tensor, fill: list[Tensor]) -> Tensor:
    """The metric with all other neurons at their fill, layer by layer as each is reached."""
    held: dict[int, Tensor] = {}
    masks = NODES.split(kept)
    with torch.no_grad():
        for layer, mask in enumerate(masks):
            value = naive(CLEAN, held=held)[1][layer]
            held[layer] = torch.where(mask, value, fill[layer])
        return large(naive(CLEAN, held=held)[0], ROWS)


def test_only_the_circuit_speaks() -> None:
    with torch.no_grad():
        own = naive(CLEAN)[1]
    means = [own[layer].mean(0) for layer in own]
    circuit = NodeCircuit.random(NODES, len(NODES) // 3, seed=1)
    found = evaluate([circuit, ~NONE], CLEAN, large, FILL)
    assert apart(found.values[0], by_hand(circuit.kept, means)) < 2e-5
    assert apart(found.without[0], by_hand(~circuit.kept, means)) < 2e-5
    assert apart(found.empty, by_hand(NONE.kept, means)) < 2e-5
    assert apart(found.clean, large(LLAMA.run(CLEAN).logits[:, -1], ROWS)) < 1e-5
    assert apart(found.values[1], found.clean) < 1e-5 and apart(found.without[1], found.empty) < 1e-6
    zeros = [torch.zeros_like(m) for m in means]
    off = run_edited(circuit, circuit.keep(Fill.zeros(NODES)), CLEAN, large)
    assert apart(off, by_hand(circuit.kept, zeros)) < 2e-5
    assert not torch.allclose(off, found.values[0], atol=1e-3)


def test_ratios_are_those_of_means() -> None:
    found = evaluate([NodeCircuit.random(NODES, n, seed=n) for n in (20, 200)], CLEAN, large, FILL)
    effect = float(found.clean.mean() - found.empty.mean())
    for i, (faithful, complete) in enumerate(zip(found.faithfulness(), found.completeness())):
        assert float(faithful) == pytest.approx(float(found.values[i].mean() - found.empty.mean()) / effect, rel=1e-4)
        assert float(complete) == pytest.approx(float(found.without[i].mean() - found.empty.mean()) / effect, rel=1e-4)
    assert found.sizes == [20, 200] and len(found.table().rows) == 2
    assert nodes_needed([10, 100, 1000], [0.1, 0.3, 0.7], 0.5) == pytest.approx(math.sqrt(100 * 1000))
    assert nodes_needed([1000, 10, 100], [0.7, 0.1, 0.3], 0.3) == pytest.approx(100)
    assert nodes_needed([10, 100], [0.6, 0.9], 0.5) == 10 and nodes_needed([10], [0.4], 0.5) == math.inf
    assert found.needed(1e9) == math.inf


def test_a_dictionary_and_what_it_misses_are_nodes() -> None:
    width = NODES.sites[1].width
    latents = Latents(width, 9)
    nodes = Nodes.of(LLAMA, CLEAN, {"mlp_act.1": latents})
    fill, every = Fill.means(nodes, CLEAN), ~NodeCircuit.of(nodes, ())
    x = LLAMA.run(CLEAN, capture="mlp_act.1")["mlp_act.1"]

    def said(value: Tensor) -> Tensor:
        logits = LLAMA.run(CLEAN, edits=mn.Patch("mlp_act.1", value), logits="last").logits
        assert logits is not None
        return METRIC(logits, ROWS)

    none = run_edited(~every, (~every).keep(fill), CLEAN, METRIC)
    assert apart(none, said(x.mean(0).expand_as(x))) < 2e-5, "means of latents and of the rest are the mean"
    rest = NodeCircuit.of(nodes, [nodes.index("mlp_act.1", p, 9) for p in range(-6, 0)])
    c = latents.encode(x)
    error = x - latents.decode(c)
    alone = run_edited(rest, rest.keep(fill), CLEAN, METRIC)
    assert apart(alone, said(latents.decode(c.mean(0).expand_as(c)) + error)) < 2e-5
    assert apart(run_edited(rest, rest.scale(0), CLEAN, METRIC), said(latents.decode(c))) < 2e-5
    one = NodeCircuit.of(nodes, [nodes.index("mlp_act.1", -2, 4)])
    changed = c.clone()
    changed[:, -2, 4] *= 3
    assert apart(run_edited(one, one.scale(3), CLEAN, METRIC), said(latents.decode(changed) + error)) < 2e-5
    assert apart(run_edited(every, every.scale(1), CLEAN, METRIC), said(x)) < 1e-5
    assert fill.flat().shape == (len(nodes),)


def test_steering_sets_values_of_another_prompt() -> None:
    circuit = NodeCircuit.of(NODES, [NODES.index("mlp_act.0", -1, 3), NODES.index("mlp_act.1", -3, 5)])
    donor = Fill.means(NODES, OTHER[:1])
    run = LLAMA.run(OTHER[:1], capture=["mlp_act.0", "mlp_act.1"])
    edits = [
        mn.Edit("mlp_act.0.n3", "set", float(run["mlp_act.0"][0, -1, 3]), mn.Where(pos=-1)),
        mn.Edit("mlp_act.1.n5", "set", float(run["mlp_act.1"][0, -3, 5]), mn.Where(pos=-3)),
    ]
    own, expected = LLAMA.run(CLEAN, logits="last").logits, LLAMA.run(CLEAN, edits=edits, logits="last").logits
    assert own is not None and expected is not None
    found = steer(NODES, CLEAN, [5, 7], {"set": circuit.set(donor), "off": circuit.scale(0), "on": circuit.scale(1)})
    assert apart(found.values[0], expected.softmax(-1)[:, [5, 7]]) < 2e-5
    assert apart(found.clean, own.softmax(-1)[:, [5, 7]]) < 2e-5 and apart(found.values[2], found.clean) < 2e-5
    assert not torch.allclose(found.values[1], found.clean, atol=1e-6)
    assert torch.equal(found.likeliest[0], expected.argmax(-1)) and not bool(found.changed[2].any())
    everything = steer(NODES, CLEAN, [5], {"off": (~NONE).scale(0)})
    assert bool(everything.changed.any()) and len(everything.table().rows) == 1


def slopes_of(target: Tensor, moved: list[Tensor]) -> Sequence[Tensor | None]:
    """None where nothing that is moved reaches the target: then it may hang on no gradient at all."""
    if not target.requires_grad:
        return [None] * len(moved)
    return torch.autograd.grad(target.sum(), moved, retain_graph=True, allow_unused=True)


def test_edges_equal_gradients_of_a_model_cut_by_hand(tmp_path: Path) -> None:
    ids, last = CLEAN[:2], LLAMA.n_layers - 1
    chosen = [("mlp_act.0", -3, 2), ("mlp_act.0", -1, 4), ("mlp_act.1", -1, 1), (f"mlp_act.{last}", -1, 6)]
    circuit = NodeCircuit.of(NODES, [NODES.index(*node) for node in chosen])
    found = node_edges(circuit, ids, METRIC)
    moved = deltas(ids)
    logits, own = naive(ids, True, moved, cut=True)
    layers = [int(site.split(".")[1]) for site, _, _ in chosen]
    order = sorted(range(4), key=lambda i: NODES.index(*chosen[i]))
    targets = [own[layers[j]][:, chosen[j][1], chosen[j][2]] for j in order] + [METRIC(logits, torch.arange(2))]
    for t, target in enumerate(targets):
        slopes = slopes_of(target, list(moved.values()))
        for s, i in enumerate(order):
            slope, (_, position, unit) = slopes[layers[i]], chosen[i]
            gives = 0.0 if slope is None else float((slope * own[layers[i]])[:, position, unit].mean())
            assert float(found.values[s, t]) == pytest.approx(gives, rel=1e-4, abs=1e-6), (s, t)
            share = gives / (abs(float(target.mean())) + 1e-6)
            assert float(found.relative[s, t]) == pytest.approx(share, rel=1e-3, abs=1e-5)
    assert int((found.values != 0).sum()) >= 6 and found.names()[-1] == "metric"
    assert torch.allclose(node_edges(circuit, ids, METRIC, budget=60_000, quiet=True).values, found.values, atol=1e-5)
    half = found.strongest(0.5)
    assert int(half.sum()) == round(0.5 * int((found.values != 0).sum()))
    assert found.relative.abs()[half].min() >= found.relative.abs()[~half].max()
    assert set(found.connected(0.2)) <= set(circuit) and len(found.connected(1.0)) == 4
    found.save(tmp_path / "edges.json", 0.5)
    written = json.loads((tmp_path / "edges.json").read_text())
    assert len(written["edges"]) == int(half.sum()) and written["nodes"][-1] == "metric"
    shares = [abs(row[3]) for row in found.table(3).rows]
    assert shares == sorted(found.relative.abs().flatten().tolist(), reverse=True)[:3]


def test_sets_of_nodes() -> None:
    scores = attribute(NODES, CLEAN, METRIC, OTHER)
    few, more = scores.top(5), scores.top(50)
    assert few.shared(more) == 1 and more.shared(few) == pytest.approx(0.1) and math.isnan(NONE.shared(few))
    assert len(~few) == len(NODES) - 5 and sum(row[1:] != () and sum(row[1:]) for row in few.table().rows) == 5
    sizes = scores.values.abs()
    assert sizes[few.kept].min() >= sizes[~few.kept].max() and len(scores.top(10**9)) == len(NODES)
    assert scores.table(2).rows[0][0] in {NODES.name(i) for i in few}
    assert list(NodeCircuit.random(NODES, 9, 3)) == list(NodeCircuit.random(NODES, 9, 3))
    assert list(NodeCircuit.random(NODES, 9, 3)) != list(NodeCircuit.random(NODES, 9, 4))


def test_what_cannot_be_run_is_refused() -> None:
    circuit = NodeCircuit.random(NODES, 5)
    with pytest.raises(BadInput, match="at least one"):
        evaluate([], CLEAN, METRIC, FILL)
    with pytest.raises(BadInput, match="ratios below"):
        evaluate(circuit, CLEAN, lambda logits, rows: 0 * METRIC(logits, rows), FILL)
    with pytest.raises(BadInput, match="one Nodes"):
        circuit.keep(Fill.zeros(Nodes.of(LLAMA, CLEAN)))
    with pytest.raises(BadInput, match="exactly 6"):
        evaluate(circuit, CLEAN[:, 1:], METRIC, FILL)
    with pytest.raises(BadInput, match="node -1"):
        NodeCircuit.of(NODES, [-1])
    with pytest.raises(ShapeMismatch, match="one boolean a node"):
        NodeCircuit(NODES, torch.ones(3, dtype=torch.bool))
    with pytest.raises(NotFinite, match="factor"):
        circuit.scale(float("nan"))
    with pytest.raises(BadInput, match="changes"):
        steer(NODES, CLEAN, [5], {})
    with pytest.raises(BadInput, match="no nodes"):
        node_edges(NONE, CLEAN, METRIC)
    with pytest.raises(NotServed, match="among neurons"):
        node_edges(NodeCircuit.random(Nodes.of(LLAMA, CLEAN, "mlp_out"), 3), CLEAN, METRIC)
    with pytest.raises(BudgetTooSmall, match="target"):
        node_edges(circuit, CLEAN, METRIC, budget=10)
    with pytest.raises(BadInput, match="share"):
        node_edges(NodeCircuit.random(NODES, 2), CLEAN[:1], METRIC).strongest(0)
