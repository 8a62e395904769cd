"""The tapped attention function: the native backend itself, explicit only where scores or patterns are asked for."""

from __future__ import annotations

import pytest
import torch
from opened_models import (
    REGISTRY,
    apart,
    batch_of,
    fresh,
    inputs_of,
    opened,
    outputs,
    real_parts,
    rows_of,
    unpadded,
)
from torch import Tensor

import mechanome as mn
from families import build, logits
from mechanome.core.errors import NotServed
from mechanome.engine import attention
from mechanome.engine.applying import ApplyEdit

ATTENDING = [n for n in REGISTRY if n != "mamba"]


def plain(name: str, inputs: dict[str, Tensor], backend: str | None = None) -> Tensor:
    """What the model says without us."""
    model = build(name)
    if backend is not None:
        model.set_attn_implementation(backend)
    arguments = dict(opened(name).arguments(opened(name).encode(inputs)))
    with torch.no_grad():
        output = model(**arguments)
    if name == "clip":
        text, vision = output.text_model_output, output.vision_model_output
        return torch.cat([x.flatten(1) for x in (text[0], vision[0], vision.pooler_output)], dim=1)
    return logits(output)


def sites_at(name: str, *points: str) -> list[mn.Site]:
    return [s for s in opened(name).sites if s.point.removeprefix("cross_") in points]


def real(name: str, value: Tensor) -> Tensor:
    """Without what padded positions of the main sequence hold."""
    model, batch = opened(name), batch_of(name)
    if not model.serves("logits"):  # clip: compare the streams of real tokens of the text tower, and all of the image
        text, image = value[:, : 9 * 32].unflatten(1, (9, 32)), value[:, 9 * 32 :]
        return torch.cat([*(p.flatten() for p in real_parts(model, batch, mn.Site("ln_final", tower="text"), text)),
                          image.flatten()])  # fmt: skip
    return torch.cat([p.flatten() for p in real_parts(model, batch, mn.Site("logits"), value)])


@pytest.mark.parametrize("name", REGISTRY)
def test_asking_for_nothing_is_bit_equal(name: str) -> None:
    assert torch.equal(outputs(opened(name), batch_of(name)), plain(name, inputs_of(name)))


@pytest.mark.parametrize("name", ATTENDING)
def test_queries_keys_and_values_are_read_on_the_native_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("left the native path")

    model, batch = opened(name), batch_of(name)
    backends = set(model.backends.values())
    if "eager" not in backends:  # eager families whose file has no eager function of its own go through ours
        monkeypatch.setattr(attention, "explicit_attention", refuse)
    sites = sites_at(name, "q", "k", "v", "z")
    assert len(sites) >= 8
    run = model.run(batch, capture=sites)
    if run.logits is not None:
        assert torch.equal(run.logits, plain(name, inputs_of(name)))


@pytest.mark.parametrize("name", ATTENDING)
@pytest.mark.parametrize("padded", [True, False])
def test_the_explicit_path_equals_eager_and_sdpa(name: str, padded: bool) -> None:
    model = opened(name)
    inputs = inputs_of(name) if padded else unpadded(inputs_of(name), 0)
    batch = model.encode(inputs)
    patterns = sites_at(name, "pattern", "scores")
    # Edits that set every pattern to itself force the explicit path in every layer.
    itself = [mn.Edit(s, "custom", function=lambda x: x.clone()) for s in patterns]
    ours = outputs(model, batch, itself)
    if padded:
        ours = real(name, ours)
    for backend in ("eager", "sdpa"):
        try:
            other = plain(name, inputs, backend)
        except (ValueError, ImportError):
            assert name in ("gpt_oss", "gemma2") and backend == "sdpa"  # sinks and soft-caps exist in eager only
            continue
        if padded:
            other = real(name, other)
        assert apart(ours, other) < (2e-6 if backend == "sdpa" else 1e-6), backend


@pytest.mark.parametrize("name", ATTENDING)
def test_patterns_sum_to_one_and_sinks_take_their_share(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    run = model.run(batch, capture=sites_at(name, "pattern", "scores"))
    sinks = name == "gpt_oss"
    for site in sites_at(name, "pattern"):
        assert run.axes(site) == ("batch", "head", "query", "key")
        for part in real_parts(model, batch, site, run.captured[site]):
            total = part.sum(-1)
            assert part.min() >= 0
            assert (total < 0.999).any() if sinks else torch.allclose(total, torch.ones(()), atol=1e-5)
            assert total.max() < 1 + 1e-5


@pytest.mark.parametrize("name", ATTENDING)
def test_the_pattern_is_the_softmax_of_the_scores_and_mixes_values_into_z(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    for pattern in sites_at(name, "pattern"):
        prefix = "cross_" if pattern.point.startswith("cross") else ""
        scores, v, z = (mn.Site(prefix + p, pattern.layer, tower=pattern.tower) for p in ("scores", "v", "z"))
        run = model.run(batch, capture=[pattern, scores, v, z])
        if name != "gpt_oss":
            exact = run[scores].softmax(-1)
            assert apart(run[pattern], exact) < 1e-6
        groups = run[pattern].shape[1] // run[v].shape[2]
        values = run[v].repeat_interleave(groups, 2)
        mixed = torch.einsum("bhqk,bkhd->bqhd", run[pattern], values)
        assert apart(run[z], mixed) < 1e-5


@pytest.mark.parametrize("name", ["llama", "t5", "gpt_oss"])
def test_only_the_layer_that_is_asked_leaves_the_native_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.nn.Module] = []
    explicit = attention.explicit_attention

    def count(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        calls.append(module)
        return explicit(module, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "explicit_attention", count)
    site = sites_at(name, "pattern")[1]
    opened(name).run(batch_of(name), capture=[site, str(site) + ".h1"])
    assert calls == [opened(name).tap(site).module]


def test_an_argument_that_the_explicit_path_does_not_know_is_refused() -> None:
    q = torch.randn(1, 2, 3, 4)
    module = torch.nn.Module()
    attention.explicit_attention(module, q, q, q, None, labels=q, use_cache=True)
    with pytest.raises(NotServed, match="relevance_prior"):
        attention.explicit_attention(module, q, q, q, None, relevance_prior=q)
    with pytest.raises(NotServed, match="no mask per query"):
        attention.explicit_attention(module, q, q, q, torch.ones(1, 3))


def test_explicit_attention_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, 3, 4, generator=generator) for h in (4, 2, 2))
    module = torch.nn.Module()
    out, pattern = attention.explicit_attention(module, q, k, v, None, scaling=0.3, softcap=2.0, is_causal=True)
    for head in range(4):
        raw = 2.0 * torch.tanh(q[0, head] @ k[0, head // 2].T * 0.3 / 2.0)
        raw = raw.masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf"))
        assert torch.allclose(pattern[0, head], raw.softmax(-1), atol=1e-6)
        assert torch.allclose(out[0, :, head], raw.softmax(-1) @ v[0, head // 2], atol=1e-6)
    single, _ = attention.explicit_attention(module, q[:, :, -1:], k, v, None, scaling=0.3, softcap=2.0)
    assert torch.allclose(single, out[:, -1:], atol=1e-6), "one query sees every key"


def test_backends_that_are_not_known_are_refused() -> None:
    with pytest.raises(NotServed, match="attention backend"):
        attention.key_for("paged|eager")


def test_a_model_loaded_as_eager_stays_eager() -> None:
    module = build("llama")
    module.set_attn_implementation("eager")
    model = mn.load(module)
    assert set(model.backends.values()) == {"eager"}
    ids = rows_of("llama")
    with torch.no_grad():
        expected = plain("llama", {"input_ids": ids}, "eager")
    assert torch.equal(model.run(ids).logits, expected)
    assert apart(model.run(ids, capture="pattern.*").logits, expected) < 1e-6


def test_opening_twice_is_the_same_as_once() -> None:
    model = fresh("gpt2")
    again = mn.load(model.module)
    ids = rows_of("gpt2")
    assert torch.equal(again.run(ids).logits, opened("gpt2").run(ids).logits)
    assert again.backends.values() and set(again.backends.values()) == set(model.backends.values())
    edit = mn.Scale("z.1", 2.0)
    assert torch.equal(again.run(ids, edits=edit).logits, model.run(ids, edits=edit).logits), "the edit acts once"
    assert ApplyEdit(edit).calls == 0
