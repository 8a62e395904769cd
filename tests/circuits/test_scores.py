"""Scores against a transformer written out by hand: EAP is the gradient of its edge mask, exact effects its runs."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import transformers
from circuit_models import METRIC, apart, images, opened, pair
from masked_forward import FAMILIES, Parts, Values, forward
from torch import Tensor

import mechanome as mn
from mechanome.circuits import METHODS, Circuit, Graph, Intervention, execute, products, scores
from mechanome.core import BadInput, NotFinite
from mechanome.tasks import Example, Task

NAMES = list(FAMILIES)
ROW = torch.arange(1)


@cache
def graph_of(name: str) -> Graph:
    return Graph.of(opened(name))


@cache
def parts_of(name: str) -> Parts:
    return FAMILIES[name](opened(name).module)


def slopes(name: str, clean: Tensor, patched: Values, wrote: Values, **more: Any) -> Tensor:
    """The gradient of the metric by every edge's mask, `[source, target]`, for one row."""
    graph = graph_of(name)
    mask = torch.zeros(graph.shape, requires_grad=True)

    def of(source: str, target: str) -> Tensor:
        return mask[graph.source_index(source), graph.target_index(target)]

    logits, _ = forward(parts_of(name), clean, patched, of, clean=wrote, **more)
    return torch.autograd.grad(METRIC(logits, ROW).sum(), mask)[0]


def by_hand(name: str, clean: Tensor, patched: Values) -> Tensor:
    """The same on the clean input."""
    return slopes(name, clean, patched, values_of(name, clean))


def values_of(name: str, ids: Tensor) -> Values:
    return forward(parts_of(name), ids)[1]


def one_edge_at_a_time(name: str, clean: Tensor, patched: Values) -> Tensor:
    """The metric's change in one run per edge, `[source, target]`, for one row."""
    graph, effects = graph_of(name), torch.zeros(graph_of(name).shape)
    logits, wrote = forward(parts_of(name), clean)
    base = METRIC(logits, ROW)
    for i, j in graph.mask.nonzero().tolist():
        edge = graph.sources[i], graph.targets[j]
        logits, _ = forward(parts_of(name), clean, patched, lambda s, t, e=edge: float((s, t) == e), clean=wrote)
        effects[i, j] = METRIC(logits, ROW)[0] - base[0]
    return effects


def each_row(clean: Tensor, other: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(clean[i : i + 1], other[i : i + 1]) for i in range(len(clean))]


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_the_model(name: str) -> None:
    clean, _ = pair(1)
    logits, _ = forward(parts_of(name), clean)
    assert apart(logits, opened(name).run(clean).logits[:, -1]) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_eap_is_the_gradient_of_an_explicit_edge_mask(name: str) -> None:
    clean, other = pair(2)
    found = scores(graph_of(name), (clean, other), METRIC, method="eap", per_input=True)
    expected = torch.stack([by_hand(name, c, values_of(name, o))[None] for c, o in each_row(clean, other)])[:, 0]
    assert apart(found.each, expected) < 1e-5
    assert apart(found.values, expected.mean(0)) < 1e-5
    assert found.estimate and found.values[~graph_of(name).mask].abs().max() == 0


@pytest.mark.parametrize("name", NAMES)
def test_exact_effects_are_those_of_one_run_per_edge(name: str) -> None:
    clean, other = pair(1)
    found = scores(graph_of(name), (clean, other), METRIC, method="exact", per_input=True)
    expected = torch.stack([one_edge_at_a_time(name, c, values_of(name, o)) for c, o in each_row(clean, other)])
    assert apart(found.each, expected) < 3e-5
    assert not found.estimate and found.known.sum() == graph_of(name).n_edges
    assert expected.abs().gt(1e-4).sum() > 0.8 * expected.ne(0).sum(), "the test would see a wrong edge"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quadrature, alphas", [("midpoint", [1 / 6, 0.5, 5 / 6]), ("left", [0, 1 / 3, 2 / 3])])
def test_eap_ig_averages_the_mask_s_gradient_between_embeddings(
    name: str, quadrature: str, alphas: list[float]
) -> None:
    clean, other = pair(1)
    start, end = values_of(name, other), values_of(name, clean)
    between = [torch.lerp(start["resid_pre.0"], end["resid_pre.0"], alpha) for alpha in alphas]
    expected = sum(slopes(name, clean, start, end, embedded=x) for x in between) / len(alphas)
    found = scores(graph_of(name), (clean, other), METRIC, method="eap-ig", steps=3, quadrature=quadrature)
    assert apart(found.values, expected) < 1e-5
    assert (found.steps, found.quadrature) == (3, quadrature)


@pytest.mark.parametrize("name", NAMES)
def test_clean_corrupted_averages_both_ends(name: str) -> None:
    clean, other = pair(1)
    start, end = values_of(name, other), values_of(name, clean)
    ends = [values["resid_pre.0"] for values in (start, end)]
    expected = sum(slopes(name, clean, start, end, embedded=x) for x in ends) / 2
    assert apart(scores(graph_of(name), (clean, other), METRIC, method="clean-corrupted").values, expected) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_eap_ig_on_activations_moves_one_group_of_sources_at_a_time(name: str) -> None:
    clean, other = pair(1)
    graph, start, end = graph_of(name), values_of(name, other), values_of(name, clean)
    expected = torch.zeros(graph.shape)
    for group in graph.writers:
        names = graph.sources[group.nodes]
        for alpha in (0.25, 0.75):
            held = {n: torch.lerp(start[n], end[n], alpha) for n in names}
            slope = slopes(name, clean, start, end, held=held)
            expected[group.nodes] += slope[group.nodes] / 2
    found = scores(graph, (clean, other), METRIC, method="eap-ig-activations", steps=2)
    assert apart(found.values, expected) < 1e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["zero", "mean", "positional-mean", "noise"])
def test_other_interventions(name: str, kind: str) -> None:
    """Each against the reference, with what a patched source carries worked out by hand."""
    clean, other = pair(3, where=2)
    each = [values_of(name, c) for c, _ in each_row(clean, other)]
    if kind == "zero":
        patched = [{k: torch.zeros_like(v) for k, v in values.items()} for values in each]
    elif kind == "noise":
        model, noise = opened(name), []
        for row, values in enumerate(each):
            x = values["resid_pre.0"]
            generator = torch.Generator().manual_seed(7 * 1_000_003 + row)
            drawn = torch.randn(x.shape[1:], generator=generator) * 0.5 * x[0, 2].std()
            differs = torch.zeros(1, x.shape[1], 1)
            differs[:, 2] = 1
            noise.append(x + drawn * differs)
        patched = [forward(parts_of(name), clean[:1], embedded=x)[1] for x in noise]
        assert model.serves("resid_pre.0")
    else:
        means = {k: torch.cat([values[k] for values in each]).mean(0, keepdim=True) for k in each[0]}
        if kind == "mean":
            means = {k: v.mean(1, keepdim=True).expand_as(v) for k, v in means.items()}
        patched = [means] * 3
    intervention = Intervention(kind, amplitude=0.5, seed=7)
    for method, reference, close in (("eap", by_hand, 2e-5), ("exact", one_edge_at_a_time, 1e-4)):
        found = scores(graph_of(name), (clean, other), METRIC, method=method, intervention=intervention, per_input=True)
        assert found.intervention == kind
        rows = (0,) if method == "exact" else range(3)
        for row in rows:
            expected = reference(name, clean[row : row + 1], patched[row])
            assert apart(found.each[row], expected) < close, (method, row)


@pytest.mark.parametrize("name", [*NAMES, "gptj", "qwen3", "gemma2", "mixtral", "esm", "vit"])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "exact"])
def test_edges_of_a_source_sum_to_its_score_as_a_node(name: str, method: str) -> None:
    data = pair(2) if name != "vit" else images()
    edges = scores(graph_of(name), data, METRIC, method=method, steps=2)
    nodes = scores(graph_of(name), data, METRIC, method=method, steps=2, level="node")
    assert apart(edges.values.sum(1), nodes.values) < 1e-5
    assert nodes.values.abs().min() > 0


@pytest.mark.parametrize("name", ["gptj", "qwen3", "gemma2", "mixtral", "esm", "vit", "llama", "bert", "distilbert"])
def test_a_small_change_has_the_effect_that_its_gradient_says(name: str) -> None:
    """Two computations that share nothing but the graph: gradients in closed form, and the model's own modules."""
    data = (pair(1)[0], None) if name != "vit" else ({"pixel_values": images()[0]["pixel_values"][:1]}, None)
    small = Intervention("noise", amplitude=2e-3)
    exact = scores(graph_of(name), data, METRIC, method="exact", intervention=small).values
    first_order = scores(graph_of(name), data, METRIC, method="eap", intervention=small).values
    assert apart(first_order, exact) < 0.03


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox"])
def test_exact_node_effects_are_runs_with_one_source_replaced(name: str) -> None:
    clean, other = pair(2)
    graph, model = graph_of(name), opened(name)
    sites = ["resid_pre.0", "z.*", "mlp_out.*"]
    donor = model.run(other, capture=sites)
    base = METRIC(model.run(clean).logits[:, -1], torch.arange(2))
    expected = torch.stack(
        [
            METRIC(model.run(clean, edits=mn.Patch(s, donor)).logits[:, -1], torch.arange(2)) - base
            for s in graph.sources
        ],
        1,
    )
    found = scores(graph, (clean, other), METRIC, method="exact", level="node", per_input=True)
    assert apart(found.each, expected) < 1e-4
    assert apart(found.values, expected.mean(0)) < 1e-4 and not found.estimate
    zero = scores(graph, (clean, None), METRIC, method="exact", level="node", intervention="zero")
    expected = torch.stack(
        [METRIC(model.run(clean, edits=mn.Ablate(s)).logits[:, -1], torch.arange(2)) - base for s in graph.sources], 1
    )
    assert apart(zero.values, expected.mean(0)) < 1e-4 and zero.corrupted is None


def test_all_edges_of_the_embedding_together_are_the_other_input() -> None:
    """Patching the embedding as a node is running the other input: its effect is the total effect."""
    for name in NAMES:
        found = scores(graph_of(name), pair(2), METRIC, method="exact", level="node")
        assert float(found.values[0]) == pytest.approx(found.total_effect, rel=1e-4)


def linear_model() -> mn.Model:
    """A gpt2 without norms and activation functions, whose attention looks at all tokens alike: linear in its input."""
    settings = {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "vocab_size": 99,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 16,
    }
    config = transformers.GPT2Config(**settings, activation_function="linear")
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(config).eval()
    for p in module.parameters():
        p.data = 0.2 * torch.randn(p.shape)
    module.transformer.ln_f = torch.nn.Identity()
    for block in module.transformer.h:
        block.ln_1, block.ln_2 = torch.nn.Identity(), torch.nn.Identity()
        block.attn.c_attn.weight.data[:, :64] = 0.0
    return mn.load(module, check="off")  # the self-test would find that queries do nothing


@pytest.mark.parametrize("method", [m for m in METHODS if m != "exact"])
def test_estimates_are_exact_on_a_linear_model(method: str) -> None:
    graph, data = Graph.of(linear_model()), pair(2, where=5)
    exact = scores(graph, data, METRIC, method="exact").values
    found = scores(graph, data, METRIC, method=method, steps=2).values
    reading = torch.tensor(["q." in t or "k." in t for t in graph.targets])
    typical = float(exact[graph.mask & ~reading].abs().median())
    assert (found - exact).abs().max() < 1e-3 * typical
    assert exact[:, reading].abs().max() < 1e-3 * typical, "nothing hangs on where it looks"


def test_integrated_gradients_of_activations_come_to_the_exact_effect() -> None:
    """One group of sources moved along its line integrates to the effect of replacing the group."""
    clean, other = pair(1)
    graph, model = graph_of("llama"), opened("llama")
    donor = model.run(other, capture=["mlp_out.*"])
    base = METRIC(model.run(clean).logits[:, -1], ROW)
    errors = []
    for steps in (1, 4, 16, 64):
        found = scores(graph, (clean, other), METRIC, method="eap-ig-activations", level="node", steps=steps).values
        error = 0.0
        for layer in range(3):
            run = model.run(clean, edits=mn.Patch(f"mlp_out.{layer}", donor))
            exact = METRIC(run.logits[:, -1], ROW) - base
            error += float((found[graph.source_index(f"mlp_out.{layer}")] - exact[0]).abs())
        errors.append(error)
    assert errors[-1] < 2e-3 < errors[0] and errors[-1] < 0.05 * errors[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["eap", "eap-ig", "eap-ig-activations", "exact"])
def test_padding_and_batching_change_nothing(name: str, method: str) -> None:
    clean, other = pair(3, 8, where=2)
    lengths = (8, 5, 7)
    rows = [(clean[i, :n].tolist(), other[i, :n].tolist()) for i, n in enumerate(lengths)]
    settings: dict[str, Any] = {"method": method, "per_input": True, "steps": 2}
    together = scores(graph_of(name), ([c for c, _ in rows], [o for _, o in rows]), METRIC, **settings)
    for i, (c, o) in enumerate(rows):
        alone = scores(graph_of(name), ([c], [o]), METRIC, **settings)
        assert apart(together.each[i], alone.values) < 3e-5, i
        assert float(together.clean[i]) == pytest.approx(float(alone.clean[0]), abs=1e-4)
    assert apart(together.values, together.each.mean(0)) < 1e-5
    if name == "bert":
        return
    model = opened(name)
    left = [model.encode([row[k] for row in rows], pad="left") for k in (0, 1)]
    assert apart(scores(graph_of(name), left, METRIC, **settings).each, together.each) < 3e-5


def test_a_small_budget_only_cuts_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, other = pair(5)
    answers = mn.LogitDiff([5, 6, 7, 8, 9], [15, 16, 17, 18, 19])
    for intervention in ("patch", "mean", "noise"):
        settings: dict[str, Any] = {"method": "eap-ig", "steps": 3, "intervention": intervention, "quiet": True}
        whole = scores(graph_of("llama"), (clean, other), answers, per_input=True, **settings)
        pieces = scores(graph_of("llama"), (clean, other), answers, per_input=True, budget="200KB", **settings)
        assert apart(pieces.each, whole.each) < 1e-5 and apart(pieces.clean, whole.clean) < 1e-5
    monkeypatch.setattr(products, "CHUNK_BYTES", 5000)
    for name in NAMES:
        settings = {"method": "eap-ig", "steps": 3}
        whole = scores(graph_of(name), (clean, other), answers, per_input=True, **settings)
        assert apart(scores(graph_of(name), (clean, other), answers, **settings).values, whole.each.mean(0)) < 1e-5


def test_only_some_edges_are_measured() -> None:
    graph, (clean, other) = graph_of("llama"), pair(2)
    chosen = Circuit.of(graph, ["z.0.h1->k.2.kv1", "resid_pre.0->mlp_in.1", "mlp_out.2->logits"])
    found = scores(graph, (clean, other), METRIC, method="exact", only=chosen)
    every = scores(graph, (clean, other), METRIC, method="exact")
    assert torch.equal(found.known, chosen.edges) and found.names() == list(chosen)
    assert apart(found.values[chosen.edges], every.values[chosen.edges]) < 1e-5


def test_graphs_that_do_not_add_up_say_by_how_much() -> None:
    for name in ("bert", "gemma2"):
        notes = scores(graph_of(name), pair(2), METRIC, method="eap").notes
        assert len(notes) == 1 and "do not add up" in notes[0] and "off by 0%" not in notes[0]
    assert scores(graph_of("llama"), pair(2), METRIC, method="eap").notes == ()


def test_examples_of_unequal_weight_are_refused() -> None:
    def task(*weights: float) -> Task:
        texts = [([5, 6, 7], [5, 8, 7]), ([9, 10, 11], [9, 12, 11])]
        made = [Example(a, counterfactual=b, answer=(5,), foil=(7,), weight=w) for (a, b), w in zip(texts, weights)]
        return Task("weighted", tuple(made))

    graph = graph_of("llama")
    with pytest.raises(BadInput, match="task 'weighted': its examples have different weights"):
        scores(graph, task(1.0, 2.0), method="eap")
    with pytest.raises(BadInput, match="different weights"):
        execute(Circuit.full(graph), task(1.0, 2.0), quiet=True)
    assert (
        apart(scores(graph, task(2.0, 2.0), method="eap").values, scores(graph, task(1.0, 1.0), method="eap").values)
        == 0
    )


def test_an_exact_effect_that_is_no_number_is_refused() -> None:
    graph, broken = graph_of("llama"), opened("llama").module.model.layers[1].mlp.down_proj.weight
    kept = broken.data.clone()
    try:
        broken.data[0, 0] = float("nan")
        for level in ("edge", "node"):
            with pytest.raises(NotFinite):
                scores(graph, pair(1), METRIC, method="exact", level=level, quiet=True)
    finally:
        broken.data = kept
