"""Skipped blocks never run and change nothing; a live cache is refused; a prefix is as good as its tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opened_models import LANGUAGE, NAMED, apart, batch_of, fresh, opened, rows_of
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

import mechanome as mn
from mechanome.core.errors import BadInput, NotServed
from mechanome.engine.architecture import Tower
from mechanome.engine.plan import Plan
from mechanome.engine.resume import Recorded, can_prefix, record
from mechanome.engine.run import build_plan, execute
from mechanome.engine.taps import hidden

METRIC = mn.LogitDiff(5, 7)


def recorded(model: mn.Model, batch: Any, tower: Tower) -> tuple[Recorded, Any]:
    plan = Plan(root=model.module)
    finish = record(model, tower, plan)
    with torch.no_grad():
        output = execute(model, batch, plan)
    return finish(), output


def said(name: str, output: Any) -> Tensor:
    return output.text_embeds if name == "clip" else hidden(output)  # type: ignore[return-value]


@pytest.mark.parametrize("name", NAMED)
def test_stubbed_blocks_run_zero_times_and_the_answer_is_exact(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    tower = model.architecture.towers[-1 if name != "clip" else 0]
    base, plain = recorded(model, batch, tower)
    site = mn.Site("resid_pre", 2, tower=tower.name)
    edit = mn.Custom(site, lambda x: x * torch.linspace(0.5, 1.5, x.shape[-1]))
    with torch.no_grad():
        naive = said(name, execute(model, batch, build_plan(model, (), [edit])))
    calls: list[int] = []
    hooks = [
        block.part.module.register_forward_hook(lambda m, a, o, i=i: calls.append(i))
        for i, block in enumerate(tower.blocks)
    ]
    inner = [
        module.register_forward_hook(lambda m, a, o: calls.append(-1))
        for block in tower.blocks[:2]
        for module in block.part.module.children()
        if not isinstance(module, nn.ModuleList)
    ]
    try:
        for plan, exact in ((build_plan(model, (), [edit]), naive), (Plan(root=model.module), said(name, plain))):
            calls.clear()
            base.stub(plan, 2)
            with torch.no_grad():
                found = said(name, execute(model, batch, plan))
            assert torch.equal(found, exact)
            assert -1 not in calls, "a part of a skipped block ran"
    finally:
        for hook in (*hooks, *inner):
            hook.remove()
    assert apart(naive, said(name, plain)) > 1e-4


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_neox", "opt", "jamba"])
def test_a_live_cache_with_stubs_is_refused_not_wrong(name: str) -> None:
    model, ids = opened(name), model_ids(name)
    batch = model.encode(ids)
    base, _ = recorded(model, batch, model.architecture.towers[0])
    plan = Plan(root=model.module)
    base.stub(plan, 1)
    with pytest.raises(NotServed, match="live key/value cache"), torch.no_grad():
        execute(model, batch, plan, cache=DynamicCache(config=model.config), use_cache=True)


def model_ids(name: str) -> Tensor:
    return rows_of(name, 1, 8)


def test_a_pass_that_skips_blocks_cannot_be_recorded() -> None:
    model = opened("whisper")
    features = batch_of("whisper").arguments
    with torch.no_grad():
        encoded = model.module.model.encoder(features["input_features"])
    batch = model.encode({"encoder_outputs": (encoded[0],), "decoder_input_ids": features["decoder_input_ids"]})
    with pytest.raises(NotServed, match="did not run"):
        recorded(model, batch, model.architecture.tower("encoder"))


PREFIXED = [n for n in LANGUAGE if n not in ("mamba", "jamba", "own_transformer")]


@pytest.mark.parametrize("name", PREFIXED)
def test_a_prefix_is_as_good_as_its_tokens(name: str) -> None:
    model = opened(name)
    if why := can_prefix(model):
        with pytest.raises(NotServed):
            model.prefix([5, 6, 7])
        assert why
        return
    ids = rows_of(name, 3, 9)
    ids[:, :5] = ids[0, :5]
    prefix = model.prefix(ids[0, :5])
    assert len(prefix) == 5
    sites = [s for s in ("resid_pre.1", "z.1", "mlp_out.2", "q.1", "pattern.1") if model.serves(s)]
    whole = model.run(ids, capture=sites)
    run = model.run(ids, capture=sites, prefix=prefix)
    assert run.logits.shape[1] == 4
    assert apart(run.logits, whole.logits[:, 5:]) < 1e-5
    for site in sites:
        exact = whole[site][:, :, 5:] if site == "pattern.1" else whole[site][:, 5:]
        assert apart(run[site], exact) < 1e-5, site
    assert "5 on" in run.notes[0]
    edit = mn.Scale("resid_pre.1", 0.3, pos=6)
    changed = model.run(ids, edits=edit, prefix=prefix).logits
    assert apart(changed, model.run(ids, edits=edit).logits[:, 5:]) < 1e-5
    assert apart(changed, run.logits) > 1e-4
    found = model.grad(METRIC, ids, "resid_pre.1", prefix=prefix)["resid_pre.1"]
    assert apart(found, model.grad(METRIC, ids, "resid_pre.1")["resid_pre.1"][:, 5:]) < 2e-5
    again = model.run(ids, capture=sites, prefix=prefix)
    assert torch.equal(again.logits, run.logits), "using a prefix does not change it"


@pytest.mark.parametrize("name", ["mamba", "jamba", "bert", "t5", "own_transformer", "vit"])
def test_models_without_a_cache_refuse_a_prefix_with_the_reason(name: str) -> None:
    assert can_prefix(opened(name))
    with pytest.raises(NotServed, match="prefix"):
        opened(name).prefix(batch_of(name).take([0]))


def test_what_reaches_into_a_prefix_is_refused() -> None:
    model, ids = fresh("llama"), rows_of("llama", 2, 8)
    ids[:, :3] = ids[0, :3]
    prefix = model.prefix(ids[0, :3])
    for request in (
        {"edits": mn.Ablate("z.1")}, {"edits": mn.Ablate("z.1", pos=2)}, {"edits": mn.Ablate("z.1", pos="first")},
        {"capture": "z.1", "pos": 0}, {"capture": "z.1", "pos": [2, 5]},
    ):  # fmt: skip
        with pytest.raises(NotServed, match="prefix"):
            model.run(ids, prefix=prefix, **request)
    for other in (ids[:, 1:], ids[:, :3], [ids[0].tolist(), [9, 9, 9, 9]]):
        with pytest.raises(BadInput, match="prefix tokens"):
            model.run(other, prefix=prefix)
    with pytest.raises(BadInput, match="one prompt"):
        model.prefix(ids)
    with pytest.raises(NotServed, match="parameter gradients"):
        model.grad(METRIC, ids, params=["lm_head.weight"], prefix=prefix)
    model.weights_version += 1
    with pytest.raises(NotServed, match="other weights"):
        model.run(ids, prefix=prefix)


def test_a_prefix_with_in_place_models_stays_itself() -> None:
    model, ids = fresh("falcon", check="off"), rows_of("falcon", 2, 8)
    ids[:, :3] = ids[0, :3]
    prefix = model.prefix(ids[0, :3])
    first = model.run(ids, capture="mlp_out.1", prefix=prefix)  # read again as a copy, with its prefix
    assert apart(first["mlp_out.1"], model.run(ids, capture="mlp_out.1")["mlp_out.1"][:, 3:]) < 1e-5
