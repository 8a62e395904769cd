"""Foreign names: what they mean is checked against what the other tool's tensor is, and every row round-trips."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from families import FAMILIES, build
from mechanome.core.errors import BadInput, NotServed, UnknownName, UnknownSite
from mechanome.engine.model import Model
from mechanome.engine.name_table import ROWS, SCHEMES, Row
from mechanome.engine.names import NearMatch, from_foreign, lookup, translate
from mechanome.engine.points import POINTS
from mechanome.engine.site import Site

STATES = [n for n, f in FAMILIES.items() if f.kind != "custom" and n != "clip"]


@cache
def opened(name: str) -> Model:
    return Model(build(name))


# Against the tensors themselves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STATES)
def test_hidden_states_are_the_sites_they_translate_to(name: str) -> None:
    model = opened(name)
    inputs = FAMILIES[name].inputs(model.module, 9)
    batch = model.encode(inputs)
    with torch.no_grad():
        out = model.module(**model.arguments(batch), output_hidden_states=True)
    for prefix in ("", "encoder_", "decoder_"):
        states = getattr(out, f"{prefix}hidden_states", None)
        for i in range(len(states or ())):
            site = from_foreign(f"{prefix}hidden_states[{i}]", model)
            got = model.run(batch, capture=[site])[site]
            assert torch.equal(got, states[i]), f"{prefix}{i} is not {site}"
            assert from_foreign(f"{prefix}hidden_states[{i - len(states)}]", model) == site
            assert translate(site, "hugging_face", model) == f"{prefix}hidden_states[{i}]"
        if states:
            with pytest.raises(UnknownSite, match=f"there are {len(states)}"):
                from_foreign(f"{prefix}hidden_states[{len(states)}]", model)


@pytest.mark.parametrize("name", ["llama", "vit", "bert", "t5"])
def test_the_last_state_and_attentions(name: str) -> None:
    model = Model(build(name))
    batch = model.encode(FAMILIES[name].inputs(model.module, 9))
    module = model.module.get_submodule(model.module.base_model_prefix) if name != "t5" else None
    if module is not None:
        site = from_foreign("last_hidden_state", model)
        arguments = {k: v for k, v in model.arguments(batch).items() if k != "labels"}
        with torch.no_grad():
            assert torch.equal(module(**arguments).last_hidden_state, model.run(batch, capture=[site])[site])
    eager = build(name)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        out = eager(**model.arguments(batch), output_attentions=True)
    for text in (
        ("attentions[1]",)
        if name != "t5"
        else ("encoder_attentions[1]", "decoder_attentions[2]", "cross_attentions[0]")
    ):
        stem, _, index = text.partition("[")
        site = from_foreign(text, model)
        got, want = model.run(batch, capture=[site])[site], getattr(out, stem)[int(index[:-1])]
        real = batch.arguments.get("decoder_attention_mask" if "encoder" not in text else "attention_mask")
        rows = torch.ones(want.shape[0], want.shape[2], dtype=torch.bool) if real is None else real.bool()
        rows = rows if rows.shape[1] == want.shape[2] else torch.ones(want.shape[0], want.shape[2], dtype=torch.bool)
        assert torch.allclose(got.transpose(1, 2)[rows], want.transpose(1, 2)[rows], atol=1e-6), text


def _unscaled(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_normalized_hooks_convert_to_the_tensor_before_the_gain(name: str) -> None:
    model = opened(name)
    batch = model.encode(FAMILIES[name].inputs(model.module, 9))
    for text in ("blocks.1.ln1.hook_normalized", "blocks.2.ln2.hook_normalized", "ln_final.hook_normalized"):
        found = lookup(text, model)
        assert not found.exact and "gain" in found.note
        part = model.tap(found.site).part
        run = model.run(batch, capture=[found.site, f"path:{part.path}:in"])
        want = _unscaled(part.module, run[f"path:{part.path}:in"])
        got = found.convert(model, run[found.site])
        assert (got - want).abs().max() <= 1e-4 * want.abs().max()
        assert (run[found.site] - want).abs().max() > 0.05 * want.abs().max()
        with pytest.warns(NearMatch, match="before the norm's gain"):
            assert from_foreign(text, model) == found.site


def test_a_soft_cap_stands_between_the_unembedding_and_the_logits() -> None:
    assert from_foreign("unembed.hook_out", opened("gemma2")) == Site("path:lm_head")
    assert from_foreign("unembed.hook_out", opened("llama")) == Site("logits")
    with pytest.raises(NotServed):
        translate("logits", "transformer_lens", opened("gemma2"))
    assert translate("logits", "transformer_lens", opened("llama")) == "unembed.hook_out"


# What depends on the model ----------------------------------------------------------------------------------------

DECIDED = [
    ("blocks.1.mlp.hook_pre", "llama", "mlp_gate.1"),
    ("blocks.1.mlp.hook_pre", "phi3", "mlp_gate.1"),
    ("blocks.1.mlp.hook_pre", "gpt2", "mlp_up.1"),
    ("blocks.1.mlp.hook_out", "llama", "mlp_out.1"),
    ("blocks.1.mlp.hook_out", "gemma2", "path:model.layers.1.mlp"),
    ("blocks.1.attn.hook_out", "gemma3", "path:model.layers.1.self_attn"),
    ("attentions_output[1]", "gemma3", "path:model.layers.1.self_attn"),
    ("attentions_output[-1]", "llama", "attn_out.2"),
    ("mlps_output[0]", "qwen2", "mlp_out.0"),
    ("mlps_input[0]", "qwen2", "ln2.0"),
    ("mlps_input[0]", "gptj", "ln1.0"),
    ("blocks.0.mlp.hook_in", "bert", "resid_mid.0"),
    ("blocks.0.attn.hook_in", "bert", "resid_pre.0"),
    ("blocks.2.hook_mlp_in", "llama", "path:model.layers.2.post_attention_layernorm:in"),
    ("layers_output[-1]", "gpt2", "resid_post.2"),
    ("hidden_states[3]", "gpt2", "ln_final"),
    ("hidden_states[3]", "vit", "resid_post.2"),
    ("hidden_states[0]", "mamba", "resid_post.0"),
    ("decoder_blocks.1.ln3.hook_out", "t5", "decoder/ln2.1"),
    ("decoder_blocks.1.hook_resid_mid2", "t5", "decoder/resid_mid.1"),
    ("decoder_blocks.1.cross_attn.hook_z", "t5", "decoder/cross_z.1"),
    ("decoder_blocks.1.self_attn.hook_z", "t5", "decoder/z.1"),
    ("encoder_blocks.1.attn.hook_z", "t5", "encoder/z.1"),
]


@pytest.mark.parametrize(("text", "name", "site"), DECIDED)
def test_the_model_decides(text: str, name: str, site: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(from_foreign(text, opened(name))) == site


def test_circuit_tracer_names_take_their_layer_beside() -> None:
    assert from_foreign("hook_resid_mid", layer=4) == Site("resid_mid", 4)
    assert from_foreign("mlp.hook_in", opened("gemma3"), layer=2) == Site("ln2", 2)
    assert from_foreign("hook_mlp_out", opened("gemma3"), layer=2) == Site("mlp_out", 2)
    assert from_foreign("mlp.hook_out", opened("gemma3"), layer=2) == Site("path:model.layers.2.mlp")
    with pytest.raises(NotServed, match="hold no layer"):
        from_foreign("hook_resid_mid")
    with pytest.raises(UnknownSite, match="index 9"):
        from_foreign("hook_resid_mid", opened("llama"), layer=9)


def test_without_a_model_the_usual_meaning_comes_with_a_warning() -> None:
    for text, site in (("hidden_states[0]", "resid_pre.0"), ("hidden_states[7]", "resid_post.6"),
                       ("mlps_output[7]", "mlp_out.7"), ("blocks.7.mlp.hook_in", "ln2.7")):  # fmt: skip
        with pytest.warns(NearMatch):
            assert str(from_foreign(text)) == site
    with pytest.raises(NotServed, match="pass model="):
        from_foreign("blocks.7.mlp.hook_pre")
    with pytest.raises(NotServed, match="pass model="):
        from_foreign("layers_output[-1]")
    with pytest.warns(NearMatch, match="pass model="):
        assert translate("resid_post.4", "hugging_face") == "hidden_states[5]"
    with pytest.raises(NotServed, match="pass model="):
        translate("mlp_up.4", "saelens")
    assert translate("mlp_up.1", "saelens", opened("gpt2")) == "blocks.1.mlp.hook_pre"
    assert translate("mlp_up.1", "saelens", opened("llama")) == "blocks.1.mlp.hook_pre_linear"


def test_before_and_after_rotary_are_told_apart() -> None:
    assert from_foreign("blocks.5.attn.hook_q") == Site("q_pre", 5)
    assert from_foreign("blocks.5.attn.hook_rot_q") == Site("q", 5)
    assert translate("k.5", "saelens") == "blocks.5.attn.hook_rot_k"
    assert translate("k_pre.5", "transformer_lens") == "blocks.5.attn.hook_k"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("blocks.5.hook_q_input", NotServed, "copy of the stream"),
        ("blocks.5.hook_attn_in", NotServed, "copy of the stream"),
        ("hook_pos_embed", NotServed, "W_pos"),
        ("blocks.5.ln1.hook_scale", NotServed, "denominator"),
        ("blocks.5.hook_mlp_in", NotServed, "pass model="),
        ("blocks.5.attn.hook_zz", UnknownName, "attn.hook_z"),
        ("hiden_states[4]", UnknownName, "hidden_states"),
        ("", UnknownName, "no tool has it"),
    ],
)
def test_refusals_say_why_and_what_instead(text: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        from_foreign(text)


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(NotServed, match="index"):
        translate("z.5.h3", "transformer_lens")
    with pytest.raises(NotServed, match="no name there"):
        translate("z.5", "hugging_face")
    with pytest.raises(NotServed, match="no name there"):
        translate("resid_post.2", "hugging_face", opened("llama"))  # only its normed version is returned
    with pytest.raises(NotServed, match="no name there"):
        translate("attn_out.1", "nnterp", opened("gemma2"))
    with pytest.raises(BadInput, match="hugging_face"):
        translate("z.5", "huggingface")
    with pytest.raises(UnknownSite, match="resid_pre"):
        translate("resid_per.5", "saelens")
    assert translate("blocks.3.attn.hook_pattern", "nnterp") == "attention_probabilities[3]"
    assert translate(Site("z", 3, head=1)) == "z.3.h1"
    assert translate("resid_pre.2", "hugging_face", opened("llama")) == "hidden_states[2]"
    with pytest.raises(NotServed, match="pass model="):
        translate("ln_final", "hugging_face")


# Round trips ------------------------------------------------------------------------------------------------------

# Rows that only a model can settle are proved above.
WRITES = [r for r in ROWS if r.writes and r.reads and r.point and r.when is None]


@given(st.sampled_from(WRITES), st.integers(0, 200))
def test_every_written_name_reads_back_as_its_site(row: Row, layer: int) -> None:
    site = Site(row.point, layer if POINTS[row.point].per_layer else None, tower=row.tower)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NearMatch)
        text = translate(site, row.scheme)
        assert from_foreign(text, layer=layer) == site
        assert translate(text, layer=layer) == str(site)


@given(st.sampled_from([r for r in ROWS if r.reads and not r.refused]), st.integers(0, 2), st.sampled_from(STATES))
def test_every_read_name_is_a_site_of_the_model_or_refused(row: Row, layer: int, name: str) -> None:
    model = opened(name)
    text = row.template.format(n=layer)
    try:
        site = lookup(text, model, layer).site
    except NotServed:
        return
    if site.is_path:
        assert model.serves(site)
    elif site.layer is not None:
        assert site.layer < len(model.architecture.tower(site.tower).blocks)


@given(st.text(max_size=30))
def test_other_text_is_no_name(text: str) -> None:
    try:
        found = lookup(text, layer=0)
    except (UnknownName, NotServed):
        return
    assert any(row.scheme == found.scheme for row in ROWS)


def test_every_point_has_a_name_in_the_hook_language_or_is_known_to_have_none() -> None:
    named = {row.point for row in ROWS if row.scheme == "transformer_lens"}
    assert set(POINTS) - named == {"router", "mixer_out"}
    assert {row.scheme for row in ROWS} | {"mechanome"} == set(SCHEMES)
