"""A tiny llama and the GGUF file llama.cpp would make of it."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(tied: bool = True) -> LlamaForCausalLM:
    """Three layers, 4 heads on 2 KV heads, weights peaked enough that a wrong row order shows."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4).add_(1.0 if parameter.dim() == 1 else 0.0)
    return model


TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789abcdefgh", "Ġ", "ab", "Ġa", "abc", "Ċ"]
MERGES = ["a b", "Ġ a", "ab c"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_bytes(model: LlamaForCausalLM, folder: Path, quantize: bool = False) -> bytes:
    """The model as llama.cpp's converter writes it: rotary rows interleaved, matrices optionally in Q8_0."""
    config = model.config
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, value in model.state_dict().items():
        array = value.numpy()
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            part = _NAMES[rest.removesuffix(".weight")]
            if part in heads:  # first and second half of a head, taken in turn
                rows = array.reshape(heads[part], 2, -1, array.shape[1])
                array = rows.swapaxes(1, 2).reshape(array.shape)
            target = f"blk.{layer}.{part}.weight"
        elif name == "lm_head.weight":
            if config.tie_word_embeddings:
                continue
            target = "output.weight"
        else:
            target = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
        if quantize and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(target, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()
