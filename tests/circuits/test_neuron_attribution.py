"""Scores of neurons by position, against a llama written out by hand, and RelP's promises on three shapes of model."""

from __future__ import annotations

import pytest
import torch
from circuit_models import METRIC, apart, opened, pair
from neuron_models import deltas, naive
from torch import nn
from unit_models import Latents, neurons_of

import mechanome as mn
from mechanome.circuits import relp_rules, scores
from mechanome.circuits.neurons import Nodes, attribute, label_auroc
from mechanome.core import BadInput, BudgetTooSmall, NotServed, ShapeMismatch, UnknownSite
from mechanome.engine import Neurons

CLEAN, OTHER = pair(3)
ROWS = torch.arange(3)
LLAMA = opened("llama")


def llama_nodes(**more: object) -> Nodes:
    return Nodes.of(LLAMA, CLEAN, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["relp", "gradient"])
def test_one_backward_pass_equals_a_model_written_by_hand(method: str) -> None:
    linear, moved = method == "relp", deltas(CLEAN)
    logits, own = naive(CLEAN, linear, moved)
    assert apart(logits, LLAMA.run(CLEAN).logits[:, -1]) < 1e-5
    slopes = torch.autograd.grad(METRIC(logits, ROWS).sum(), list(moved.values()))
    with torch.no_grad():
        other = naive(OTHER)[1]
    expected = torch.cat([((own[i] - other[i]) * g).flatten(1) for i, g in enumerate(slopes)], 1)
    found = attribute(llama_nodes(), CLEAN, METRIC, OTHER, method=method, per_input=True)
    assert found.each is not None and apart(found.each, expected) < 2e-5
    assert apart(found.values, expected.mean(0)) < 2e-5
    unpaired = attribute(llama_nodes(), CLEAN, METRIC, method=method)
    assert apart(unpaired.values, torch.cat([(own[i] * g).mean(0).flatten() for i, g in enumerate(slopes)])) < 2e-5


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
def test_integrated_gradients_equal_a_loop_by_hand(paired: bool) -> None:
    with torch.no_grad():
        own, other = naive(CLEAN)[1], naive(OTHER)[1]
    expected = []
    for layer in own:
        start = other[layer] if paired else torch.zeros_like(own[layer])
        mean = torch.zeros_like(start)
        for alpha in (1 / 6, 3 / 6, 5 / 6):
            value = (start + alpha * (own[layer] - start)).requires_grad_()
            mean += torch.autograd.grad(METRIC(naive(CLEAN, held={layer: value})[0], ROWS).sum(), value)[0] / 3
        expected.append(((own[layer] - start) * mean).flatten(1))
    found = attribute(
        llama_nodes(), CLEAN, METRIC, OTHER if paired else None, method="ig", steps=3, per_input=True, quiet=True
    )
    assert found.each is not None and apart(found.each, torch.cat(expected, 1)) < 5e-5
    assert apart(found.metric, METRIC(naive(CLEAN)[0], ROWS)) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_positions_sum_to_scores_of_units(name: str) -> None:
    model, rules = opened(name), relp_rules(opened(name))
    found = attribute(Nodes.of(model, CLEAN), CLEAN, METRIC, OTHER)
    whole = scores(neurons_of(name), (CLEAN, OTHER), METRIC, method="eap", rules=rules, level="node")
    graph = neurons_of(name)
    own = torch.cat(list(found.by_unit().values()))
    assert apart(own, -whole.values[graph.kinds("unit")]) < 2e-5, "those are effects of taking a unit's value away"


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_relp_keeps_the_forward_pass_and_conserves_what_flows(name: str) -> None:
    """What arrives from the layer's input, plus what biases behind it add, is the metric."""
    model, rules = opened(name), relp_rules(opened(name))
    modules = dict(model.module.named_modules())
    norms = [n for n, m in modules.items() if "Norm" in type(m).__name__ and getattr(m, "bias", None) is not None]
    biased = [
        n for n, m in modules.items()
        if type(m).__name__ in ("Linear", "Conv1D") and getattr(m, "bias", None) is not None
    ]  # fmt: skip
    plain = model.grad(METRIC, CLEAN, "resid_pre.0")
    sites = ["resid_pre.0", *(f"path:{n}" for n in [*norms, *biased] if "embeddings" not in n and "pooler" not in n)]
    found = model.grad(METRIC, CLEAN, sites, rules=rules)
    assert apart(found.metric, plain.metric) < 1e-5
    arrived = (found["resid_pre.0"] * found.run["resid_pre.0"]).flatten(1).sum(1)
    for site in sites[1:]:
        bias = modules[site.removeprefix("path:")].bias
        assert isinstance(bias, nn.Parameter)
        arrived = arrived + (found[site] * bias.detach()).flatten(1).sum(1)
    assert float(((arrived - found.metric) / found.metric).abs().max()) < 1e-3


def test_a_basis_and_what_it_misses_share_the_same_whole() -> None:
    width = LLAMA.weight("W_in.1").value.shape[1]
    latents = Latents(width, 11)
    plain = attribute(Nodes.of(LLAMA, CLEAN, {"mlp_act.1": None}), CLEAN, METRIC, OTHER, per_input=True)
    nodes = Nodes.of(LLAMA, CLEAN, {"mlp_act.1": latents})
    assert len(nodes) == 6 * 12 and nodes.name(11) == "mlp_act.1.rest@-6" and nodes.name(13) == "mlp_act.1.u1@-5"
    found = attribute(nodes, CLEAN, METRIC, OTHER, per_input=True)
    assert found.each is not None and plain.each is not None
    own, whole = (x.view(3, 6, -1).sum(-1) for x in (found.each, plain.each))
    assert apart(own, whole) < 2e-5
    assert float(found.each.view(3, 6, 12)[..., 11].abs().max()) > 1e-3, "the rest carries something"
    same = attribute(Nodes.of(LLAMA, CLEAN, {"mlp_act.1": Neurons(range(width), width)}), CLEAN, METRIC, OTHER)
    assert apart(same.values.view(6, -1)[:, :width], plain.values.view(6, -1)) < 2e-5


def test_nodes_are_numbered_site_by_site() -> None:
    nodes = llama_nodes(at="mlp_out")
    width = nodes.sites[0].width
    last = len(nodes) - 1
    assert nodes.where(last) == (len(nodes.sites) - 1, -1, width - 1)
    for node in (0, 7, 6 * width, last):
        index, position, unit = nodes.where(node)
        assert nodes.index(nodes.sites[index].site, position, unit) == node
    assert nodes.name(6 * width + width + 3) == "mlp_out.1.n3@-5"
    parts = nodes.split(torch.arange(len(nodes)))
    assert torch.equal(nodes.joined(parts), torch.arange(len(nodes))) and int(parts[1][1, 3]) == 7 * width + 3


def test_the_last_positions_of_prompts_of_several_lengths() -> None:
    rows = [CLEAN[0].tolist(), CLEAN[1, 2:].tolist()]
    nodes = Nodes.of(LLAMA, rows, last=3)
    found = attribute(nodes, rows, METRIC, per_input=True)
    for i, row in enumerate(rows):
        alone = attribute(nodes, [row], METRIC)
        assert found.each is not None and apart(found.each[i], alone.values) < 2e-5
    whole = attribute(Nodes.of(LLAMA, rows[:1]), rows[:1], METRIC)
    parts = [part[-3:] for part in whole.nodes.split(whole.values)]
    assert apart(nodes.joined(parts), attribute(nodes, rows[:1], METRIC).values) < 2e-5


def test_memory_cuts_examples_and_changes_nothing() -> None:
    nodes = llama_nodes()
    whole = attribute(nodes, CLEAN, METRIC, OTHER, per_input=True)
    kept = 6 * LLAMA.n_layers * 8 * nodes.sites[0].width * 4 + 16 * len(nodes)
    cut = attribute(nodes, CLEAN, METRIC, OTHER, per_input=True, budget=kept + 1, quiet=True)
    assert cut.each is not None and whole.each is not None and apart(cut.each, whole.each) < 1e-5
    assert apart(cut.metric, whole.metric) < 1e-6
    with pytest.raises(BudgetTooSmall, match="example"):
        attribute(nodes, CLEAN, METRIC, OTHER, budget=kept - 1)


@pytest.mark.parametrize("method", ["relp", "ig"])
def test_every_prompt_has_its_own_answer(method: str) -> None:
    answers, foils = [5, 9, 11], [7, 8, 12]
    nodes = llama_nodes()
    kept = 6 * LLAMA.n_layers * 8 * nodes.sites[0].width * 4 * (2 if method == "ig" else 1) + 16 * len(nodes)
    for budget in (None, 2 * kept):
        found = attribute(
            nodes, CLEAN, mn.LogitDiff(answers, foils), OTHER, method=method, steps=2, per_input=True, budget=budget,
            quiet=True,
        )  # fmt: skip
        assert found.each is not None
        for i, (answer, foil) in enumerate(zip(answers, foils)):
            alone = attribute(
                nodes, CLEAN[i : i + 1], mn.LogitDiff(answer, foil), OTHER[i : i + 1], method=method, steps=2
            )
            assert apart(found.each[i], alone.values) < 2e-5


def test_what_cannot_be_scored_is_refused() -> None:
    nodes = llama_nodes()
    with pytest.raises(BadInput, match="one template"):
        Nodes.of(LLAMA, [[5, 6, 7], [5, 6]])
    with pytest.raises(BadInput, match="at least 4"):
        Nodes.of(LLAMA, [[5, 6, 7]], last=4)
    with pytest.raises(BadInput, match="at least 1"):
        Nodes.of(LLAMA, CLEAN, last=0)
    with pytest.raises(BadInput, match="mlp_act"):
        Nodes.of(LLAMA, CLEAN, "mlp_acts")
    with pytest.raises(BadInput, match="encode and decode"):
        Nodes.of(LLAMA, CLEAN, {"mlp_act.0": 3})  # type: ignore[dict-item]
    with pytest.raises(BadInput, match=r"use mlp_act\.0"):
        Nodes.of(LLAMA, CLEAN, {"mlp_act.0.n3": None})
    with pytest.raises(BadInput, match="no choice of sites"):
        Nodes.of(LLAMA, CLEAN, {})
    with pytest.raises(UnknownSite):
        Nodes.of(LLAMA, CLEAN, {"mlp_act.99": None})
    with pytest.raises(NotServed, match="mlp_act"):
        Nodes.of(opened("mamba"), CLEAN)
    with pytest.raises(BadInput, match="exactly 6"):
        attribute(nodes, CLEAN[:, 1:], METRIC)
    with pytest.raises(ShapeMismatch, match="one for each"):
        attribute(nodes, CLEAN, METRIC, OTHER[:2])
    with pytest.raises(BadInput, match="relp"):
        attribute(nodes, CLEAN, METRIC, method="relpp")
    with pytest.raises(BadInput, match="steps"):
        attribute(nodes, CLEAN, METRIC, method="ig", steps=0)
    with pytest.raises(BadInput, match="node 10000000"):
        nodes.name(10_000_000)


def test_the_area_under_the_curve_of_each_node() -> None:
    values = torch.tensor([[1.0, 3.0, 0.0], [2.0, 1.0, 0.0], [3.0, 2.0, 0.0], [4.0, 0.0, 0.0]])
    labels = torch.tensor([False, False, True, True])
    assert label_auroc(values, labels).tolist() == [1.0, 0.25, 0.5]
    draws = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(0)).round()
    chosen = torch.arange(9) % 3 == 0
    pairs = draws[chosen][:, None] - draws[~chosen][None]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean((0, 1))
    assert torch.allclose(label_auroc(draws, chosen), expected)
    with pytest.raises(BadInput, match="both kinds"):
        label_auroc(values, torch.ones(4))
    with pytest.raises(ShapeMismatch, match="one an example"):
        label_auroc(values, labels[:3])
