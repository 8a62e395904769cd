"""Models that others wrap or copy: accelerate's hooks, adapters, checkpointed blocks, deep copies, files."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from accelerate import dispatch_model
from opened_models import apart, fresh, opened, rows_of
from peft import LoraConfig, get_peft_model
from torch import nn

import mechanome as mn
from families import build
from mechanome.core.errors import NotServed

IDS = rows_of("llama", 2, 8)
METRIC = mn.LogitDiff(5, 7)


def swept(model: mn.Model, name: str = "llama") -> mn.Sweep:
    a, b = rows_of(name, 1, 8), rows_of(name, 1, 8)
    b[0, 3] = 11
    return mn.activation_patching(model, a, b, "resid_pre", METRIC, quiet=True)


def adapted() -> nn.Module:
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    return get_peft_model(build("llama"), config).eval()


def test_accelerates_hooks_stay_and_sweeps_are_exact() -> None:
    plain = opened("llama")
    module = dispatch_model(build("llama"), device_map={"": "cpu"}, force_hooks=True)
    layer = module.model.layers[0]
    assert hasattr(layer, "_hf_hook") and "forward" in layer.__dict__
    model = mn.load(module)
    for site in ("resid_pre.1", "z.1", "pattern.1"):
        assert torch.equal(model.run(IDS, capture=site)[site], plain.run(IDS, capture=site)[site])
    edit = mn.Scale("z.1", 0.5)
    assert torch.equal(model.run(IDS, edits=edit).logits, plain.run(IDS, edits=edit).logits)
    found, exact = swept(model), swept(plain)
    assert found.method == exact.method == "wavefront"
    assert torch.equal(found.values, exact.values)
    assert hasattr(layer, "_hf_hook"), "the hook is still there"


def test_adapters_are_opened_where_the_model_inside_is() -> None:
    module = adapted()
    with torch.no_grad():
        exact = module(input_ids=IDS).logits
    model = mn.load(module)
    run = model.run(IDS, capture=["*"])
    assert apart(run.logits, exact) < 2e-6
    assert set(map(str, model.sites)) == set(map(str, opened("llama").sites))
    assert apart(exact, opened("llama").run(IDS).logits) > 1e-2, "the adapter matters"
    naive = mn.activation_patching(model, *pair(), "z", METRIC, method="naive", quiet=True)
    fast = mn.activation_patching(model, *pair(), "z", METRIC, quiet=True)
    assert fast.method == "wavefront" and apart(fast.values, naive.values) < 1e-5
    name = next(n for n, _ in module.named_parameters() if "lora_A" in n and ".1." in n)
    gradient = model.grad(METRIC, IDS, params=[name]).params[name]
    assert gradient.abs().max() > 0
    flags = {n: p.requires_grad for n, p in module.named_parameters()}
    assert flags[name] and not flags["base_model.model.model.embed_tokens.weight"]


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    a, b = rows_of("llama", 1, 8), rows_of("llama", 1, 8)
    b[0, 3] = 11
    return a, b


def test_switching_an_adapter_off_inside_is_seen_at_once() -> None:
    module = adapted()
    model = mn.load(module)
    with module.disable_adapter():
        assert apart(model.run(IDS).logits, opened("llama").run(IDS).logits) < 2e-6


def test_checkpointed_blocks_are_exact_or_refused() -> None:
    model = fresh("llama")
    exact, gradient = swept(model).values, model.grad(METRIC, IDS, "z.1")["z.1"]
    model.module.gradient_checkpointing_enable()
    assert torch.equal(swept(model).values, exact)
    model.module.train()
    assert apart(swept(model).values, exact) < 1e-6, "no dropout here: training mode says the same"
    run = model.run(IDS, capture="z.1", edits=mn.Scale("z.1", 0.5))
    assert apart(run["z.1"], opened("llama").run(IDS, capture="z.1")["z.1"] * 0.5) < 1e-6
    with pytest.raises(NotServed, match="checkpointing"):
        model.grad(METRIC, IDS, "z.1")
    model.module.eval()
    assert torch.equal(model.grad(METRIC, IDS, "z.1")["z.1"], gradient)


def test_wrapped_by_data_parallel_and_compile_wrappers() -> None:
    model = mn.load(nn.DataParallel(build("gpt2")))
    ids = rows_of("gpt2")
    assert apart(model.run(ids, capture="z.1").logits, opened("gpt2").run(ids).logits) < 1e-6
    assert apart(model.run(ids, edits=mn.Ablate("z.1")).logits, opened("gpt2").run(ids).logits) > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "own_transformer"])
def test_a_deep_copy_is_independent(name: str) -> None:
    first = fresh(name)
    inputs = dict(first.encode({"input_ids": rows_of(name), "decoder_input_ids": rows_of(name, 2, 4)}).arguments)
    inputs = inputs if name == "t5" else {"input_ids": inputs["input_ids"]}
    site = "decoder/z.1" if name == "t5" else "z.1"
    if name != "t5":
        a, b = rows_of(name, 1, 8), rows_of(name, 1, 8, seed=2)
        mn.activation_patching(first, a, b, "resid_pre", METRIC, quiet=True)  # installs block wrappers
    else:
        first.run(inputs, capture=site)
    before = first.run(inputs).logits
    settings = {"layout": first.layout} if first.layout else {}
    second = mn.load(copy.deepcopy(first.module), check="off", **settings)
    with torch.no_grad():
        for p in second.module.parameters():
            p.mul_(1.1)
    assert torch.equal(first.run(inputs).logits, before)
    changed = second.run(inputs).logits
    assert apart(changed, before) > 1e-3
    edit = mn.Ablate(site)
    assert apart(second.run(inputs, edits=edit).logits, changed) > 1e-4, "its taps are its own"
    assert apart(first.run(inputs, edits=edit).logits, before) > 1e-4
    assert torch.equal(second.run(inputs).logits, changed)
    if name != "t5":
        found = mn.activation_patching(second, a, b, "resid_pre", METRIC, quiet=True)
        naive = mn.activation_patching(second, a, b, "resid_pre", METRIC, method="naive", quiet=True)
        assert apart(found.values, naive.values) < 1e-5, "stubs of the copy stub the copy"


def test_state_and_pickles_are_those_of_the_plain_model() -> None:
    plain, model = build("gpt2"), fresh("gpt2")
    swept(model, "gpt2")
    model.run(rows_of("gpt2"), capture="*")
    assert list(model.module.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.module.named_modules()] == [n for n, _ in plain.named_modules()]
    plain.load_state_dict(model.module.state_dict())
    file = io.BytesIO()
    torch.save(model.module.state_dict(), file)
    again = pickle.loads(pickle.dumps(model.module))
    ids = rows_of("gpt2")
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, plain(input_ids=ids).logits)
    reopened = mn.load(again)
    assert apart(reopened.run(ids, edits=mn.Ablate("z.1")).logits, model.run(ids, edits=mn.Ablate("z.1")).logits) < 1e-6


def test_a_saved_folder_loads_without_us(tmp_path: object) -> None:
    from transformers import GPT2LMHeadModel

    model = fresh("gpt2")
    model.module.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    ids = rows_of("gpt2")
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, opened("gpt2").run(ids).logits)
    assert not again.config._attn_implementation.startswith("mechanome")
