"""Scores of units, against a transformer written out by hand in which every unit and what it misses is a summand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from circuit_models import METRIC, apart, opened, pair
from masked_forward import Parts, Values, forward
from torch import Tensor
from unit_models import graph_of, linear_parts_of, neurons_of, parts_of, whole_graph_of

import mechanome as mn
from mechanome.circuits import METHODS, Circuit, Graph, Intervention, products, relp_rules, scores
from mechanome.core import BadInput, BudgetTooSmall

NAMES = ["gpt2", "llama", "gpt_neox", "bert"]
ROW = torch.arange(1)
FIRST_ORDER = [m for m in METHODS if m != "exact"]


def values_of(name: str, ids: Tensor) -> Values:
    return forward(parts_of(name), ids)[1]


def slopes(name: str, clean: Tensor, patched: Values, wrote: Values, parts: Parts | None = None, **more: Any) -> Tensor:
    """The gradient of the metric by every edge's mask, `[source, target]`, for one row."""
    graph, parts = graph_of(name), parts or parts_of(name)
    mask = torch.zeros(graph.shape, requires_grad=True)

    def of(source: str, target: str) -> Tensor:
        return mask[graph.source_index(source), graph.target_index(target)]

    logits, _ = forward(parts, clean, patched, of, clean=wrote, **more)
    return torch.autograd.grad(METRIC(logits, ROW).sum(), mask)[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_the_model_and_has_these_sources(name: str) -> None:
    clean, _ = pair(1)
    logits, wrote = forward(parts_of(name), clean)
    assert apart(logits, opened(name).run(clean).logits[:, -1]) < 1e-5
    assert tuple(wrote) == graph_of(name).sources
    speak = [float(value.norm()) > 1e-3 for value in wrote.values()]
    assert sum(speak) > 0.8 * len(speak), "but for latents that do not fire"


@pytest.mark.parametrize("name", NAMES)
def test_eap_is_the_gradient_of_an_explicit_edge_mask(name: str) -> None:
    clean, other = pair(2)
    found = scores(graph_of(name), (clean, other), METRIC, method="eap", per_input=True)
    rows = [(clean[i : i + 1], other[i : i + 1]) for i in range(2)]
    expected = torch.stack([slopes(name, c, values_of(name, o), values_of(name, c)) for c, o in rows])
    assert apart(found.each, expected) < 2e-5
    units = graph_of(name).kinds("unit", "rest")
    assert apart(found.each[:, units], expected[:, units]) < 1e-4
    assert found.values[~graph_of(name).mask].abs().max() == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
def test_relp_is_the_gradient_of_a_linear_network(name: str) -> None:
    clean, other = pair(1)
    linear, rules = linear_parts_of(name), relp_rules(opened(name))
    assert ("half_gate" in rules) == (name == "llama")
    assert apart(forward(linear, clean)[0], forward(parts_of(name), clean)[0]) < 1e-5
    expected = slopes(name, clean, values_of(name, other), values_of(name, clean), linear)
    found = scores(graph_of(name), (clean, other), METRIC, method="eap", rules=rules)
    assert apart(found.values, expected) < 2e-5 and all(rule in str(found.notes) for rule in rules)
    nodes = scores(graph_of(name), (clean, other), METRIC, method="eap", rules=rules, level="node")
    assert apart(nodes.values, expected.sum(1)) < 2e-5
    plain = scores(graph_of(name), (clean, other), METRIC, method="eap")
    assert apart(plain.values, expected) > 0.05, "the rules change something"
    with pytest.raises(BadInput, match="backward passes"):
        scores(graph_of(name), (clean, other), METRIC, method="exact", rules=rules)


def test_relp_of_post_norm_blocks_sums_to_nodes() -> None:
    rules, data = ("detach_norm", "detach_pattern"), pair(2)
    edges = scores(graph_of("bert"), data, METRIC, method="eap", rules=rules)
    nodes = scores(graph_of("bert"), data, METRIC, method="eap", rules=rules, level="node")
    assert apart(edges.values.sum(1), nodes.values) < 2e-5


@pytest.mark.parametrize("name", NAMES)
def test_exact_effects_of_edges_are_those_of_one_run_per_edge(name: str) -> None:
    clean, other = pair(1)
    graph, patched = graph_of(name), values_of(name, other)
    logits, wrote = forward(parts_of(name), clean)
    base, expected = METRIC(logits, ROW), torch.zeros(graph.shape)
    chosen = graph.mask & (graph.kinds("unit", "rest")[:, None] | (torch.arange(graph.shape[0]) % 5 == 0)[:, None])
    for i, j in chosen.nonzero().tolist():
        edge = graph.sources[i], graph.targets[j]
        logits, _ = forward(parts_of(name), clean, patched, lambda s, t, e=edge: float((s, t) == e), clean=wrote)
        expected[i, j] = METRIC(logits, ROW)[0] - base[0]
    found = scores(graph, (clean, other), METRIC, method="exact", only=Circuit(graph, chosen))
    assert torch.equal(found.known, chosen)
    assert apart(found.values[chosen], expected[chosen]) < 5e-5
    units = expected[graph.kinds("unit", "rest")]
    assert apart(found.values[graph.kinds("unit", "rest")][units != 0], units[units != 0]) < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_integrated_gradients_move_units_and_what_they_miss_apart(name: str) -> None:
    clean, other = pair(1)
    graph, start, end = graph_of(name), values_of(name, other), values_of(name, clean)
    expected = torch.zeros(graph.shape)
    for group in graph.writers:
        names = graph.sources[group.nodes]
        for alpha in (0.25, 0.75):
            held = {n: torch.lerp(start[n], end[n], alpha) for n in names}
            # Sources of one MLP share a site: held there, the others of it do not follow what this run makes of them.
            held |= {n: end[n] for w in graph.writers if w.layer == group.layer and w.kind in ("unit", "rest")
                     and group.kind in ("unit", "rest") and w is not group for n in graph.sources[w.nodes]}  # fmt: skip
            expected[group.nodes] += slopes(name, clean, start, end, held=held)[group.nodes] / 2
    found = scores(graph, (clean, other), METRIC, method="eap-ig-activations", steps=2)
    assert apart(found.values, expected) < 2e-5
    between = torch.lerp(start["resid_pre.0"], end["resid_pre.0"], 0.5)
    expected = slopes(name, clean, start, end, embedded=between)
    found = scores(graph, (clean, other), METRIC, method="eap-ig", steps=1)
    assert apart(found.values, expected) < 2e-5


@pytest.mark.parametrize("name", [*NAMES, "gptj", "qwen3", "esm", "vit", "phi3", "opt"])
@pytest.mark.parametrize("units", ["neurons", "svd"])
def test_units_add_up_to_the_whole_mlp(name: str, units: str) -> None:
    """What is linear in what an MLP writes: all its units together are the MLP, as a node and along each edge."""
    data: Any = pair(2)
    if name == "vit":
        generator = torch.Generator().manual_seed(0)
        data = tuple({"pixel_values": torch.randn(2, 3, 12, 12, generator=generator)} for _ in range(2))
    graph, whole = neurons_of(name, units), whole_graph_of(name)
    for method in ("eap", "eap-ig", "clean-corrupted"):
        settings: dict[str, Any] = {"method": method, "steps": 2, "per_input": True}
        cut, uncut = (scores(g, data, METRIC, level="node", **settings) for g in (graph, whole))
        assert apart(summed(graph, cut.each), uncut.each) < 2e-5
        if graph.additive:
            cut, uncut = (scores(g, data, METRIC, level="edge", **settings) for g in (graph, whole))
            assert apart(summed(graph, cut.each), uncut.each) < 2e-5


def summed(graph: Graph, values: Tensor) -> Tensor:
    """Scores `[example, source, ...]` with the units of each MLP summed."""
    parts = [values[:, g.nodes].sum(1, keepdim=True) if g.kind == "unit" else values[:, g.nodes] for g in graph.writers]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("name", [*NAMES, "gptj", "gemma2", "esm"])
@pytest.mark.parametrize("method", FIRST_ORDER)
def test_edges_of_a_unit_sum_to_its_score_as_a_node(name: str, method: str) -> None:
    graph = graph_of(name) if name in NAMES else neurons_of(name)
    edges = scores(graph, pair(2), METRIC, method=method, steps=2)
    nodes = scores(graph, pair(2), METRIC, method=method, steps=2, level="node")
    assert apart(edges.values.sum(1), nodes.values) < 2e-5 and nodes.values.abs().gt(1e-7).float().mean() > 0.9
    assert any("do not add up" in note for note in edges.notes) != graph.additive


@pytest.mark.parametrize("name", [*NAMES, "gptj", "gemma2"])
@pytest.mark.parametrize("kind", ["patch", "zero"])
def test_the_exact_effect_of_a_neuron_is_a_run_with_it_replaced(name: str, kind: str) -> None:
    clean, other = pair(2)
    graph, model = neurons_of(name), opened(name)
    chosen = [s for i, s in enumerate(graph.sources) if i % 7 == 0]
    donor = model.run(other, capture=["resid_pre.0", "z.*", "mlp_act.*"])
    rows = torch.arange(2)
    base = METRIC(model.run(clean).logits[:, -1], rows)

    def effect(site: str) -> Tensor:
        edit = mn.Patch(site, donor) if kind == "patch" else mn.Ablate(site)
        return METRIC(model.run(clean, edits=edit).logits[:, -1], rows) - base

    expected = torch.stack([effect(s) for s in chosen], 1)
    at = torch.zeros(len(graph.sources), dtype=torch.bool)
    at[[graph.source_index(s) for s in chosen]] = True
    only = Circuit(graph, graph.mask & at[:, None])
    data = (clean, other) if kind == "patch" else (clean, None)
    found = scores(graph, data, METRIC, method="exact", level="node", per_input=True, only=only, intervention=kind)
    assert torch.equal(found.known, at) and not found.estimate
    assert apart(found.each[:, at], expected) < 1e-4
    units = (graph.kinds("unit") & at)[at]
    assert apart(found.each[:, at][:, units], expected[:, units]) < 2e-3, "neurons are small, and right all the same"
    assert expected[:, units].abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_exact_effects_of_coordinates_and_of_what_they_miss(name: str) -> None:
    clean, other = pair(1)
    graph, patched = graph_of(name), values_of(name, other)
    logits, wrote = forward(parts_of(name), clean)
    expected = torch.zeros(len(graph.sources))
    for i, source in enumerate(graph.sources):
        after, _ = forward(parts_of(name), clean, patched, lambda s, t, own=source: float(s == own), clean=wrote)
        expected[i] = (METRIC(after, ROW) - METRIC(logits, ROW))[0]
    found = scores(graph, (clean, other), METRIC, method="exact", level="node")
    assert apart(found.values, expected) < 1e-4
    assert apart(found.values[graph.kinds("unit", "rest")], expected[graph.kinds("unit", "rest")]) < 1e-3


@pytest.mark.parametrize("kind", ["zero", "mean", "positional-mean", "noise"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_other_interventions(name: str, kind: str) -> None:
    clean, other = pair(3, where=2)
    graph = graph_of(name)
    each = [values_of(name, clean[i : i + 1]) for i in range(3)]
    if kind == "zero":
        patched = [{k: torch.zeros_like(v) for k, v in values.items()} for values in each]
    elif kind == "noise":
        x = each[0]["resid_pre.0"]
        generator = torch.Generator().manual_seed(7 * 1_000_003)
        drawn = torch.randn(x.shape[1:], generator=generator) * 0.5 * x[0, 2].std()
        differs = torch.zeros(1, x.shape[1], 1)
        differs[:, 2] = 1
        patched = [forward(parts_of(name), clean[:1], embedded=x + drawn * differs)[1]]
    else:
        means = {k: torch.cat([values[k] for values in each]).mean(0, keepdim=True) for k in each[0]}
        if kind == "mean":
            means = {k: v.mean(1, keepdim=True).expand_as(v) for k, v in means.items()}
        patched = [means]
    intervention = Intervention(kind, amplitude=0.5, seed=7)
    found = scores(graph, (clean, other), METRIC, method="eap", intervention=intervention, per_input=True)
    assert apart(found.each[0], slopes(name, clean[:1], patched[0], each[0])) < 2e-5


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("method", ["eap", "exact"])
def test_padding_and_batching_change_nothing(name: str, method: str) -> None:
    clean, other = pair(3, 8, where=2)
    rows = [(clean[i, :n].tolist(), other[i, :n].tolist()) for i, n in enumerate((8, 5, 7))]
    for level in ("node", "edge") if method == "eap" else ("node",):
        settings: dict[str, Any] = {"method": method, "per_input": True, "level": level}
        together = scores(graph_of(name), ([c for c, _ in rows], [o for _, o in rows]), METRIC, **settings)
        for i, (c, o) in enumerate(rows):
            alone = scores(graph_of(name), ([c], [o]), METRIC, **settings)
            assert apart(together.each[i], alone.values) < 5e-5, i


def test_a_small_budget_only_cuts_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    data, settings = pair(4), {"method": "eap", "per_input": True, "quiet": True}
    for graph in (neurons_of("llama"), graph_of("bert")):
        whole = scores(graph, data, METRIC, **settings)
        monkeypatch.setattr(products, "CHUNK_BYTES", 20_000)
        assert apart(scores(graph, data, METRIC, **settings).each, whole.each) < 1e-5
        monkeypatch.undo()
    nodes = scores(neurons_of("llama"), data, METRIC, level="node", **settings)
    cut = scores(neurons_of("llama"), data, METRIC, level="node", budget="100KB", **settings)
    assert apart(cut.each, nodes.each) < 1e-5
    with pytest.raises(BudgetTooSmall, match="level='node'"):
        scores(neurons_of("llama"), data, METRIC, method="eap", budget="50KB")
    with pytest.raises(BudgetTooSmall, match="edges"):
        scores(neurons_of("llama"), data, METRIC, method="exact", budget="150KB")


def test_only_is_for_what_is_measured() -> None:
    graph = neurons_of("llama")
    with pytest.raises(BadInput, match="method='exact'"):
        scores(graph, pair(1), METRIC, level="node", method="eap", only=Circuit.full(graph))
    with pytest.raises(BadInput, match="different graphs"):
        scores(graph, pair(1), METRIC, level="node", method="exact", only=Circuit.full(whole_graph_of("llama")))
