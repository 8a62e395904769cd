"""Requests that make no sense are refused by their kind, with what, why and fix, and never answered by a guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opened_models import fresh, inputs_of, opened
from torch import Tensor

import mechanome as mn
from families import build
from mechanome.attribution import direct_logit_attribution, integrated_gradients, logit_lens
from mechanome.core.errors import BadInput, NotFinite, NotServed, ShapeMismatch, UnknownName
from mechanome.engine import gradients, memory

METRIC = mn.LogitDiff(30, 31)
IDS = torch.tensor([[5, 6, 7, 8, 9]])
OTHER = torch.tensor([[5, 6, 17, 8, 9]])
TWO = IDS.repeat(2, 1)

NO_METRICS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scalar": lambda x, rows: (x[:, 30] - x[:, 31]).sum(),
    "two columns": lambda x, rows: x[:, :2],
    "fewer rows": lambda x, rows: x[:1, 30] - x[:1, 31],
    "float": lambda x, rows: 1.0,
    "None": lambda x, rows: None,
    "list": lambda x, rows: [1.0] * len(x),
    "numpy": lambda x, rows: x[:, 3].detach().numpy(),
    "int": lambda x, rows: x.argmax(-1),
    "bool": lambda x, rows: x[:, 0] > 0,
    "complex": lambda x, rows: x[:, 0] * 1j,
}


def sweep(
    metric: Any = METRIC, other: Any = OTHER, point: Any = "resid_pre", model: Any = None, **more: Any
) -> mn.Sweep:
    model = opened("llama") if model is None else model
    return mn.activation_patching(model, more.pop("clean", IDS), other, point, metric, quiet=True, **more)


@pytest.mark.parametrize("method", ["auto", "wavefront", "naive"])
@pytest.mark.parametrize("kind", NO_METRICS)
def test_a_metric_is_one_real_number_per_row_in_every_kind_of_sweep(kind: str, method: str) -> None:
    for other in (OTHER, "zero"):
        with pytest.raises(BadInput, match="a metric"):
            sweep(NO_METRICS[kind], other, method=method)


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize("kind", NO_METRICS)
def test_a_metric_is_one_real_number_per_row_in_gradients(kind: str, per_example: bool) -> None:
    with pytest.raises(BadInput, match="a metric"):
        opened("llama").grad(NO_METRICS[kind], TWO, params=["lm_head.weight"], per_example=per_example)


def test_a_metric_that_is_not_finite_or_cannot_be_called() -> None:
    def nan(x: Tensor, rows: Tensor) -> Tensor:
        return x[:, 0] * float("nan")

    for method in ("auto", "wavefront", "naive"):
        with pytest.raises(NotFinite):
            sweep(nan, method=method)
    with pytest.raises(NotFinite):
        opened("llama").grad(nan, IDS, "resid_pre.0")
    with pytest.raises(BadInput, match="cannot be called"):
        sweep(None)
    with pytest.raises(BadInput, match="no gradient leads back"):
        opened("llama").grad(lambda x, rows: x[:, 0].detach(), IDS, "resid_pre.0")


@pytest.mark.parametrize("method", ["auto", "wavefront", "naive"])
def test_an_error_of_the_metric_itself_is_not_taken_for_one_of_the_model(method: str) -> None:
    def broken(x: Tensor, rows: Tensor) -> Tensor:
        raise IndexError("my own mistake")

    with pytest.raises(IndexError, match="my own mistake"):
        sweep(broken, "zero", method=method)


@pytest.mark.parametrize("make", [mn.Logit, mn.LogProb, lambda ids: mn.LogitDiff(ids, 3)])
def test_answers_are_token_ids(make: Any) -> None:
    for wrong in (None, "a", 4.0, [4.0], torch.tensor([4.0]), True, -1, [], [[4]]):
        with pytest.raises(BadInput):
            make(wrong)
    for fine in (4, np.int64(4), np.array([4]), [np.int64(4)], torch.tensor(4), [torch.tensor(4)], (4,)):
        assert torch.equal(sweep(make(fine)).values, sweep(make(4)).values)


def test_answers_are_one_or_one_each() -> None:
    other = OTHER.repeat(2, 1)
    for metric in (mn.Logit([1, 2, 3]), mn.LogProb([1, 2, 3]), mn.LogitDiff([1, 2, 3], 4), mn.LogitDiff(4, [1, 2, 3])):
        with pytest.raises(BadInput, match="2 examples"):
            sweep(metric, other, clean=TWO)
        with pytest.raises(BadInput, match="2 examples"):
            opened("llama").grad(metric, TWO, "resid_pre.0")
    with pytest.raises(BadInput, match="pairs"):
        mn.LogitDiff([1, 2, 3], [4, 5])
    with pytest.raises(BadInput, match="same token"):
        mn.LogitDiff([1, 2], 2)
    with pytest.raises(BadInput, match="0 to 96"):
        sweep(mn.Logit(97))
    assert sweep(mn.LogitDiff([1, 2], 4), other, clean=TWO).values.shape[0] == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"method": "wavefrnt"}, "'wavefront'"), ({"method": None}, "naive"), ({"over": "hea"}, "'head'"),
        ({"over": 5}, "head"), ({"over": "head"}, "no heads"), ({"into": "clear"}, "'clean'"),
        ({"into": None}, "clean"),
        ({"point": None}, "mlp_out|attn_out"), ({"point": "resid_pree"}, "'resid_pre'"), ({"point": "z.5"}, "'z'"),
        ({"point": ["z"]}, "valid"), *(({"layers": wrong}, "from 0 to 2") for wrong in
        ([], "all", "1", [1.0], 1.5, [3], [-1], True, [True], [None])), ({"model": build("llama")}, "open it with"),
        ({"model": "llama"}, "open it with"),
    ],
)  # fmt: skip
def test_names_of_a_sweep(more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        sweep(**more)


def test_one_layer_may_be_a_number() -> None:
    whole = sweep()
    for layer in (1, np.int64(1), [1], range(1, 2)):
        found = sweep(layers=layer)
        assert found.layers == (1,) and torch.allclose(found.values, whole.values[:, 1:2], atol=1e-6)


@pytest.mark.parametrize("method", ["wavefront", "naive"])
def test_replacements_that_do_not_fit(method: str) -> None:
    for wrong in (None, "x", [0.0], torch.zeros(32) * 1j):
        with pytest.raises(BadInput, match="replacement"):
            sweep(other=lambda site, wrong=wrong: wrong, method=method)
    for shape in ((3,), (1, 5, 3), (3, 5, 32), (5, 32), (1, 4, 32), (1, 1, 5, 32)):
        with pytest.raises(ShapeMismatch, match=r"\[1, 5, 32\]"):
            sweep(other=lambda site, shape=shape: torch.zeros(shape), method=method)
    zero = sweep(other="zero", method=method).values
    for value in (0.0, torch.zeros(()), torch.zeros(32), torch.zeros(1, 5, 32), torch.zeros(1, 1, 32)):
        assert torch.allclose(sweep(other=lambda site, value=value: value, method=method).values, zero, atol=1e-5)


def test_a_replacement_that_is_drawn_is_the_same_in_every_cell() -> None:
    def draw(site: mn.Site) -> Tensor:
        calls.append(site)
        return torch.randn(32)

    calls: list[mn.Site] = []
    found = sweep(other=draw, over="layer", layers=[0, 0, 0], method="naive")
    assert torch.equal(found.values[0, 0], found.values[0, 2])
    assert len(calls) <= 3


def test_what_a_model_lacks_is_said_with_what_it_has() -> None:
    with pytest.raises(NotServed, match=r"layers=\[1, 3\]"):
        sweep(model=opened("jamba"), point="z")
    one = {k: v[:1] for k, v in inputs_of("clip").items()}
    for other in (one, "zero"):
        with pytest.raises(NotServed, match="no logits"):
            sweep(model=opened("clip"), clean=one, other=other, tower="text")


def test_a_sweep_keeps_the_precision_of_its_model() -> None:
    model = mn.load(build("llama").double(), check="off")
    fast, naive = sweep(model=model), sweep(model=model, method="naive")
    for values in (fast.values, fast.into, fast.source, naive.values, sweep(mn.LogProb(3), model=model).values):
        assert values is not None and values.dtype == torch.float64
    assert fast.method == "wavefront" and (fast.values - naive.values).abs().max() < 1e-12
    half = mn.load(build("llama").bfloat16(), check="off")
    default = torch.get_default_dtype()
    try:
        for dtype in (torch.float16, torch.float64):
            torch.set_default_dtype(dtype)
            assert sweep(model=half).values.dtype == sweep().values.dtype == torch.float32
    finally:
        torch.set_default_dtype(default)


def test_requests_of_gradients() -> None:
    model = opened("llama")
    for at in ([0, 1], None, "all"):
        with pytest.raises(BadInput, match="choose one"):
            model.grad(METRIC, IDS, "resid_pre.0", at=at)
    for name in ("params", "rules", "modules"):
        for wrong in (None, 5, [None]):
            with pytest.raises(BadInput, match="a name is text"):
                model.grad(METRIC, IDS, "resid_pre.0", **{name: wrong})
        with pytest.raises(UnknownName):
            model.grad(METRIC, IDS, "resid_pre.0", **{name: "lrp"})
    assert list(model.grad(METRIC, IDS, params="lm_head.weight").params) == ["lm_head.weight"]
    assert list(model.grad(METRIC, IDS, modules="lm_head").factors) == ["lm_head"]
    linear = model.grad(METRIC, IDS, "resid_pre.0", rules="detach_norm")
    assert not torch.equal(linear["resid_pre.0"], model.grad(METRIC, IDS, "resid_pre.0")["resid_pre.0"])
    with pytest.raises(NotServed, match="int64"):
        model.grad(METRIC, IDS, "path:model.embed_tokens:in")


def test_a_glob_leaves_out_what_has_no_gradient() -> None:
    model = opened("llama")
    batch = model.encode(IDS)
    found = gradients.grad(model, METRIC, batch, "*").sites
    assert {s.point for s in found} == {s.point for s in model.sites} - {"head_out"}
    for named in ("head_out.0", "head_out.*"):
        with pytest.raises(NotServed):
            gradients.grad(model, METRIC, batch, named)


@pytest.mark.parametrize("wrong", [5, None, [], [[]], [5.0], [[5.0]], [None], [True], [["a"]], {"a": 1}, b"x", [[97]]])
def test_continuations(wrong: Any) -> None:
    with pytest.raises(BadInput):
        opened("llama").logprob(IDS, wrong)


@pytest.mark.parametrize(
    "wrong", [5, None, "ab", [], [[]], [5, 6], [[5], []], [[5.0]], [5.0], [None], [[[]]], [[[5.0]]], {"a": 1}]
)
def test_options(wrong: Any) -> None:
    with pytest.raises(BadInput):
        opened("llama").score_options(IDS, wrong)


def test_ids_of_any_library_are_ids() -> None:
    model = opened("llama")
    for ids in ([5], np.array([5]), [np.int64(5)], torch.tensor([5]), [[5]]):
        assert torch.equal(model.logprob(IDS, ids), model.logprob(IDS, [5]))
    assert torch.equal(
        model.score_options(IDS, torch.tensor([[5], [6]])).logprobs, model.score_options(IDS, [[5], [6]]).logprobs
    )
    for prompts in (5, None, []):
        with pytest.raises(BadInput, match="inputs"):
            model.logprob(prompts, [5])
    with pytest.raises(BadInput, match="'mean'"):
        model.score_options(IDS, [[5]], normalize="men")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"max_new_tokens": n} for n in ("5", None, 1.5, 0, True)), *({"num_beams": n} for n in (1.5, 0, "2")),
        *({"eos": e} for e in ("x", [1.5], -1, 2.0)), {"reduce": "mean"}, {"to": "x"}, {"to": 5}, {"on_token": 5},
        {"stop": 5}, {"stop": [5]},
    ],
)  # fmt: skip
def test_settings_of_a_generation(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        opened("llama").generate(IDS, **({"max_new_tokens": 2} | wrong))


def test_sound_is_not_token_ids() -> None:
    for ask in (lambda m: m.generate([[5, 6]], max_new_tokens=2), lambda m: m.logprob([[5, 6]], [7])):
        with pytest.raises(BadInput, match="input_features"):
            ask(opened("whisper"))


@pytest.mark.parametrize(
    ("edits", "error"),
    [
        ({"W_Q.0": None}, BadInput), ({"W_Q.0": "x"}, BadInput), ({"W_Q.0": True}, BadInput),
        ({"W_Q.0": [1.0]}, BadInput), ({"W_Q.0": lambda w: None}, BadInput), ({"W_Q.0": lambda w: w > 0}, BadInput),
        ({"W_Q.0": float("nan")}, NotFinite), ({"W_Q.0": lambda w: w / 0}, NotFinite), (None, BadInput),
        ({"W_Q.0": torch.zeros(3)}, ShapeMismatch), ("W_Q.0", BadInput), ({None: 0}, BadInput), ({5: 0}, BadInput),
    ],
)  # fmt: skip
def test_new_weights(edits: Any, error: type[Exception]) -> None:
    model = fresh("llama", check="off")
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    both = {"W_K.0": 0.0, **edits} if isinstance(edits, dict) else edits
    with pytest.raises(error), model.edited_weights(both):
        pass
    assert all(torch.equal(v, before[k]) for k, v in model.module.state_dict().items())


def test_a_number_is_every_entry_of_a_weight() -> None:
    model = fresh("llama", check="off")
    with model.edited_weights({"W_Q.0": 0, "W_K.0.kv1": 2.5, "W_V.0": lambda w: 1}):
        assert bool((model.weight("W_Q.0").value == 0).all())
        assert bool((model.weight("W_K.0.kv1").value == 2.5).all()) and not bool(
            (model.weight("W_K.0").value == 2.5).all()
        )
        assert bool((model.weight("W_V.0").value == 1).all())
    for wrong in (None, 5):
        with pytest.raises(BadInput, match="named by text"):
            model.weight(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 0, -1, 0.5, True, [], "0GB", "inf", "many"])
def test_budgets(wrong: Any) -> None:
    with pytest.raises(BadInput, match="budget"):
        memory.parse_budget(wrong)


@pytest.mark.parametrize("wrong", [(-1,), (97,), (3, 3), (3, -1), (1.5,), (None,), ("x",), ([1, 2],), ([1], [2, 3])])
def test_direct_attribution_of_what_is_no_answer(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(BadInput):
        direct_logit_attribution(opened("llama"), IDS, *wrong)


def test_other_attributions() -> None:
    model = opened("llama")
    for pos in ([0, 1], [0], None, "all"):
        with pytest.raises(BadInput, match="one position"):
            direct_logit_attribution(model, IDS, 3, pos=pos)  # type: ignore[arg-type]
    for wrong in ({"steps": 0}, {"steps": 1.5}, {"steps": "x"}, {"rule": "mid"}, {"rule": None}, {"at": [0, 1]}):
        with pytest.raises(BadInput):
            integrated_gradients(model, METRIC, IDS, **({"steps": 2} | wrong))
    with pytest.raises(ShapeMismatch):
        integrated_gradients(model, METRIC, IDS, baseline=torch.zeros(3))
    for sites in ("z.*", ["resid_pre.0", "z.0"]):
        with pytest.raises(ShapeMismatch):
            logit_lens(model, IDS, sites)
    with pytest.raises(BadInput):
        logit_lens(model, IDS, [])
    for token in (-1, 97, 1.5, "x"):
        for ask in (logit_lens(model, IDS).of, logit_lens(model, IDS).rank):
            with pytest.raises(BadInput):
                ask(token)  # type: ignore[arg-type]
    for call in (
        lambda m: direct_logit_attribution(m, IDS, 3), lambda m: logit_lens(m, IDS),
        lambda m: integrated_gradients(m, METRIC, IDS),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="open it with"):
            call(build("llama"))


@pytest.mark.parametrize("make", [mn.Logit, mn.LogProb, lambda text: mn.LogitDiff(text, 3), lambda t: mn.Logit([4, t])])
def test_a_text_in_place_of_an_id_is_told_how_to_become_one(make: Any) -> None:
    with pytest.raises(BadInput, match=r"write model\.single_token\(' Paris'\)"):
        make(" Paris")
