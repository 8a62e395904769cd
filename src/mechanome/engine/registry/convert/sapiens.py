"""Sapiens, small masked language models of human antibody chains: fairseq RoBERTa to transformers' RoBERTa."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import RobertaConfig, RobertaForMaskedLM

from mechanome.core.errors import CorruptFile

from ..archive import WheelFiles
from ..torch_files import load_pinned
from .folder import write_transformers
from .residues import residue_tokenizer

_EMBEDDINGS = {
    "embed_tokens.weight": "word_embeddings.weight",
    "embed_positions.weight": "position_embeddings.weight",
    "emb_layer_norm.weight": "LayerNorm.weight",
    "emb_layer_norm.bias": "LayerNorm.bias",
}
_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
_BODY, _HEAD = "decoder.sentence_encoder.", "decoder.lm_head."
_OUTPUT = _HEAD + "weight"


def convert_sapiens(files: WheelFiles, folder: Path, scratch: Path, *, chain: str) -> tuple[str, ...]:
    """Convert the checkpoint of one chain, ``vh`` or ``vl``."""
    name = f"checkpoint_{chain}.pt"
    checkpoint = load_pinned(files.read(name), name, allow=[argparse.Namespace])
    weights, settings = checkpoint["model"], checkpoint["args"]
    # fairseq's fixed symbols come first, then the dictionary file, then the mask.
    letters = [line.split()[0] for line in files.read("dict.txt").decode().splitlines() if line.strip()]
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"]
    config = RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=settings.encoder_embed_dim,
        num_hidden_layers=settings.encoder_layers,
        num_attention_heads=settings.encoder_attention_heads,
        intermediate_size=settings.encoder_ffn_embed_dim,
        hidden_act=settings.activation_fn,
        max_position_embeddings=settings.max_positions + 2,  # positions start after the padding id
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    if not torch.equal(weights[_OUTPUT], weights[_BODY + "embed_tokens.weight"]):
        raise CorruptFile(name, "the output matrix is expected to equal the embeddings")
    tensors = {_rename(key): value for key, value in weights.items() if key != _OUTPUT}
    # RoBERTa in transformers adds a token-type embedding; a zero row makes it the same function.
    tensors["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, config.hidden_size)
    write_transformers(folder, RobertaForMaskedLM, config, tensors)
    residue_tokenizer(
        vocabulary,
        start="<s>",
        end="</s>",
        pad="<pad>",
        unknown="<unk>",
        mask="<mask>",
        max_length=settings.max_positions,
    ).save_pretrained(folder)
    return ("fairseq weights under transformers' names; token-type embedding zero",)


def _rename(key: str) -> str:
    if key.startswith(_HEAD):
        return "lm_head." + key.removeprefix(_HEAD)
    part = key.removeprefix(_BODY)
    if part in _EMBEDDINGS:
        return f"roberta.embeddings.{_EMBEDDINGS[part]}"
    _, layer, rest = part.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"roberta.encoder.layer.{layer}.{_LAYER[module]}.{kind}"
