"""How blocks are built: a short declarative table that covers the transformer families.

A `BlockShape` says which child of a block plays which role. The first shape whose required children exist is
taken, so a new family that follows an old habit needs no entry. Users describe their own modules with the
same class (see `Layout`), in about twenty lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Style = Literal["pre", "post", "sandwich", "parallel"]
"""Where norms stand: before each part (`pre`), after each addition to the stream (`post`), before and after each
part (`sandwich`); or attention and MLP read the same stream (`parallel`)."""


@dataclass(frozen=True)
class BlockShape:
    """One way to build a block.

    Args:
        requires: children (dotted paths) that must exist for the shape to apply.
        roles: role -> dotted path below the block. Roles: `ln1`, `attention` (the module that calls the attention
            function), `attn_out` (the module whose output is added to the stream), `cross`, `cross_out`,
            `ln_cross`, `ln2`, `mlp`, `mlp_out`, `mixer`; projections are found below these by name unless given here.
        style: where norms stand; a function of the model's config where the config decides.
        block: a pattern the block's class name must hold, for shapes that differ only in their code.
    """

    requires: tuple[str, ...]
    roles: Mapping[str, str]
    style: Style | Callable[[Any], Style] = "pre"
    block: str = ""


@dataclass(frozen=True)
class Layout:
    """A user's own description of a model: which modules play which part.

    Args:
        blocks: dotted path of the list of blocks.
        roles: as in `BlockShape`, plus projections: `q_proj k_proj v_proj o_proj up_proj gate_proj down_proj`.
        embed, ln_final, unembed: dotted paths, or None where the model has no such module.
        n_heads, n_kv: query heads and key/value heads, 0 without attention.
        style: where norms stand.
        feature_map: whether the stream is `batch channel height width`, as in a convolutional network.
        causal: whether a position sees only earlier ones.
        additive: whether blocks add to a residual stream (False: only stream sites make sense).
    """

    blocks: str
    roles: Mapping[str, str] = field(default_factory=dict)
    embed: str | None = None
    ln_final: str | None = None
    unembed: str | None = None
    n_heads: int = 0
    n_kv: int = 0
    style: Style = "pre"
    feature_map: bool = False
    causal: bool = False
    additive: bool = True


def _neox_style(config: Any) -> Style:
    return "parallel" if getattr(config, "use_parallel_residual", True) else "pre"


def _falcon_style(config: Any) -> Style:
    wide = getattr(config, "new_decoder_architecture", False) or getattr(config, "parallel_attn", False)
    return "parallel" if wide else "pre"


def _opt_style(config: Any) -> Style:
    return "pre" if getattr(config, "do_layer_norm_before", True) else "post"


SHAPES: tuple[BlockShape, ...] = (
    BlockShape(  # gemma 2 and 3
        ("pre_feedforward_layernorm", "post_feedforward_layernorm", "self_attn"),
        {
            "ln1": "input_layernorm", "attention": "self_attn", "attn_out": "post_attention_layernorm",
            "ln2": "pre_feedforward_layernorm", "mlp": "mlp", "mlp_out": "post_feedforward_layernorm",
        },
        "sandwich",
    ),
    BlockShape(  # jamba: attention or state space, then a feed-forward or expert layer
        ("input_layernorm", "pre_ff_layernorm", "feed_forward"),
        {"ln1": "input_layernorm", "attention": "self_attn", "mixer": "mamba", "ln2": "pre_ff_layernorm",
         "mlp": "feed_forward"},
    ),
    BlockShape(  # llama, mistral, qwen, phi3, mixtral, gpt_oss, deepseek
        ("input_layernorm", "post_attention_layernorm", "self_attn", "mlp"),
        {"ln1": "input_layernorm", "attention": "self_attn", "ln2": "post_attention_layernorm", "mlp": "mlp"},
    ),
    BlockShape(  # gpt_neox
        ("input_layernorm", "post_attention_layernorm", "attention", "mlp"),
        {"ln1": "input_layernorm", "attention": "attention", "ln2": "post_attention_layernorm", "mlp": "mlp"},
        _neox_style,
    ),
    BlockShape(  # bloom: its attention and MLP modules add the stream themselves
        ("input_layernorm", "post_attention_layernorm", "self_attention", "mlp"),
        {
            "ln1": "input_layernorm", "attention": "self_attention", "attn_out": "self_attention.dense",
            "ln2": "post_attention_layernorm", "mlp": "mlp", "mlp_out": "mlp.dense_4h_to_h",
        },
    ),
    BlockShape(  # falcon with two norms
        ("ln_attn", "ln_mlp", "self_attention", "mlp"),
        {"ln1": "ln_attn", "attention": "self_attention", "ln2": "ln_mlp", "mlp": "mlp"},
        _falcon_style,
    ),
    BlockShape(  # falcon with one norm
        ("input_layernorm", "self_attention", "mlp"),
        {"ln1": "input_layernorm", "attention": "self_attention", "mlp": "mlp"},
        _falcon_style,
    ),
    BlockShape(  # gpt_neo: attention is wrapped once more
        ("ln_1", "attn.attention", "ln_2", "mlp"),
        {"ln1": "ln_1", "attention": "attn.attention", "attn_out": "attn", "ln2": "ln_2", "mlp": "mlp"},
    ),
    BlockShape(("ln_1", "attn", "ln_2", "mlp"), {"ln1": "ln_1", "attention": "attn", "ln2": "ln_2", "mlp": "mlp"}),
    BlockShape(("ln_1", "attn", "mlp"), {"ln1": "ln_1", "attention": "attn", "mlp": "mlp"}, "parallel"),  # gptj
    BlockShape(  # phi
        ("input_layernorm", "self_attn", "mlp"),
        {"ln1": "input_layernorm", "attention": "self_attn", "mlp": "mlp"},
        "parallel",
    ),
    BlockShape(  # bert, roberta, electra
        ("attention.self", "attention.output.LayerNorm", "intermediate.dense", "output.LayerNorm"),
        {
            "attention": "attention.self", "o_proj": "attention.output.dense", "attn_out": "attention.output.dense",
            "ln1": "attention.output.LayerNorm", "up_proj": "intermediate.dense", "down_proj": "output.dense",
            "mlp_out": "output.dense", "ln2": "output.LayerNorm",
        },
        "post",
    ),
    BlockShape(  # esm: norms inside, additions inside the output modules
        ("attention.self", "attention.LayerNorm", "intermediate.dense", "output.dense", "LayerNorm"),
        {
            "ln1": "attention.LayerNorm", "attention": "attention.self", "o_proj": "attention.output.dense",
            "attn_out": "attention.output.dense", "ln2": "LayerNorm", "up_proj": "intermediate.dense",
            "down_proj": "output.dense", "mlp_out": "output.dense",
        },
    ),
    BlockShape(  # distilbert
        ("attention", "sa_layer_norm", "ffn", "output_layer_norm"),
        {"attention": "attention", "ln1": "sa_layer_norm", "mlp": "ffn", "ln2": "output_layer_norm"},
        "post",
    ),
    BlockShape(  # modernbert
        ("attn_norm", "attn", "mlp_norm", "mlp"),
        {"ln1": "attn_norm", "attention": "attn", "ln2": "mlp_norm", "mlp": "mlp"},
    ),
    BlockShape(  # vit, dinov2
        ("layernorm_before", "attention", "layernorm_after", "mlp"),
        {"ln1": "layernorm_before", "attention": "attention", "ln2": "layernorm_after", "mlp": "mlp"},
    ),
    BlockShape(  # clip, siglip
        ("layer_norm1", "self_attn", "layer_norm2", "mlp"),
        {"ln1": "layer_norm1", "attention": "self_attn", "ln2": "layer_norm2", "mlp": "mlp"},
    ),
    BlockShape(  # whisper decoder and other speech decoders
        ("self_attn", "self_attn_layer_norm", "encoder_attn", "fc1", "fc2", "final_layer_norm"),
        {
            "ln1": "self_attn_layer_norm", "attention": "self_attn", "cross": "encoder_attn",
            "ln_cross": "encoder_attn_layer_norm", "ln2": "final_layer_norm",
            "up_proj": "fc1", "down_proj": "fc2", "mlp_out": "fc2",
        },
    ),
    BlockShape(  # opt, whisper encoder
        ("self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"),
        {
            "ln1": "self_attn_layer_norm", "attention": "self_attn", "ln2": "final_layer_norm", "up_proj": "fc1",
            "down_proj": "fc2", "mlp_out": "fc2",
        },
        _opt_style,
    ),
    BlockShape(  # t5 decoder
        ("layer.0.SelfAttention", "layer.1.EncDecAttention", "layer.2.DenseReluDense"),
        {
            "ln1": "layer.0.layer_norm", "attention": "layer.0.SelfAttention", "cross": "layer.1.EncDecAttention",
            "ln_cross": "layer.1.layer_norm", "ln2": "layer.2.layer_norm", "mlp": "layer.2.DenseReluDense",
        },
    ),
    BlockShape(  # t5 encoder
        ("layer.0.SelfAttention", "layer.1.DenseReluDense"),
        {
            "ln1": "layer.0.layer_norm", "attention": "layer.0.SelfAttention", "ln2": "layer.1.layer_norm",
            "mlp": "layer.1.DenseReluDense",
        },
    ),
    BlockShape(  # wav2vec2, hubert with norms first
        ("attention", "layer_norm", "feed_forward", "final_layer_norm"),
        {"ln1": "layer_norm", "attention": "attention", "ln2": "final_layer_norm", "mlp": "feed_forward"},
        block="StableLayerNorm",
    ),
    BlockShape(  # wav2vec2, hubert
        ("attention", "layer_norm", "feed_forward", "final_layer_norm"),
        {"ln1": "layer_norm", "attention": "attention", "ln2": "final_layer_norm", "mlp": "feed_forward"},
        "post",
    ),
    BlockShape(("norm", "mixer"), {"ln1": "norm", "mixer": "mixer"}),  # mamba
)  # fmt: skip

# Projections, looked for below the module that plays the first-named role, in this order.
PROJECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "o_proj": ("attention", ("o_proj", "out_proj", "c_proj", "dense", "out_lin", "Wo", "o")),
    "q_proj": ("attention", ("q_proj", "q_b_proj", "q_lin", "query", "q")),
    "k_proj": ("attention", ("k_proj", "k_lin", "key", "k")),
    "v_proj": ("attention", ("v_proj", "v_lin", "value", "v")),
    "qkv": ("attention", ("c_attn", "query_key_value", "qkv_proj", "Wqkv")),
    "cross_o_proj": ("cross", ("o_proj", "out_proj", "o")),
    "cross_q_proj": ("cross", ("q_proj", "q")),
    "cross_k_proj": ("cross", ("k_proj", "k")),
    "cross_v_proj": ("cross", ("v_proj", "v")),
    "gate_proj": ("mlp", ("gate_proj", "wi_0")),
    "up_proj": (
        "mlp",
        ("up_proj", "wi_1", "wi", "c_fc", "dense_h_to_4h", "fc_in", "fc1", "lin1", "intermediate_dense"),
    ),
    "gate_up": ("mlp", ("gate_up_proj", "Wi")),
    "down_proj": (
        "mlp",
        ("down_proj", "wo", "c_proj", "dense_4h_to_h", "fc_out", "fc2", "lin2", "output_dense", "Wo"),
    ),
    "router": ("mlp", ("router", "gate")),
    "experts": ("mlp", ("experts",)),
}

# Every part a module can play.
ROLES = frozenset({role for shape in SHAPES for role in shape.roles} | set(PROJECTIONS))

# Fused projections: how one head's parts lie in the output.
FUSED_PER_HEAD = ("query_key_value",)

EMBED_NAMES = (
    "embed_tokens", "wte", "embed_in", "word_embeddings", "embeddings", "tok_embeddings", "token_embedding",
    "feature_projection",
)  # fmt: skip
FINAL_NORM_NAMES = (
    "norm", "ln_f", "final_layer_norm", "final_norm", "final_layernorm", "norm_f", "layernorm", "post_layernorm",
    "layer_norm", "emb_layer_norm_after",
)  # fmt: skip
HEAD_COUNT_NAMES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "encoder_attention_heads")
