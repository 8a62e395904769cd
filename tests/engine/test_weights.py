"""Weight names are proved: forward pieces made by hand from named weights equal the tensors the model computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build
from mechanome.core.errors import NotServed, ShapeMismatch, UnknownName
from mechanome.engine.architecture import Part
from mechanome.engine.families import Layout
from mechanome.engine.inputs import Batch
from mechanome.engine.model import Model
from mechanome.engine.parameters import embedding, gain, matrix
from mechanome.engine.run import Run
from mechanome.engine.weight_table import WEIGHTS
from mechanome.engine.weights import edited_weights, parameter_mask, weight

OWN = Layout(
    "stack",
    {
        "ln1": "pre_attn", "attention": "attn", "q_proj": "attn.q", "k_proj": "attn.k", "v_proj": "attn.v",
        "o_proj": "attn.o", "ln2": "pre_ff", "mlp": "ff", "up_proj": "ff.0", "down_proj": "ff.2",
    },
    "tok", "out_norm", "unembed", n_heads=4, n_kv=2, causal=True,
)  # fmt: skip
TRANSFORMERS = [n for n, f in FAMILIES.items() if f.has_attention]
PLACES = [n for n in FAMILIES if n not in ("lstm", "convnet")]
HAND_SPLIT = ("falcon", "bloom")  # fused projections that only the model's own code can take apart
LATENT = {f"{k}_{w}" for k in "Wb" for w in "QKV"}

# What a family's own parts refuse, beyond biases and norms that are not there. Everything else must be served.
REFUSED = {
    "deepseek_v3": LATENT,
    "falcon": {"W_Q", "b_Q"},  # served head by head
    "vit": {"W_E"},
    "wav2vec2": {"W_E", "g_ln_final", "b_ln_final"},
    "bert": {"g_ln_final", "b_ln_final"},
    "distilbert": {"g_ln_final", "b_ln_final"},
    "clip": {"W_U", "b_U"},
}


@cache
def opened(name: str) -> Model:
    return Model(build(name), layout=OWN if name == "own_transformer" else None)


@cache
def recorded(name: str) -> tuple[Run, dict[str, Tensor]]:
    """One run that captures every served site, and input and output of every module with a role.

    What down projections return is also copied at once, because falcon adds to it in place later.
    """
    model = opened(name)
    down: dict[str, Tensor] = {}
    hooks = []
    paths: dict[str, None] = {}
    for tower in model.architecture.towers:
        for block in tower.blocks:
            parts = [p for r, p in block.roles.items() if r not in ("attention", "cross", "mlp", "experts", "router")]
            for part in parts:
                paths |= {f"path:{part.path}": None, f"path:{part.path}:in": None}
            if "down_proj" in block.roles:
                part = block.roles["down_proj"]
                keep = lambda m, i, o, path=part.path: down.update({path: o.detach().clone()})  # noqa: E731
                hooks.append(part.module.register_forward_hook(keep))
            attention = block.roles.get("attention")
            for norm in ("q_norm", "k_norm") if attention else ():
                if hasattr(attention.module, norm):
                    paths |= {f"path:{attention.path}.{norm}": None, f"path:{attention.path}.{norm}:in": None}
        if tower.ln_final is not None:
            paths |= {f"path:{tower.ln_final.path}": None, f"path:{tower.ln_final.path}:in": None}
    if model.architecture.unembed is not None:
        path = model.architecture.unembed.path
        paths |= {f"path:{path}": None, f"path:{path}:in": None}
    inputs = FAMILIES[name].inputs(model.module, 9)
    run = model.run(inputs, capture=[*(s for s in model.sites if s.point != "logits"), *paths])
    for hook in hooks:
        hook.remove()
    return run, down


def seen(name: str) -> Run:
    return recorded(name)[0]


def close(a: Tensor, b: Tensor, what: str) -> None:
    assert a.shape == b.shape, f"{what}: {list(a.shape)} {list(b.shape)}"
    assert (a - b).abs().max() <= 1e-5 * b.abs().max(), what


def site(tower: str | None, point: str, layer: int | None = None) -> str:
    return (f"{tower}/" if tower else "") + point + ("" if layer is None else f".{layer}")


def affine(model: Model, x: Tensor, w: str, b: str, tower: str | None) -> Tensor:
    """`x @ W + b` of one head or matrix, where a bias that the model has not is zero."""
    y = x @ weight(model, w, tower).value
    try:
        return y + weight(model, b, tower).value
    except NotServed as refusal:
        assert "zero" in refusal.fix
        return y


def flat(x: Tensor) -> Tensor:
    """Drop the batch axis where a module already works on flattened rows, so both sides compare."""
    return x.reshape(-1, x.shape[-1])


@pytest.mark.parametrize("name", PLACES)
def test_every_weight_is_served_or_refused_for_a_reason(name: str) -> None:
    model = opened(name)
    for tower in model.architecture.towers:
        for kind, row in WEIGHTS.items():
            for layer in range(len(tower.blocks)) if row.per_layer else (None,):
                asked = kind if layer is None else f"{kind}.{layer}"
                roles = {} if layer is None else tower.blocks[layer].roles
                try:
                    found = weight(model, asked, tower.name)
                except NotServed as refusal:
                    if kind in REFUSED.get(name, ()):
                        continue
                    assert kind[0] == "b" or _has_no_part(kind, roles, tower.blocks[layer or 0].style), str(refusal)
                    continue
                assert kind not in REFUSED.get(name, ()), asked
                axes = row.axes if "experts" not in roles or row.coordinate != "e" else ("expert", *row.axes)
                assert found.value.dim() == len(axes), asked
                assert model.module.get_parameter(found.parameter).data_ptr() == found.stored.tensor.data_ptr()


def _has_no_part(kind: str, roles: dict[str, Part], style: str) -> bool:
    """Whether a block really lacks what a weight would be read from."""
    if kind.startswith("W_cross") or kind == "g_ln_cross":
        return "cross" not in roles
    if kind in ("g_q", "g_k"):
        return "attention" not in roles or not hasattr(roles["attention"].module, f"{kind[2]}_norm")
    if kind in ("g_ln1_post", "g_ln2_post"):
        return style != "sandwich"
    if kind == "W_pos":
        return True  # proved below for the families that have it
    if kind == "W_gate":
        return not {"gate_proj", "gate_up", "experts"} & set(roles)
    if kind in ("g_ln1", "g_ln2"):
        return kind[2:] not in roles or type(roles[kind[2:]].module) is nn.Identity
    needs = {"W_router": "router", "W_Q": "attention", "W_K": "attention", "W_V": "attention", "W_O": "attention"}
    return needs.get(kind, "mlp_out") not in roles


@pytest.mark.parametrize("name", [n for n in TRANSFORMERS if n not in HAND_SPLIT and n != "deepseek_v3"])
def test_queries_keys_and_values_are_the_normed_stream_times_their_maps(name: str) -> None:
    model, run, checked = opened(name), seen(name), 0
    for tower in model.architecture.towers:
        for layer, block in enumerate(tower.blocks):
            if "attention" not in block.roles:
                continue
            t = tower.name
            ln1 = site(t, "resid_pre" if block.style == "post" else "ln1", layer)
            x = run[ln1] if model.serves(ln1) else run[site(t, "resid_pre", layer)]  # modernbert's first block: no norm
            values = run[site(t, "v", layer)] if block.registry else run[f"path:{block.roles['v_proj'].path}"]
            values = values if values.dim() == 4 else values.unflatten(-1, (block.n_kv, -1))
            for letter, short, heads, want in (
                ("Q", "h", block.n_heads, run[site(t, "q_pre", layer)]),
                ("K", "kv", block.n_kv, run[site(t, "k_pre", layer)]),
                ("V", "kv", block.n_kv, values),
            ):
                whole = weight(model, f"W_{letter}.{layer}", t).value
                assert whole.shape[0] == heads
                for h in range(heads):
                    got = affine(model, x, f"W_{letter}.{layer}.{short}{h}", f"b_{letter}.{layer}.{short}{h}", t)
                    close(got, want[:, :, h], f"{letter} {layer} {h}")
                    assert torch.equal(whole[h], weight(model, f"W_{letter}.{layer}.{short}{h}", t).value)
                    checked += 1
    assert checked >= 2 * (4 + 2 + 2)


@pytest.mark.parametrize("name", HAND_SPLIT)
def test_grouped_and_interleaved_projections_match_the_models_own_split(name: str) -> None:
    model, run = opened(name), seen(name)
    for layer, block in enumerate(model.architecture.towers[0].blocks):
        attention: nn.Module = block.roles["attention"].module
        fused = run[f"path:{block.roles['qkv'].path}"]
        parts = attention._split_heads(fused) if name == "falcon" else attention._reshape(fused)
        if name == "bloom":  # [batch head pos d], keys too or transposed
            parts = [p if p.shape[-1] == 8 else p.transpose(-1, -2) for p in parts]
            parts = [p.transpose(1, 2) for p in parts]
        x = run[f"ln1.{layer}"]
        groups = 2 if name == "falcon" else 4
        for letter, want, short, count in zip("QKV", parts, ("h", "kv", "kv"), (4, groups, groups)):
            for i in range(count):
                got = affine(model, x, f"W_{letter}.{layer}.{short}{i}", f"b_{letter}.{layer}.{short}{i}", None)
                close(got, want[:, :, i * 4 // count], f"{letter} {layer} {i}")
        with pytest.raises(UnknownName, match="0 to"):
            weight(model, f"W_K.{layer}.kv{groups}")


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_heads_through_their_output_maps_sum_to_what_attention_adds(name: str) -> None:
    model, run, checked = opened(name), seen(name), 0
    for tower in model.architecture.towers:
        for layer, block in enumerate(tower.blocks):
            for prefix, role in (("", "attention"), ("cross_", "cross")):
                if role not in block.roles:
                    continue
                z, t = run[site(tower.name, f"{prefix}z", layer)], tower.name
                each = [z[:, :, h] @ weight(model, f"W_{prefix}O.{layer}.h{h}", t).value for h in range(block.n_heads)]
                total = torch.stack(each).sum(0)
                try:
                    total = total + weight(model, f"b_{prefix}O.{layer}", t).value
                except NotServed as refusal:
                    assert "zero" in refusal.fix
                close(total, run[f"path:{block.roles[f'{prefix}o_proj'].path}"], f"{prefix}o_proj {layer}")
                out = f"{prefix or 'attn_'}out"
                if block.style != "sandwich":  # there attn_out is the norm after it
                    close(total, run[site(t, out, layer)], f"{out} {layer}")
                checked += 1
    assert checked


@pytest.mark.parametrize("name", ["whisper", "t5"])
def test_cross_attention_reads_the_decoder_for_queries_and_the_encoder_for_keys_and_values(name: str) -> None:
    model, run = opened(name), seen(name)
    encoder = run["encoder/ln_final"]
    for layer, block in enumerate(model.architecture.tower("decoder").blocks):
        queries = run[f"path:{block.roles['ln_cross'].path}"]
        for letter, short, x in (("Q", "h", queries), ("K", "kv", encoder), ("V", "kv", encoder)):
            want = run[f"path:{block.roles[f'cross_{letter.lower()}_proj'].path}"].unflatten(-1, (4, -1))
            for i in range(4):
                w, b = (f"{k}_cross_{letter}.{layer}.{short}{i}" for k in "Wb")
                close(affine(model, x, w, b, "decoder"), want[:, :, i], f"{letter} {layer} {i}")


@pytest.mark.parametrize("name", PLACES)
def test_mlp_matrices_make_its_neurons_and_its_output(name: str) -> None:
    model, run, checked = opened(name), seen(name), 0
    for tower in model.architecture.towers:
        for layer, block in enumerate(tower.blocks):
            if "down_proj" not in block.roles:
                continue
            t = tower.name
            read = "resid_mid" if block.style == "post" else "ln2" if "ln2" in block.roles else "ln1"
            x = run[site(t, read, layer)]
            gated = {"gate_proj", "gate_up"} & set(block.roles)
            for kind, point in (("gate", "mlp_gate"), ("in", "mlp_up")) if gated else (("in", "mlp_up"),):
                got = affine(model, x, f"W_{kind}.{layer}", f"b_{kind}.{layer}", t)
                close(flat(got), flat(run[site(t, point, layer)]), f"{point} {layer}")
            out = affine(model, run[site(t, "mlp_act", layer)], f"W_out.{layer}", f"b_out.{layer}", t)
            close(flat(out), flat(recorded(name)[1][block.roles["down_proj"].path]), f"down {layer}")
            if block.style != "sandwich":
                close(flat(out), flat(run[site(t, "mlp_out", layer)]), f"mlp_out {layer}")
            checked += 1
    assert checked or name in ("mixtral", "gpt_oss", "mamba")


def _silu_gate(gate: Tensor, up: Tensor) -> Tensor:
    return nn.functional.silu(gate) * up


def _oss_gate(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


MIXTURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mixtral": _silu_gate,
    "qwen3_moe": _silu_gate,
    "deepseek_v3": _silu_gate,
    "jamba": _silu_gate,
    "gpt_oss": _oss_gate,
}


@pytest.mark.parametrize("name", MIXTURES)
def test_expert_matrices_make_what_each_expert_returns(name: str) -> None:
    model, run, checked = opened(name), seen(name), 0
    for layer, block in enumerate(model.architecture.towers[0].blocks):
        if "experts" not in block.roles:
            continue
        x = run[f"ln2.{layer}"]
        scores = affine(model, x, f"W_router.{layer}", f"b_router.{layer}", None)
        close(flat(scores), flat(run[f"router.{layer}"]), f"router {layer}")
        rows, experts = flat(x), block.roles["experts"].module
        count = weight(model, f"W_in.{layer}").value.shape[0]
        for e in range(count):
            chosen = torch.full((len(rows), 1), e)
            with torch.no_grad():
                want = experts(rows, chosen, torch.ones(len(rows), 1))
            gate = affine(model, rows, f"W_gate.{layer}.e{e}", f"b_gate.{layer}.e{e}", None)
            up = affine(model, rows, f"W_in.{layer}.e{e}", f"b_in.{layer}.e{e}", None)
            got = affine(model, MIXTURES[name](gate, up), f"W_out.{layer}.e{e}", f"b_out.{layer}.e{e}", None)
            close(got, want, f"expert {e} of {layer}")
            checked += 1
        with pytest.raises(UnknownName, match=f"0 to {count - 1}"):
            weight(model, f"W_in.{layer}.e{count}")
    assert checked


@pytest.mark.parametrize("name", PLACES)
def test_gains_and_biases_turn_the_normalized_stream_into_the_norms_output(name: str) -> None:
    model, run, checked = opened(name), seen(name), 0
    for tower in model.architecture.towers:
        norms = [(f"ln_final{''}", tower.ln_final)] if tower.ln_final is not None else []
        for layer, block in enumerate(tower.blocks):
            norms += [(f"{r}.{layer}", block.roles[r]) for r in ("ln1", "ln2", "ln_cross") if r in block.roles]
            if block.style == "sandwich":
                norms += [(f"ln{i}_post.{layer}", block.roles[r]) for i, r in ((1, "attn_out"), (2, "mlp_out"))]
        for label, part in norms:
            if type(part.module) is nn.Identity:
                continue
            x = run[f"path:{part.path}:in"]
            got = _normalized(part.module, x) * weight(model, f"g_{label}", tower.name).value
            if getattr(part.module, "bias", None) is not None:
                got = got + weight(model, f"b_{label}", tower.name).value
            close(flat(got), flat(run[f"path:{part.path}"]), label)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "qwen3_moe"])
def test_query_and_key_gains(name: str) -> None:
    model, run = opened(name), seen(name)
    for layer, block in enumerate(model.architecture.towers[0].blocks):
        for letter in "qk":
            part = f"path:{block.roles['attention'].path}.{letter}_norm"
            module = getattr(block.roles["attention"].module, f"{letter}_norm")
            close(_normalized(module, run[f"{part}:in"]) * weight(model, f"g_{letter}.{layer}").value, run[part], part)


def _normalized(module: nn.Module, x: Tensor) -> Tensor:
    eps = next(getattr(module, n) for n in ("eps", "variance_epsilon", "norm_eps") if hasattr(module, n))
    if isinstance(module, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _ids(batch: Batch, tower: str | None) -> Tensor:
    return batch.arguments["decoder_input_ids" if tower == "decoder" else "input_ids"]


@pytest.mark.parametrize("name", [n for n in PLACES if n not in ("vit", "wav2vec2")])
def test_the_token_table_is_what_lookups_return(name: str) -> None:
    model, run, checked = opened(name), seen(name), 0
    for tower in model.architecture.towers:
        if tower.name == "vision" or (name == "whisper" and tower.name == "encoder"):
            continue
        table, point = weight(model, "W_E", tower.name).value, site(tower.name, "embed")
        want = table[_ids(run.batch, tower.name)]
        if isinstance(tower.embed.module, nn.Embedding):
            close(run[point], want, point)
        else:  # a module that also adds positions and norms: look the table's own lookup up
            path = weight(model, "W_E", tower.name).parameter.removesuffix(".weight")
            close(model.run(run.batch, capture=[f"path:{path}"])[f"path:{path}"], want, path)
        checked += 1
    assert checked


POSITIONED = ["gpt2", "gpt_neo", "opt", "whisper", "clip", "vit", "bert", "distilbert"]


@pytest.mark.parametrize("name", POSITIONED)
def test_learned_positions_are_what_is_added_to_the_embedding(name: str) -> None:
    model, run = opened(name), seen(name)
    for tower in model.architecture.towers:
        table, x = weight(model, "W_pos", tower.name).value, run[site(tower.name, "resid_pre", 0)]
        root = model.module
        if name == "vit" or tower.name == "vision":
            at = f"path:{tower.embed.path}.{'patch_embeddings' if name == 'vit' else 'patch_embedding'}"
            patches = model.run(run.batch, capture=[at])[at]
            patches = patches if name == "vit" else patches.flatten(2).transpose(1, 2)
            got = patches + table[1:]
            want = (
                x[:, 1:]
                if name == "vit"
                else run.model.run(run.batch, capture=[f"path:{tower.embed.path}"])[f"path:{tower.embed.path}"][:, 1:]
            )
            close(got, want, "patches")
            continue
        if tower.name == "encoder":
            continue  # whisper's encoder adds fixed sinusoids after its convolutions
        ids = _ids(run.batch, tower.name)
        places = torch.arange(ids.shape[1]).expand_as(ids)
        if FAMILIES[name].pad_side == "left":
            places = (run.batch.arguments["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        got = weight(model, "W_E", tower.name).value[ids] + table[places]
        if name in ("bert", "distilbert"):
            norm = tower.embed.module.LayerNorm
            types = root.bert.embeddings.token_type_embeddings.weight[0] if name == "bert" else 0.0
            got = norm(got + types).detach()
        real = run.batch.arguments.get("attention_mask", torch.ones_like(ids)).bool()
        real = real if real.shape == ids.shape else torch.ones_like(ids).bool()
        close(got[real], x[real], name)


@pytest.mark.parametrize("name", [n for n in PLACES if n != "clip"])
def test_the_unembedding_makes_the_logits(name: str) -> None:
    model, run = opened(name), seen(name)
    part = model.architecture.unembed
    x = run[f"path:{part.path}:in"]
    logits = affine(model, x, "W_U", "b_U", None)
    if name == "gemma2":  # its soft-cap comes after
        logits = 5.0 * torch.tanh(logits / 5.0)
    close(flat(logits), flat(run.logits), "logits")
    if FAMILIES[name].kind == "causal":
        close(x, run["ln_final"], "the unembedding reads ln_final")


# Names and layouts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("W_q.0", "mean 'W_Q'"),
        ("W_gates.0", "W_gate"),
        ("W_Q", "each layer"),
        ("W_E.0", "no layers"),
        ("W_Q.9", "layers 0 to 2"),
        ("W_Q.0.h4", "0 to 3"),
        ("W_K.0.kv2", "0 to 1"),
        ("W_K.0.h1", "kv0"),
        ("W_in.0.e0", "no experts"),
        ("W_Q.0.h1.h2", "no such weight"),
        ("", "no such weight"),
    ],
)
def test_wrong_names_say_what_is_right(asked: str, says: str) -> None:
    with pytest.raises(UnknownName, match=says):
        weight(opened("llama"), asked)


def test_towers_are_named_once_in_either_place() -> None:
    model = opened("t5")
    assert torch.equal(weight(model, "decoder/W_Q.1").value, weight(model, "W_Q.1", "decoder").value)
    assert not torch.equal(weight(model, "decoder/W_Q.1").value, weight(model, "encoder/W_Q.1").value)
    with pytest.raises(NotServed, match="several towers"):
        weight(model, "W_Q.1")
    with pytest.raises(UnknownName, match="another tower"):
        weight(model, "decoder/W_Q.1", "encoder")


def test_latent_attention_names_the_modules_that_stand_in_for_its_maps() -> None:
    with pytest.raises(NotServed, match="q_a_proj, q_a_layernorm, q_b_proj"):
        weight(opened("deepseek_v3"), "W_Q.0.h1")
    assert weight(opened("deepseek_v3"), "W_O.0.h1").value.shape == (10, 32)


@pytest.mark.parametrize("name", PLACES)
def test_values_are_views_unless_the_forward_pass_changes_them(name: str) -> None:
    model = opened(name)
    tower = model.architecture.towers[0]
    gemma = name in ("gemma2", "gemma3")
    if model.architecture.unembed is not None:
        assert weight(model, "W_U").is_view
    if "attention" in tower.blocks[-1].roles:
        assert weight(model, f"W_O.{len(tower.blocks) - 1}", tower.name).is_view
    if tower.ln_final is not None:
        assert weight(model, "g_ln_final", tower.name).is_view is not gemma
    if name not in ("vit", "wav2vec2", "whisper"):
        assert weight(model, "W_E", tower.name).is_view is not gemma


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.exp(self.weight)


def test_a_gain_that_is_neither_form_is_refused() -> None:
    with pytest.raises(NotServed, match="neither w nor 1"):
        gain(Part("norm", _Odd()))
    with pytest.raises(NotServed, match="treat it as one"):
        gain(Part("norm", nn.LayerNorm(8, elementwise_affine=False)))


def test_packed_weights_are_unpacked_or_refused_by_name() -> None:
    held = nn.Linear(6, 4, bias=False)
    packed = torch.quantize_per_tensor(held.weight.detach(), 0.01, 0, torch.qint8)
    holder = nn.Module()
    holder.weight = packed
    stored = matrix(Part("proj", holder))
    assert stored.how == "dequantized" and not stored.writable
    assert (stored.tensor - held.weight).abs().max() <= 0.005 + 1e-6
    holder.weight = torch.zeros(4, 6, dtype=torch.uint8)
    with pytest.raises(NotServed, match="packs its values"):
        matrix(Part("proj", holder))
    with pytest.raises(NotServed, match="offloaded"):
        matrix(Part("proj", nn.Linear(6, 4, device="meta")))
    with pytest.raises(NotServed, match="3 axes"):
        matrix(Part("conv", nn.Conv1d(3, 4, 2)))


def test_a_packed_weight_is_read_but_not_edited_or_masked() -> None:
    model = Model(build("llama"))
    proj = model.architecture.towers[0].blocks[0].roles["o_proj"].module
    plain = proj.weight.detach().clone()
    del proj.weight
    proj.weight = torch.quantize_per_tensor(plain, 1e-3, 0, torch.qint32)
    assert (weight(model, "W_O.0.h1").value - plain[:, 8:16].T).abs().max() < 1e-3
    for act in (
        lambda: edited_weights(model, {"W_O.0": torch.zeros(4, 8, 32)}).__enter__(),
        lambda: parameter_mask(model, ["W_O.0"]),
    ):
        with pytest.raises(NotServed, match="dequantized"):
            act()


# Adapters ---------------------------------------------------------------------------------------------------------


def _adapted(name: str, targets: list[str], **more: object) -> Model:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(build(name), peft.LoraConfig(r=3, target_modules=targets, **more)).eval()
    for n, p in wrapped.named_parameters():
        if "lora_" in n:
            p.data = 0.3 * torch.randn_like(p)
    return Model(wrapped)


@pytest.mark.parametrize(
    ("name", "targets"),
    [("gpt2", ["c_attn", "c_proj", "c_fc"]), ("qwen2", ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"])],
)
def test_adapters_are_part_of_the_effective_weight(name: str, targets: list[str]) -> None:
    model = _adapted(name, targets, lora_bias=True)
    inputs = FAMILIES[name].inputs(model.module, 9)
    run = model.run(inputs, capture=["ln1.1", "q_pre.1", "v.1", "z.1", "attn_out.1", "mlp_act.1", "mlp_out.1"])
    for h in range(4):
        close(affine(model, run["ln1.1"], f"W_Q.1.h{h}", f"b_Q.1.h{h}", None), run["q_pre.1"][:, :, h], f"q {h}")
    close(affine(model, run["ln1.1"], "W_V.1.kv1", "b_V.1.kv1", None), run["v.1"][:, :, 1], "v")
    out = torch.einsum("bphd,hdm->bpm", run["z.1"], weight(model, "W_O.1").value)
    close(out + weight(model, "b_O.1").value, run["attn_out.1"], "attn_out")
    close(affine(model, run["mlp_act.1"], "W_out.1", "b_out.1", None), run["mlp_out.1"], "mlp_out")
    found = weight(model, "W_Q.1.h2")
    assert found.how == "merged" and not found.is_view and found.parameter.endswith("base_layer.weight")
    with model.module.disable_adapter():
        assert weight(model, "W_Q.1.h2").how == "parameter"
    new = torch.randn_like(found.value)
    with edited_weights(model, {"W_Q.1.h2": new}):
        close(weight(model, "W_Q.1.h2").value, new, "an edit sets the effective weight")
    assert torch.equal(weight(model, "W_Q.1.h2").value, found.value)


def test_adapters_that_are_no_sum_are_refused() -> None:
    with pytest.raises(NotServed, match="not a sum"):
        weight(_adapted("qwen2", ["q_proj"], use_dora=True), "W_Q.0")


def test_a_fully_trained_copy_replaces_its_original() -> None:
    model = _adapted("llama", ["q_proj"], modules_to_save=["lm_head"])
    copy = model.module.base_model.model.lm_head.modules_to_save["default"]
    copy.weight.data.mul_(2.0)
    assert torch.equal(weight(model, "W_U").value, copy.weight.T)
    assert "modules_to_save.default" in weight(model, "W_U").parameter


def test_an_adapted_scaled_table_is_what_lookups_return() -> None:
    model = _adapted("gemma2", ["embed_tokens"])
    inputs = FAMILIES["gemma2"].inputs(model.module, 9)
    table = weight(model, "W_E").value
    close(model.run(inputs, capture=["embed"])["embed"], table[inputs["input_ids"]], "embed")


# Edits and masks --------------------------------------------------------------------------------------------------


def _state(model: Model) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.module.named_parameters()}


def _same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


EDITED = [("gpt2", "W_Q.1.h2"), ("gpt_neox", "W_K.0.kv1"), ("falcon", "W_Q.2.h3"), ("phi3", "W_V.1"),
    ("gemma2", "g_ln1.1"), ("gemma2", "W_E"), ("gpt_oss", "W_gate.1.e2"), ("mixtral", "W_out.0.e1"),
    ("gpt2", "W_U"), ("opt", "W_pos"), ("llama", "W_O.2.h1"), ("llama", "b_Q.0.h1")]  # fmt: skip


@pytest.mark.parametrize(("name", "asked"), EDITED)
def test_an_edit_takes_effect_there_only_and_is_undone_bit_exactly(name: str, asked: str) -> None:
    model = Model(build(name))
    inputs = FAMILIES[name].inputs(model.module, 9)
    before, logits, version = _state(model), model.run(inputs).logits, model.weights_version
    old = weight(model, asked).value.clone()
    mask = parameter_mask(model, [asked])
    with edited_weights(model, {asked: lambda w: w + 0.7}):
        close(weight(model, asked).value, old + 0.7, asked)
        inside = _state(model)
        assert not torch.allclose(model.run(inputs).logits, logits)
        assert model.weights_version > version
        version = model.weights_version
    assert model.weights_version > version
    assert _same(_state(model), before) and torch.equal(model.run(inputs).logits, logits)
    for n in before:
        where = mask.get(n, torch.zeros_like(before[n], dtype=torch.bool))
        assert torch.equal(inside[n] != before[n], where), n
    assert sum(int(m.sum()) for m in mask.values()) == old.numel()


def test_edits_nest_accumulate_and_survive_an_exception() -> None:
    model = Model(build("llama"))
    before = _state(model)
    with pytest.raises(RuntimeError, match="stop"), edited_weights(model, {"W_Q.0": lambda w: w * 0.0}):
        with edited_weights(model, {"W_Q.0.h1": torch.ones(32, 8), "W_E": lambda w: -w}):
            assert weight(model, "W_Q.0").value.sum() == 32 * 8
        assert weight(model, "W_Q.0").value.abs().sum() == 0
        raise RuntimeError("stop")
    assert _same(_state(model), before)
    twice = {"W_O.1": lambda w: w * 2.0, "W_O.1.h0": lambda w: w * 2.0}
    with edited_weights(model, twice):
        assert torch.equal(
            weight(model, "W_O.1.h0").value, before["model.layers.1.self_attn.o_proj.weight"][:, :8].T * 4
        )
    assert _same(_state(model), before)


def test_a_bad_edit_changes_nothing() -> None:
    model = Model(build("llama"))
    before = _state(model)
    for bad, error in (({"W_Q.0": lambda w: w * 2, "W_O.0": torch.zeros(3)}, ShapeMismatch),
                       ({"W_Q.0": lambda w: w * 2, "W_X.0": torch.zeros(3)}, UnknownName)):  # fmt: skip
        with pytest.raises(error), edited_weights(model, bad):
            pass
        assert _same(_state(model), before)


def test_a_tied_table_is_one_parameter() -> None:
    model = Model(build("gpt2"))
    masks = parameter_mask(model, ["W_E", "W_U", "W_Q.0.h1", "W_Q.0.h2"])
    assert set(masks) == {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"}
    assert masks["transformer.wte.weight"].all()
    assert int(masks["transformer.h.0.attn.c_attn.weight"].sum()) == 2 * 32 * 8
    with edited_weights(model, {"W_U": lambda w: w * 0.0}):
        assert weight(model, "W_E").value.abs().sum() == 0


def test_scaled_and_plain_tables() -> None:
    plain = embedding(Part("e", nn.Embedding(5, 4)))
    assert plain.scale == 1.0
    gemma = Model(build("gemma2"))
    assert weight(gemma, "W_E").stored.scale == pytest.approx(32**0.5)
