"""Folders with a file for each layer, as cross-layer transcoders and sets of transcoders are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, CorruptFile
from mechanome.dictionaries.cross_layer import CrossLayerTranscoder
from mechanome.dictionaries.formats.hooks import Told
from mechanome.dictionaries.spec import DictionarySpec


def layer_files(path: Path, stem: str) -> list[Path]:
    """The files `stem.safetensors` of layers 0, 1, ... in order; empty where there are none.

    Args:
        path: the folder.
        stem: the name, with `{n}` where the layer stands.

    Raises:
        CorruptFile: a layer is missing.
    """
    pattern = re.compile(re.escape(stem).replace(re.escape("{n}"), r"(\d+)") + r"\.safetensors")
    found = {int(match[1]): file for file in path.iterdir() if (match := pattern.fullmatch(file.name))}
    if missing := sorted(set(range(max(found, default=-1) + 1)) - found.keys()):
        raise CorruptFile(str(path), f"layer {missing[0]} is missing", "download it whole")
    return [found[layer] for layer in sorted(found)]


def stacked(
    path: Path,
    parts: Sequence[Mapping[str, Tensor]],
    told: Told,
    sites: tuple[tuple[str, ...], tuple[str, ...]],
    provenance: Mapping[str, Any],
    *,
    cross: bool,
) -> CrossLayerTranscoder:
    """One dictionary of many layers.

    Args:
        path: for errors.
        parts: tensors of each layer: `reads [latent, d]`, `read_bias`, `threshold`, `writes [latent, reach, d]`,
            `write_bias [d]`, perhaps `skips [d, d]`.
        told: must be empty, since a site is one of many.
        sites: where each layer reads, and where each writes; empty where nobody knows.
        provenance: of the spec.
        cross: whether a layer writes to later ones too.

    Raises:
        BadInput: the caller named a site.
    """
    if told != Told():
        raise BadInput(str(path), "it has a site for each layer", "leave site out")
    layers, skip = len(parts), "skips" in parts[0]
    (latents, d), d_out = parts[0]["reads"].shape, len(parts[0]["write_bias"])
    spec = DictionarySpec(
        CrossLayerTranscoder.architecture,
        layers * d,
        layers * d_out,
        layers * latents,
        *sites,
        site_widths=(d_out,) * layers,
        settings={"cross": cross, "skip": skip},
        provenance={key: value for key, value in provenance.items() if value is not None},
    )
    stack = CrossLayerTranscoder(spec)
    names = [name for name in parts[0] if name != "writes"]
    weights = {name: torch.stack([part[name] for part in parts]) for name in names}
    weights |= {f"writes.{layer}": part["writes"] for layer, part in enumerate(parts)}
    norms = {name: value for name, value in stack.state_dict().items() if name.startswith("norm")}
    stack.load_state_dict({**norms, **weights})
    return stack.eval().requires_grad_(False)
