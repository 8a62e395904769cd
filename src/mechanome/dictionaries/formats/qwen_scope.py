"""Qwen Scope: `layer{n}.sae.pt`, a torch checkpoint of W_enc `[latent, d]`, W_dec `[d, latent]`, b_enc, b_dec.

TopK on the residual stream; nothing is taken from the input. The number of active latents stands in the name of the
repository alone (`SAE-Res-Qwen3-1.7B-Base-W32K-L0_50`), so the file must lie in a folder of that name.
"""

from __future__ import annotations

import re
from pathlib import Path

from mechanome.core.errors import BadInput
from mechanome.dictionaries.architectures import TopK
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import torch_file

_FILE = re.compile(r"layer(\d+)\.sae\.pt")
_REPOSITORY = re.compile(r"SAE-Res-(.+)-W\d+K-L0_(\d+)")


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return path.is_file() and _FILE.fullmatch(path.name) is not None


def read(path: Path, told: Told) -> Dictionary:
    """One layer's file.

    Raises:
        BadInput: another file name, or no folder that says how many latents are active.
        CorruptFile, ShapeMismatch, NotFinite: damaged, code in the checkpoint, or tensors that do not fit together.
    """
    layer, repository = _FILE.fullmatch(path.name), _REPOSITORY.search(str(path.absolute().parent))
    if layer is None or repository is None:
        why = "the number of active latents stands in the names of files and folders alone"
        raise BadInput(str(path), why, "keep them as released: SAE-Res-...-W32K-L0_50/layer0.sae.pt")
    tensors = torch_file(path)
    width, d = tensors.take("W_enc", None, None).shape
    return Parts(
        TopK(width, k=int(repository[2])),
        tensors.take("W_enc", width, d),
        tensors.take("b_enc", width),
        tensors.take("W_dec", d, width).T.contiguous(),
        tensors.take("b_dec", d),
        centered=False,
        provenance={"format": "qwen_scope", "model": f"Qwen/{repository[1]}"},
        **told.ends(lambda: f"resid_post.{layer[1]}"),
    ).dictionary()
