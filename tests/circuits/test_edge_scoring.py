"""What `scores` takes and what it refuses, with reasons."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from circuit_models import METRIC, apart, opened, pair
from torch import nn

import mechanome as mn
from mechanome.circuits import Circuit, Graph, Intervention, Layer, interventions, scores
from mechanome.core import BadInput, BudgetTooSmall, NotFinite, NotServed, ShapeMismatch
from mechanome.tasks import Example, Task

LLAMA = Graph.of(opened("llama"))
DATA = pair(2)


def test_a_task_brings_its_inputs_and_its_metric() -> None:
    clean, other = DATA
    examples = tuple(
        Example(tuple(c.tolist()), answer=(5,), foil=(7,), counterfactual=tuple(o.tolist()))
        for c, o in zip(clean, other)
    )
    task = Task("by hand", examples)
    by_task = scores(LLAMA, task, method="eap")
    assert torch.equal(by_task.values, scores(LLAMA, DATA, METRIC, method="eap").values)
    assert torch.equal(by_task.values, scores(LLAMA, task.batch(opened("llama")), method="eap").values)
    assert by_task.total_effect == pytest.approx(float((by_task.corrupted - by_task.clean).mean()))


def test_each_example_s_own_answer_counts() -> None:
    clean, other = pair(3)
    answers, foils = [5, 9, 20], [7, 11, 30]
    together = scores(LLAMA, (clean, other), mn.LogitDiff(answers, foils), per_input=True, steps=2)
    for i in range(3):
        one = (clean[i : i + 1], other[i : i + 1])
        alone = scores(LLAMA, one, mn.LogitDiff(answers[i], foils[i]), steps=2)
        assert apart(together.each[i], alone.values) < 1e-5
    exact = scores(LLAMA, (clean, other), mn.LogitDiff(answers, foils), per_input=True, method="exact", level="node")
    one = (clean[2:], other[2:])
    alone = scores(LLAMA, one, mn.LogitDiff(20, 30), method="exact", level="node")
    assert apart(exact.each[2], alone.values) < 1e-4


@pytest.mark.parametrize(
    "more, error, why",
    [
        ({"method": "eapig"}, BadInput, "eap-ig"),
        ({"level": "edges"}, BadInput, "edge"),
        ({"quadrature": "middle"}, BadInput, "midpoint"),
        ({"intervention": "means"}, BadInput, "mean"),
        ({"steps": 0}, BadInput, "positive"),
        ({"only": Circuit.full(LLAMA)}, BadInput, "method='exact'"),
        ({"budget": 100}, BudgetTooSmall, "example"),
        ({"metric": None}, BadInput, "no metric"),
        ({"metric": mn.LogitDiff([1, 2, 3], [4, 5, 6])}, BadInput, "3"),
        ({"metric": lambda logits, rows: logits[:, 0] / 0}, NotFinite, "NaN|infinite"),
    ],
)
def test_refusals_of_settings(more: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        scores(LLAMA, DATA, **{"metric": METRIC, **more})


def test_refusals_of_data() -> None:
    clean, other = DATA
    for data in ("a text", clean, (clean,), 3):
        with pytest.raises(BadInput, match="pair of inputs"):
            scores(LLAMA, data, METRIC)
    with pytest.raises(BadInput, match="needs a corrupted input"):
        scores(LLAMA, (clean, None), METRIC)
    with pytest.raises(ShapeMismatch, match="2 clean and 1"):
        scores(LLAMA, (clean, other[:1]), METRIC)
    with pytest.raises(ShapeMismatch, match="example 1: 6 clean and 5"):
        scores(LLAMA, (clean.tolist(), [other[0].tolist(), other[1, :5].tolist()]), METRIC)
    model = opened("llama")
    ragged = [[*clean[0].tolist(), 9], clean[1].tolist()]
    with pytest.raises(ShapeMismatch, match="different sides"):
        scores(LLAMA, (model.encode(ragged), model.encode(ragged, pad="left")), METRIC)
    with pytest.raises(BadInput, match="from shapes"):
        scores(Graph((Layer(4, 2),)), DATA, METRIC)
    with pytest.raises(BadInput, match="no size"):
        Intervention("noise", amplitude=0.0)
    long = pair(2, 9)[0]
    with pytest.raises(BadInput, match="6 positions"):
        scores(LLAMA, (long, None), METRIC, intervention=Intervention("positional-mean", reference=clean))


def test_means_can_be_taken_over_other_inputs() -> None:
    clean, _ = DATA
    others = pair(5, 8, seed=3)[0]
    found = scores(LLAMA, (clean, None), METRIC, method="eap", intervention=Intervention("mean", reference=others))
    own = scores(LLAMA, (clean, None), METRIC, method="eap", intervention="mean")
    run = opened("llama").run(others, capture="mlp_out.1")
    mine = opened("llama").run(clean, capture="mlp_out.1")["mlp_out.1"]
    slope = opened("llama").grad(METRIC, clean, "mlp_out.1")["mlp_out.1"]
    expected = ((run["mlp_out.1"].mean((0, 1)) - mine) * slope).sum((1, 2)).mean()
    source = LLAMA.source_index("mlp_out.1")
    assert float(found.values[source].sum()) == pytest.approx(float(expected), rel=1e-4)
    assert apart(found.values, own.values) > 0.01


def test_scores_that_are_not_finite_are_refused() -> None:
    module = copy.deepcopy(opened("llama").module)
    module.model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    model = mn.load(module, check="off")
    with pytest.raises(NotFinite):
        scores(Graph.of(model), DATA, METRIC, method="eap")


def test_a_model_whose_parts_are_not_what_the_graph_says_is_refused() -> None:
    """A second reader of the stream hides behind the first norm: edges miss what it does, the node score has it."""
    module = copy.deepcopy(opened("llama").module)
    layer = module.model.layers[1]

    def both(hidden: torch.Tensor, **more: Any) -> Any:
        out, pattern = original(hidden_states=hidden, **more)
        return out + 0.5 * hidden, pattern

    original = layer.self_attn.forward
    layer.self_attn.forward = lambda hidden_states, **more: both(hidden_states, **more)
    model = mn.load(module, check="off")
    with pytest.raises(NotServed, match="do not sum"):
        scores(Graph.of(model), DATA, METRIC, method="eap")
    assert scores(Graph.of(model), DATA, METRIC, method="eap", level="node").values.abs().min() > 0


@pytest.mark.parametrize("dtype, close", [(torch.bfloat16, 0.2), (torch.float16, 0.03), (torch.float64, 1e-5)])
def test_models_of_other_precisions_are_scored_in_float32_or_better(dtype: torch.dtype, close: float) -> None:
    model = mn.load(copy.deepcopy(opened("llama").module).to(dtype))
    for method in ("eap", "exact"):
        found = scores(Graph.of(model), DATA, METRIC, method=method)
        assert found.values.dtype == torch.promote_types(dtype, torch.float32)
        assert apart(found.values.float(), scores(LLAMA, DATA, METRIC, method=method).values) < close
        assert any("rounding" in note for note in found.notes) == (dtype != torch.float64)


def test_a_norm_of_another_kind_is_refused() -> None:
    class Halved(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = inner.weight, inner.variance_epsilon

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / (x.abs().mean(-1, keepdim=True) + 1e-6)

    module = copy.deepcopy(opened("llama").module)
    module.model.layers[1].input_layernorm = Halved(module.model.layers[1].input_layernorm)
    model = mn.load(module, check="off")
    with pytest.raises(NotServed):
        scores(Graph.of(model), DATA, METRIC, method="eap")


def test_inputs_that_do_not_differ_change_nothing() -> None:
    clean, other = pair(2)
    other = torch.stack([other[0], clean[1]])
    for method in ("eap", "eap-ig", "exact"):
        found = scores(LLAMA, (clean, other), METRIC, method=method, per_input=True, steps=2)
        assert found.each[1].abs().max() == 0 and found.each[0].abs().max() > 0
        alone = scores(LLAMA, (clean[:1], other[:1]), METRIC, method=method, steps=2)
        assert apart(found.values, alone.values / 2) < 1e-5


def test_nothing_of_the_model_is_changed() -> None:
    model = mn.load(copy.deepcopy(opened("llama").module))
    for i, p in enumerate(model.module.parameters()):
        p.requires_grad_(i % 2 == 0)
    before = {n: p.clone() for n, p in model.module.named_parameters()}
    logits = model.run(DATA[0]).logits
    for method in ("eap", "eap-ig", "exact", "eap-ig-activations"):
        scores(Graph.of(model), DATA, METRIC, method=method, steps=2)
    assert all(torch.equal(before[n], p) and p.grad is None for n, p in model.module.named_parameters())
    assert [p.requires_grad for p in model.module.parameters()] == [i % 2 == 0 for i in range(len(before))]
    assert torch.equal(model.run(DATA[0]).logits, logits)


def test_kinds_of_interventions_are_documented() -> None:
    for kind in interventions.KINDS:
        assert f"| `{kind}` |" in (interventions.__doc__ or "")
