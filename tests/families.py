"""Tiny random models of every family the engine opens, hard enough that a wrong mask, position, head or scale shows.

All are built from a config, never downloaded. After construction every parameter is drawn again from a seeded
generator: query and key maps are large (attention is peaked, not uniform), norm gains scatter around their neutral
value, biases and sinks are non-zero, recurrent decay rates differ. Windows are shorter than the prompt, soft-caps small
enough to bite, KV heads fewer than query heads, and ``d_head * n_heads != d_model`` where the family allows it.

``FAMILIES`` is the table; ``build(name)`` gives a fresh copy in evaluation mode, fp32; ``FAMILIES[name].inputs(model,
9)`` a batch of three rows, padded where the family knows padding.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from custom_modules import VOCAB, ConvNet, LSTMLanguageModel, OwnTransformer
from family_inputs import (
    BOS,
    EOS,
    MASK,
    PAD,
    Inputs,
    Side,
    image_text,
    pixels,
    seq2seq,
    speech_to_text,
    text,
    tokens,
    waveform,
)

Kind = Literal["causal", "encoder", "encoder_decoder", "vision", "audio", "ssm", "custom"]


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
        name: the key in ``FAMILIES``.
        build: makes a fresh, independent, seeded model in evaluation mode.
        inputs: ``(model, n_tokens) -> keyword arguments`` of the forward, three rows. Vision and audio models have a
            fixed number of positions and ignore ``n_tokens``.
        kind: what sort of network it is.
        towers: names of the towers of a model that has several, in their order in the module tree; else empty.
        has_attention: some layer attends.
        registry: the attention goes through the attention registry of transformers.
        pad_side: where the padding is; ``None`` when the inputs hold none.
        notes: what makes this family hard.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    kind: Kind
    towers: tuple[str, ...] = ()
    has_attention: bool = True
    registry: bool = True
    pad_side: Side | None = None
    notes: str = ""

    @property
    def padded(self) -> bool:
        """The inputs hold padding and a mask."""
        return self.pad_side is not None


def build(name: str) -> nn.Module:
    """A fresh, independent copy of the family's model, evaluation mode, fp32, the same weights every time."""
    return FAMILIES[name].build()


def logits(output: Any) -> Tensor:
    """The scores of a forward's output: ``[row pos vocab]``, ``[row class]`` or, for clip, ``[image text]``."""
    if isinstance(output, Tensor):
        return output
    return output["logits"] if "logits" in output else output["logits_per_image"]


READS_QK = re.compile(
    r"\b(q|k|query|key|[qk]_lin|[qk]_proj|q_b_proj|kv_b_proj|Wqkv|c_attn|qkv_proj|query_key_value)\.weight$"
)
HEADS = re.compile(r"\b(lm_head|decoder|classifier|unembed|head|fc)\.weight$")
QK_NORM = re.compile(r"\b[qk]_norm\.weight$")
BESIDE_TOKENS = re.compile(r"pos|wpe|token_type|cls_token")
STRUCTURAL = re.compile(r"\b(A_log|D)$")  # drawn around what the family's own initialization makes


def _redraw(model: nn.Module, seed: int, peak: float) -> None:
    """Draws every parameter again; ``peak`` is the gain of the maps that make queries and keys."""
    gen = torch.Generator().manual_seed(seed)
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            owners.setdefault(id(p), []).append(module)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=gen)

    for name, p in model.named_parameters():
        modules = owners[id(p)]
        if any(isinstance(m, nn.Embedding) for m in modules) or name.endswith(("cls_token", "position_embeddings")):
            p.data = _embedding_size(name, modules) * noise(p)
        elif QK_NORM.search(name):
            p.data += 0.6 + 0.3 * noise(p)  # keeps attention peaked although q and k are normalized
        elif p.dim() <= 1 or "bias" in name.rsplit(".", 1)[-1] or STRUCTURAL.search(name):
            p.data += 0.3 * noise(p)  # biases, sinks, and gains around what is neutral for their module (1, or 0)
        else:
            gain = peak if READS_QK.search(name) else 1.5 if HEADS.search(name) else 1.0
            p.data = gain / math.sqrt(_fan_in(modules[0], p)) * noise(p)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "e_score_correction_bias")):
            buffer += 0.3 * noise(buffer)
        elif name.endswith("running_var"):
            buffer *= torch.exp(0.3 * noise(buffer))


def _embedding_size(name: str, modules: list[nn.Module]) -> float:
    """Standard deviation of an embedding: smaller where tied to the head, or added to the tokens'; 1 after scaling."""
    if "relative_attention_bias" in name:
        return 2.0
    tied = any(isinstance(m, nn.Linear) for m in modules)
    size = 0.5 if tied or BESIDE_TOKENS.search(name) else 1.0
    scales: list[float] = [getattr(m, "scalar_embed_scale", 1.0) for m in modules]
    return size / max(scales)


def _fan_in(module: nn.Module, p: Tensor) -> int:
    """How many inputs one output sums: matrices are ``[out in]``, ``[in out]``, or stacked by expert; or kernels."""
    if isinstance(module, transformers.pytorch_utils.Conv1D) or getattr(module, "is_transposed", False):
        return p.shape[-2]
    return p.shape[-1] if hasattr(module, "gate_up_proj") else math.prod(p.shape[1:])


@functools.cache
def _cached(name: str, make: Callable[[], nn.Module], peak: float) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
    _redraw(model, zlib.crc32(name.encode()), peak)
    return model.eval().float()


def _family(
    name: str,
    make: Callable[[], nn.Module],
    kind: Kind,
    pad_side: Side | None,
    inputs: Inputs | None = None,
    *,
    peak: float = 1.6,
    **more: Any,
) -> Family:
    """A row: by default queries and keys of gain 1.6 and padded text as input."""
    read = inputs or text(name, pad_side or "right")
    return Family(name, lambda: copy.deepcopy(_cached(name, make, peak)), read, kind, pad_side=pad_side, **more)


def _hf(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """A maker of ``transformers.<model>`` from ``transformers.<config>`` with our special ids."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**_SPECIAL | settings))


# fmt: off
_ROPE = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False}
_BERT = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0}
_GPT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
    "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "projection_dim": 24}
_ALTERNATE = {"num_hidden_layers": 4, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 32}

_ROWS: tuple[Family, ...] = (
    _family("gpt2", _hf("GPT2LMHeadModel", "GPT2Config", **_GPT), "causal", "left",
        notes="absolute positions, fused q/k/v stored [in, out], tied head"),
    _family("llama", _hf("LlamaForCausalLM", "LlamaConfig", **_ROPE, attention_bias=True, mlp_bias=True), "causal",
        "right", notes="grouped heads, biases everywhere"),
    _family("mistral", _hf("MistralForCausalLM", "MistralConfig", **_ROPE, sliding_window=4, head_dim=12), "causal",
        "left", notes="window 4 in every layer, d_head 12"),
    _family("qwen2", _hf("Qwen2ForCausalLM", "Qwen2Config", **_ROPE | {"num_hidden_layers": 4,
        "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
        "causal", "right", notes="q/k/v biases, window 4 in the upper layers, tied head"),
    _family("qwen3", _hf("Qwen3ForCausalLM", "Qwen3Config", **_ROPE, head_dim=16, attention_bias=True), "causal",
        "left", notes="q/k norms by head, d_head 16"),
    _family("gemma2", _hf("Gemma2ForCausalLM", "Gemma2Config", **_ROPE | _ALTERNATE, head_dim=16,
        query_pre_attn_scalar=12, attn_logit_softcapping=3.0, final_logit_softcapping=5.0, attention_bias=True),
        "causal", "left",
        notes="sandwich norms, soft-caps, alternating window, scale 12**-0.5 with d_head 16, scaled embedding"),
    _family("gemma3", _hf("Gemma3ForCausalLM", "Gemma3TextConfig", **_ROPE | _ALTERNATE, head_dim=16,
        query_pre_attn_scalar=12, attention_bias=True), "causal", "left",
        notes="sandwich norms, q/k norms, two rotary bases, alternating window"),
    _family("gpt_neox", _hf("GPTNeoXForCausalLM", "GPTNeoXConfig", vocab_size=VOCAB, hidden_size=32,
        intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64, rotary_pct=0.5),
        "causal", "left", notes="parallel block, partial rotary, fused q/k/v interleaved by head"),
    _family("gptj", _hf("GPTJForCausalLM", "GPTJConfig", **_GPT, rotary_dim=4, tie_word_embeddings=False), "causal",
        "left", notes="parallel block with one norm, interleaved partial rotary, biased head"),
    _family("opt", _hf("OPTForCausalLM", "OPTConfig", vocab_size=VOCAB, hidden_size=32, ffn_dim=48, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=64, dropout=0.0, word_embed_proj_dim=32), "causal", "left",
        notes="positions from the mask with offset 2, query scaled early, MLP on flattened rows"),
    _family("phi3", _hf("Phi3ForCausalLM", "Phi3Config", **_ROPE, sliding_window=4, resid_pdrop=0.0, embd_pdrop=0.0),
        "causal", "left", notes="fused q/k/v and gate/up, grouped heads, window 4"),
    _family("mixtral", _hf("MixtralForCausalLM", "MixtralConfig", **_ROPE, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=4), "causal", "left", notes="experts in every layer, window 4"),
    _family("qwen3_moe", _hf("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_ROPE, **_EXPERTS, head_dim=16,
        attention_bias=True, moe_intermediate_size=24, mlp_only_layers=[1]), "causal", "left",
        notes="experts around a dense layer, q/k norms"),
    _family("gpt_oss", _hf("GptOssForCausalLM", "GptOssConfig", **_ROPE | _ALTERNATE, head_dim=16, num_local_experts=4,
        num_experts_per_tok=2, rope_parameters=_YARN), "causal", "left",
        notes="sinks, alternating window, experts with biases stored [in, out], yarn rotary"),
    _family("deepseek_v3", _hf("DeepseekV3ForCausalLM", "DeepseekV3Config", **_ROPE | {"num_key_value_heads": 4},
        q_lora_rank=16, kv_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=10, n_routed_experts=8,
        num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=24, n_group=2,
        topk_group=1, attention_bias=True), "causal", "left",
        notes="latent attention, d_v 10 != d_k 12, experts chosen in groups, a shared expert"),
    _family("bert", _hf("BertForMaskedLM", "BertConfig", **_BERT), "encoder", "right", peak=2.2, notes="post-norm"),
    _family("distilbert", _hf("DistilBertForMaskedLM", "DistilBertConfig", vocab_size=VOCAB, dim=32, hidden_dim=48,
        n_layers=3, n_heads=4, max_position_embeddings=64, dropout=0.0, attention_dropout=0.0), "encoder", "right",
        notes="post-norm"),
    _family("modernbert", _hf("ModernBertForMaskedLM", "ModernBertConfig", vocab_size=VOCAB, hidden_size=32,
        intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=64,
        global_attn_every_n_layers=2, local_attention=4, attention_bias=True, mlp_bias=True, norm_bias=True,
        decoder_bias=True, cls_token_id=BOS, sep_token_id=EOS), "encoder", "right",
        notes="alternating two-sided window, fused q/k/v and gate, no first norm"),
    _family("esm", _hf("EsmForMaskedLM", "EsmConfig", **_BERT, position_embedding_type="rotary", token_dropout=True,
        mask_token_id=MASK), "encoder", "right",
        notes="pre-norm, rotary, query scaled early, embedding scaled by the mask"),
    _family("vit", _hf("ViTForImageClassification", "ViTConfig", hidden_size=32, intermediate_size=48,
        num_hidden_layers=3, num_attention_heads=4, image_size=12, patch_size=4, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=10), "vision", None, pixels,
        notes="class token and nine patches, never a mask"),
    _family("clip", _hf("CLIPModel", "CLIPConfig", projection_dim=24, text_config=_TOWER | {"vocab_size": VOCAB,
        "max_position_embeddings": 32} | _SPECIAL, vision_config=_TOWER | {"hidden_size": 48, "image_size": 12,
        "patch_size": 4}), "vision", "right", image_text, towers=("text", "vision"),
        notes="causal text tower, bidirectional vision tower of another width"),
    _family("whisper", _hf("WhisperForConditionalGeneration", "WhisperConfig", vocab_size=VOCAB, num_mel_bins=8,
        d_model=32, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=12, max_target_positions=32, dropout=0.0,
        decoder_start_token_id=BOS, suppress_tokens=None, begin_suppress_tokens=None), "encoder_decoder", "right",
        speech_to_text, peak=1.9, towers=("encoder", "decoder"),
        notes="cross-attention, query scaled early, key map without bias"),
    _family("t5", _hf("T5ForConditionalGeneration", "T5Config", vocab_size=VOCAB, d_model=32, d_kv=12, d_ff=48,
        num_layers=3, num_decoder_layers=3, num_heads=4, dropout_rate=0.0, feed_forward_proj="gated-gelu",
        decoder_start_token_id=PAD, relative_attention_num_buckets=8, relative_attention_max_distance=16,
        tie_word_embeddings=False), "encoder_decoder", "right", seq2seq, peak=0.9, towers=("encoder", "decoder"),
        notes="relative position bias shared by all layers, cross-attention, no scale, d_head 12"),
    _family("wav2vec2", _hf("Wav2Vec2ForCTC", "Wav2Vec2Config", vocab_size=32, hidden_size=32, intermediate_size=48,
        num_hidden_layers=3, num_attention_heads=4, conv_dim=(16, 16), conv_kernel=(4, 2), conv_stride=(4, 2),
        conv_bias=True, num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
        layerdrop=0.0, apply_spec_augment=False, feat_extract_norm="layer",
        feat_extract_activation="tanh"), "audio", "right", waveform, peak=3.0,
        notes="convolutions first, the mask counts samples and the layers see frames, post-norm"),
    _family("mamba", _hf("MambaForCausalLM", "MambaConfig", vocab_size=VOCAB, hidden_size=32, state_size=8,
        num_hidden_layers=3, time_step_rank=4, use_bias=True, tie_word_embeddings=False), "ssm", "right",
        has_attention=False, registry=False,
        notes="no attention; biased projections, so padding on the left is not neutral"),
    _family("jamba", _hf("JambaForCausalLM", "JambaConfig", **_ROPE | {"num_hidden_layers": 4}, **_EXPERTS,
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8,
        mamba_dt_rank=4), "ssm", "left", notes="recurrent and attention layers alternate, experts, no positions"),
    _family("bloom", _hf("BloomForCausalLM", "BloomConfig", vocab_size=VOCAB, hidden_size=32, n_layer=3, n_head=4,
        hidden_dropout=0.0, attention_dropout=0.0), "causal", "left", registry=False,
        notes="linear position bias, fused q/k/v"),
    _family("falcon", _hf("FalconForCausalLM", "FalconConfig", vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3,
        bias=True, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True, alibi=False,
        ffn_hidden_size=48, hidden_dropout=0.0, attention_dropout=0.0), "causal", "left", registry=False,
        notes="parallel block, fused by group"),
    _family("gpt_neo", _hf("GPTNeoForCausalLM", "GPTNeoConfig", vocab_size=VOCAB, hidden_size=32, intermediate_size=48,
        num_layers=4, num_heads=4, max_position_embeddings=64, attention_types=[[["global", "local"], 2]],
        window_size=4, resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0), "causal", "left", peak=0.9,
        registry=False, notes="alternating window, no scale"),
    _family("lstm", LSTMLanguageModel, "custom", None, tokens, has_attention=False, registry=False,
        notes="recurrent layers whose modules return tuples"),
    _family("convnet", ConvNet, "custom", None, pixels, has_attention=False, registry=False,
        notes="residual blocks with axes row channel height width"),
    _family("own_transformer", OwnTransformer, "custom", "left", registry=False,
        notes="its own grouped attention, outside every registry"),
)
# fmt: on

FAMILIES: dict[str, Family] = {family.name: family for family in _ROWS}
