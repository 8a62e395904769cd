"""The tuned lens recovers what is linear, starts as the logit lens, survives a kill, and knows its model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechanome as mn
from families import build
from mechanome.attribution import TunedLens, fit_tuned_lens, logit_lens
from mechanome.attribution.lens_descent import Sums, divergence, divergence_and_slope, log_probs
from mechanome.attribution.readout import Readout
from mechanome.core import BadInput, BudgetTooSmall, CorruptFile, ShapeMismatch, TooFewRows, UnknownSite
from registry_models import need

IDS = torch.tensor([[11, 45, 23, 67, 31, 52], [71, 24, 13, 44, 85, 36]])
TEXT = torch.randint(3, 90, (40, 33), generator=torch.Generator().manual_seed(0))
QUICK: dict[str, Any] = {"context": 32, "warmup": 4, "steps": 12, "measured": 32, "quiet": True}


@pytest.fixture(scope="module")
def model() -> mn.Model:
    return mn.load(build("llama"))


@pytest.fixture(scope="module")
def lens(model: mn.Model) -> TunedLens:
    return fit_tuned_lens(model, TEXT, **QUICK)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bert", "mamba", "gpt_neo"])
def test_a_readout_is_the_model_s_own_end_and_carries_gradients(name: str) -> None:
    model = mn.load(build(name))
    readout = Readout.of(model)
    run = model.run(IDS, capture=f"resid_post.{model.n_layers - 1}")
    streams = run[run.sites[0]].flatten(0, 1)
    assert run.logits is not None
    assert torch.allclose(readout(streams), run.logits.flatten(0, 1), atol=2e-5)
    x = streams[:3].clone().requires_grad_(True)
    final = log_probs(readout, streams[3:6])
    values, slope = divergence_and_slope(readout, x, final)
    log_q = readout(x).log_softmax(-1)
    expected = torch.nn.functional.kl_div(log_q, final, log_target=True, reduction="none").sum(-1)
    (by_autograd,) = torch.autograd.grad(expected.sum(), x)
    assert torch.allclose(values, expected.detach(), atol=1e-5)
    assert torch.allclose(slope, by_autograd, atol=1e-5)
    assert torch.allclose(divergence(readout, x, final), values, atol=1e-6)
    assert all(p.grad is None for p in model.module.parameters())


def test_the_identity_is_the_logit_lens(model: mn.Model) -> None:
    lens = fit_tuned_lens(model, TEXT, start="identity", **{**QUICK, "steps": 0})
    assert torch.equal(logit_lens(model, IDS, translate=lens).logits, logit_lens(model, IDS).logits)
    assert all(q.tuned == q.plain for q in lens.quality.values())


def aligned_model(shift: float) -> mn.Model:
    """A model whose blocks add nothing but the last, whose MLP's part is made a fixed linear map of its stream.

    So every stream is a linear map of the final one.
    """
    torch.manual_seed(0)
    module = copy.deepcopy(build("llama"))
    layers = module.model.layers
    with torch.no_grad():
        for layer in layers:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                for parameter in linear.parameters():
                    parameter.zero_()
    width = module.config.hidden_size
    mix = torch.linalg.qr(torch.randn(width, width)).Q * shift

    class Mixing(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            size = stream[0].pow(2).mean(-1, keepdim=True).add(layers[-1].post_attention_layernorm.variance_epsilon)
            gain = layers[-1].post_attention_layernorm.weight
            return (x / gain * size.sqrt()) @ mix

    stream: list[Tensor] = []
    layers[-1].post_attention_layernorm.register_forward_pre_hook(lambda _, args: stream.__setitem__(slice(None), args))
    layers[-1].mlp = Mixing()
    return mn.load(module, check="off")


@pytest.mark.parametrize("rank", [None, "full"])
def test_streams_that_are_a_linear_map_of_the_last_one_are_read_as_the_prediction(rank: str | None) -> None:
    model = aligned_model(shift=2.0)
    run = model.run(IDS, capture=["resid_pre.0", "resid_post.2"])
    assert not torch.allclose(run["resid_pre.0"], run["resid_post.2"], atol=0.1)
    width = run["resid_pre.0"].shape[-1]
    settings = {**QUICK, "warmup": 9, "steps": 60, "tokens": 124, "lr": 1e-2}
    lens = fit_tuned_lens(model, TEXT, rank=None if rank is None else width, **settings)
    for quality in lens.quality.values():
        assert quality.plain.estimate > 0.5
        assert quality.tuned.estimate < 0.02 * quality.plain.estimate


def test_it_reads_better_than_the_logit_lens_and_descent_helps(model: mn.Model, lens: TunedLens) -> None:
    start = fit_tuned_lens(model, TEXT, **{**QUICK, "steps": 0})
    longer = fit_tuned_lens(model, TEXT, **{**QUICK, "steps": 60})
    for site, quality in lens.quality.items():
        assert quality.tuned.hi < quality.plain.lo
        assert longer.quality[site].fitted < start.quality[site].fitted


def test_quality_is_what_the_lens_measures(model: mn.Model, lens: TunedLens) -> None:
    """The table's numbers from `logit_lens` itself, over all tokens instead of some."""
    site = "resid_post.1"
    windows = TEXT[:, :32]
    found = {}
    for name, translate in (("plain", None), ("tuned", lens)):
        read = logit_lens(model, windows, site, pos=list(range(1, 32)), translate=translate).log_probs[0]
        final = logit_lens(model, windows, "resid_post.2", pos=list(range(1, 32))).log_probs[0]
        found[name] = float((final.exp() * (final - read)).sum(-1).mean())
    quality = lens.quality[mn.Site("resid_post", 1)]
    assert abs(found["plain"] - quality.plain.estimate) < 0.2 * found["plain"]
    assert abs(found["tuned"] - quality.tuned.estimate) < 0.2 * found["tuned"]
    assert "resid_post.1" in str(lens.table())


class Killed(Exception):
    pass


def dying_after(calls: int, function: Callable[..., Any]) -> Callable[..., Any]:
    left = iter(range(calls))

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) is None:
            raise Killed
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize("rank", [None, 3])
def test_a_killed_fit_ends_in_the_same_bits(
    model: mn.Model, tmp_path: Path, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit_tuned_lens(model, TEXT, rank=rank, **QUICK)
    for stop in (2, 9):
        folder = tmp_path / str(stop)
        options: dict[str, Any] = {"rank": rank, "checkpoint_dir": folder, "every": 1, **QUICK}
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(model, "run", dying_after(stop, model.run))
            fit_tuned_lens(model, TEXT, **options)
        resumed = fit_tuned_lens(model, TEXT, **options)
        for site, translator in whole.translators.items():
            again = resumed.translators[site]
            assert all(torch.equal(a, b) for a, b in zip(translator.factors, again.factors, strict=True))
            assert torch.equal(translator.bias, again.bias)
        assert resumed.quality == whole.quality
    with pytest.raises(BadInput, match="another fit"):
        fit_tuned_lens(model, TEXT.flip(0), rank=rank, checkpoint_dir=folder, **QUICK)


@pytest.mark.parametrize("rank", [None, 8])
def test_the_regression_inverts_a_linear_map_and_translators_say_what_was_fitted(rank: int | None) -> None:
    generator = torch.Generator().manual_seed(1)
    final = torch.randn(4000, 8, generator=generator)
    final = 3 * final / final.pow(2).mean(-1, keepdim=True).sqrt()
    maps = 2 * torch.linalg.qr(torch.randn(2, 8, 8, generator=generator)).Q  # well conditioned: the ridge takes 1 %
    x = final @ maps + torch.randn(2, 1, 8, generator=generator) * 5
    sums = Sums(2, 8, full=True)
    for some in torch.arange(4000).split(900):
        sums.add(x[:, some], final[some])
    descent = sums.start(rank, torch.device("cpu"))
    for site, translator in enumerate(descent.translators()):
        found = descent.translate(site, x[site]).detach()
        assert float((found - final).norm() / final.norm()) < 0.03
        assert torch.allclose(translator(x[site]), found, atol=1e-3)


def test_low_rank_maps_have_that_rank(model: mn.Model) -> None:
    for start in ("regression", "identity"):
        lens = fit_tuned_lens(model, TEXT, rank=3, start=start, layers=1, **QUICK)  # type: ignore[arg-type]
        (translator,) = lens.translators.values()
        down, up = translator.factors
        assert down.shape[1] == up.shape[0] == 3
        assert int(torch.linalg.matrix_rank(down @ up)) == 3
        (quality,) = lens.quality.values()
        assert quality.tuned.estimate < quality.plain.estimate


def test_a_file_gives_the_lens_back_and_is_refused_by_another_model(
    model: mn.Model, lens: TunedLens, tmp_path: Path
) -> None:
    path = tmp_path / "lens.safetensors"
    lens.save(path)
    again = TunedLens.load(path, model)
    assert torch.equal(logit_lens(model, IDS, translate=again).logits, logit_lens(model, IDS, translate=lens).logits)
    assert again.quality == lens.quality and again.settings == lens.settings
    assert str(again.table()) == str(lens.table())
    other = mn.load(build("qwen2"))
    for refused in (lambda: TunedLens.load(path, other), lambda: logit_lens(other, IDS, translate=lens)):
        with pytest.raises(BadInput, match="fit one on this model"):
            refused()
    with model.edited_weights({"W_out.0": lambda w: w * 1.01}), pytest.raises(BadInput, match="fit one"):
        logit_lens(model, IDS, translate=lens)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptFile):
        TunedLens.load(path, model)


def test_sites_without_a_translator_are_refused_and_equal_streams_share_one(model: mn.Model) -> None:
    lens = fit_tuned_lens(model, TEXT, layers=[0], **QUICK)
    with pytest.raises(UnknownSite, match=r"resid_post\.0"):
        logit_lens(model, IDS, translate=lens)
    after, before = (logit_lens(model, IDS, s, translate=lens).logits for s in ("resid_post.0", "resid_pre.1"))
    assert torch.equal(after, before)
    final = logit_lens(model, IDS, "resid_post.2", translate=lens).logits
    assert torch.equal(final, logit_lens(model, IDS, "resid_post.2").logits)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"layers": 2}, BadInput), ({"layers": []}, BadInput), ({"rank": 0}, BadInput), ({"rank": 999}, BadInput),
        ({"start": "zero"}, BadInput), ({"steps": -1}, BadInput), ({"warmup": 0}, BadInput),
        ({"held_out": 0.0}, BadInput), ({"held_out": 1}, BadInput), ({"tokens": 1.5}, BadInput),
        ({"context": 1}, BadInput), ({"context": 200}, BadInput), ({"budget": 100}, BudgetTooSmall),
        ({"context": "x"}, BadInput), ({"steps": None}, BadInput), ({"steps": True}, BadInput), ({"lr": 0}, BadInput),
        ({"lr": "x"}, BadInput), ({"held_out": "x"}, BadInput), ({"every": 0}, BadInput), ({"seed": -1}, BadInput),
        ({"seed": 2**70}, BadInput),
    ],
    ids=lambda value: "-".join(map(str, *value.items())) if isinstance(value, dict) else value.__name__,
)  # fmt: skip
def test_requests_that_make_no_sense_are_refused(
    model: mn.Model, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        fit_tuned_lens(model, TEXT, **{**QUICK, **wrong})


def test_a_seed_of_numpy_is_the_same_seed(model: mn.Model) -> None:
    one, other = (fit_tuned_lens(model, TEXT, **{**QUICK, "seed": seed}) for seed in (3, np.int64(3)))
    assert all(torch.equal(one.translators[s].bias, other.translators[s].bias) for s in one.translators)


def test_too_little_text_is_refused(model: mn.Model) -> None:
    with pytest.raises(TooFewRows, match="9 windows"):
        fit_tuned_lens(model, TEXT[:9], **QUICK)


def test_streams_of_another_width_are_refused(model: mn.Model) -> None:
    with pytest.raises(ShapeMismatch):
        Readout.of(model)(torch.zeros(2, 3))


@pytest.mark.real_model
def test_on_a_real_model_it_beats_the_logit_lens_on_text_it_has_not_seen() -> None:
    need("smollm2-135m-instruct")
    from pydoc_data.topics import topics

    model = mn.load("smollm2-135m-instruct")
    lens = fit_tuned_lens(
        model, list(topics.values())[:3], layers=[10, 25], rank=32, context=32, warmup=8, steps=0, measured=64,
        quiet=True,
    )  # fmt: skip
    for quality in lens.quality.values():
        assert quality.tuned.hi < quality.plain.lo
