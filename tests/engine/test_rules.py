"""Backward rules: the forward pass keeps its values, the backward pass is that of a reference written by hand."""

from __future__ import annotations

import pytest
import torch
from opened_models import NAMED, apart, double, double_batch, fresh, opened, rows_of
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import mechanome as mn
from mechanome.core.errors import NotServed, UnknownName
from mechanome.engine.plan import Plan
from mechanome.engine.rules import RULES, apply_rules, effective_gain
from mechanome.engine.run import execute
from mechanome.engine.taps import hidden

METRIC = mn.Logit(5)
SCORED = [n for n in NAMED if n != "clip"]


def applicable(name: str) -> list[str]:
    found, model = [], double(name)
    for rule in RULES:
        try:
            plan = Plan(root=model.module)
            apply_rules(model, plan, [rule])
            execute(model, double_batch(name), plan)
        except NotServed as refusal:
            assert refusal.why and refusal.fix
            continue
        found.append(rule)
    return found


@pytest.mark.parametrize("name", SCORED)
def test_the_forward_pass_keeps_its_values_and_the_gradient_changes(name: str) -> None:
    model, batch = double(name), double_batch(name)
    ids = model.run(batch).logits
    rules = applicable(name)
    assert "detach_norm" in rules
    site = mn.Site("resid_pre", 0, tower="decoder" if len(model.architecture.towers) > 1 else None)
    plain = model.grad(METRIC, batch, site)
    for rule in rules:
        plan = Plan(root=model.module)
        apply_rules(model, plan, [rule])
        with torch.enable_grad():
            found = hidden(execute(model, batch, plan))
        assert apart(found.detach(), ids) < 1e-6, rule
        ruled = model.grad(METRIC, batch, site, rules=[rule])
        assert apart(ruled.metric, plain.metric) < 1e-5
        if (name, rule) != ("opt", "linear_act"):  # a ReLU is x times a constant already
            assert apart(ruled[site], plain[site]) > 1e-4, rule


def test_which_rules_apply() -> None:
    assert applicable("llama") == list(RULES)
    assert "half_gate" not in applicable("gpt2")
    assert "detach_pattern" not in applicable("mamba")
    assert "detach_pattern" not in applicable("bloom")
    assert "linear_act" not in applicable("mamba"), "it holds an activation module but calls a function"
    assert "half_gate" not in applicable("qwen3_moe"), "only its dense layer has gates in the open"
    with pytest.raises(UnknownName, match="detach_norm"):
        opened("llama").grad(METRIC, rows_of("llama"), "z.1", rules=["detach_nrom"])


def norm_by_hand(norm: nn.Module, x: Tensor, frozen: bool) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        centred = x - x.mean(-1, keepdim=True)
        deviation = (centred.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
        return centred / (deviation.detach() if frozen else deviation) * norm.weight + norm.bias
    size = (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    return x / (size.detach() if frozen else size) * norm.weight


def block_by_hand(block: nn.Module, x: Tensor, rules: set[str], rotary: tuple[Tensor, Tensor]) -> Tensor:
    """A llama block, its last position's stream, in float64."""
    attn, mlp = block.self_attn, block.mlp
    h = norm_by_hand(block.input_layernorm, x, "detach_norm" in rules)
    cos, sin = rotary

    def heads(linear: nn.Module, n: int, turn: bool) -> Tensor:
        y = linear(h).unflatten(-1, (n, -1)).transpose(1, 2)
        if not turn:
            return y
        half = y.shape[-1] // 2
        return y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin

    q, k, v = heads(attn.q_proj, 4, True), heads(attn.k_proj, 2, True), heads(attn.v_proj, 2, False)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    pattern = scores.softmax(-1)
    pattern = pattern.detach() if "detach_pattern" in rules else pattern
    mid = x + attn.o_proj((pattern @ v).transpose(1, 2).flatten(2))
    h = norm_by_hand(block.post_attention_layernorm, mid, "detach_norm" in rules)
    gate = mlp.gate_proj(h)
    ratio = gate.sigmoid().detach() if "linear_act" in rules else gate.sigmoid()
    neurons = gate * ratio * mlp.up_proj(h)
    if "half_gate" in rules:
        neurons = 0.5 * neurons + (0.5 * neurons).detach()
    return mid + mlp.down_proj(neurons)


@pytest.mark.parametrize("rules", [[], *([r] for r in RULES), list(RULES)], ids="+".join)
def test_each_rule_equals_a_block_written_by_hand(rules: list[str]) -> None:
    model, batch = double("llama"), double_batch("llama")
    llama = model.module.model
    last = len(llama.layers) - 1
    x = model.run(batch, capture=f"resid_pre.{last}")[f"resid_pre.{last}"].requires_grad_()
    positions = torch.arange(x.shape[1])[None]
    rotary = tuple(t[:, None] for t in llama.rotary_emb(x, positions))
    out = block_by_hand(llama.layers[last], x, set(rules), rotary)  # type: ignore[arg-type]
    logits = model.module.lm_head(norm_by_hand(llama.norm, out[:, -1], "detach_norm" in rules))
    (exact,) = torch.autograd.grad(logits[0, 5], x)
    found = model.grad(METRIC, batch, f"resid_pre.{last}", rules=rules)
    assert apart(found.metric, logits[:, 5].detach()) < 1e-5
    assert apart(found[f"resid_pre.{last}"], exact) < 1e-4


@pytest.mark.parametrize("rules", [["half_gate"], list(RULES)], ids="+".join)
def test_the_product_of_a_gate_has_its_whole_gradient_and_each_factor_half(rules: list[str]) -> None:
    model, batch = double("llama"), double_batch("llama")
    llama = model.module.model
    last = len(llama.layers) - 1
    mlp = llama.layers[last].mlp
    sites = [f"{point}.{last}" for point in ("mlp_act", "mlp_up", "resid_mid")]
    run = model.run(batch, capture=sites)
    neurons = run[sites[0]].requires_grad_()
    stream = run[sites[2]] + mlp.down_proj(neurons)
    logits = model.module.lm_head(norm_by_hand(llama.norm, stream[:, -1], "detach_norm" in rules))
    (whole,) = torch.autograd.grad(logits[:, 5].sum(), neurons)
    found = model.grad(METRIC, batch, sites, rules=rules)
    assert apart(found[sites[0]], whole) < 1e-6
    assert apart(found[sites[1]] * run[sites[1]], 0.5 * whole * neurons.detach()) < 1e-6
    edited = model.grad(METRIC, batch, sites[0], rules=rules, edits=mn.Scale(sites[0], 1.0))
    assert apart(edited[sites[0]], whole) < 1e-6, "edits come behind the rule too"


def test_detached_layer_norms_equal_a_reference() -> None:
    model, ids = double("gpt2"), rows_of("gpt2", 1)
    x = model.run(ids, capture="resid_post.2")["resid_post.2"].requires_grad_()
    gpt = model.module
    logits = gpt.lm_head(norm_by_hand(gpt.transformer.ln_f, x[:, -1], True))
    (exact,) = torch.autograd.grad(logits[0, 5], x)
    assert apart(model.grad(METRIC, ids, "resid_post.2", rules=["detach_norm"])["resid_post.2"], exact) < 1e-8


def test_with_all_rules_gradient_times_input_adds_up_to_the_output() -> None:
    """Without biases the network is then locally linear and homogeneous in its stream."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    module = LlamaForCausalLM(config).double().eval()
    for p in module.parameters():
        p.data = torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.2) + (p.dim() == 1)
    model = mn.load(module, check="off")
    ids = rows_of("llama", 2)
    for layer in range(3):
        found = model.grad(METRIC, ids, f"resid_pre.{layer}", rules=list(RULES))
        relevance = (found[f"resid_pre.{layer}"] * found.run[f"resid_pre.{layer}"]).sum((1, 2))
        assert apart(relevance, found.metric) < 1e-5
    plain = model.grad(METRIC, ids, "resid_pre.0")
    assert apart((plain["resid_pre.0"] * plain.run["resid_pre.0"]).sum((1, 2)), plain.metric) > 1e-2


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "t5", "mamba", "gpt2", "qwen3", "bert"])
def test_the_gain_of_a_norm_is_measured_whatever_it_stores(name: str) -> None:
    for path, norm in opened(name).module.named_modules():
        if "Norm" not in type(norm).__name__ or getattr(norm, "weight", None) is None:
            continue
        x = torch.randn(3, norm.weight.shape[-1])
        with torch.no_grad():
            centred = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
            size = (centred.pow(2).mean(-1, keepdim=True) + getattr(norm, "variance_epsilon", 1e-6)).sqrt()
            bias = getattr(norm, "bias", None)
            expected = norm(x) - (0 if bias is None else bias)
        assert apart(centred / size * effective_gain(norm), expected) < 1e-3, path


def test_what_is_called_a_norm_and_is_none_is_refused() -> None:
    class OddNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    module = fresh("gpt2").module
    odd = OddNorm(32)
    module.transformer.h[1].ln_2 = odd
    with pytest.raises(NotServed, match="OddNorm multiplies by neither"):
        mn.load(module, check="off").grad(METRIC, rows_of("gpt2"), "z.1", rules=["detach_norm"])


def test_rules_leave_nothing_behind() -> None:
    model, ids = opened("llama"), rows_of("llama")
    before, gradient = model.run(ids).logits, model.grad(METRIC, ids, "z.1")["z.1"]
    model.grad(METRIC, ids, "z.1", rules=list(RULES))
    assert torch.equal(model.run(ids).logits, before)
    assert torch.equal(model.grad(METRIC, ids, "z.1")["z.1"], gradient)
