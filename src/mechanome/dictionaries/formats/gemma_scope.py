"""Gemma Scope 1 (Lieberum et al. 2024): `params.npz`.

It holds W_enc `[d, latent]`, W_dec `[latent, d]`, b_enc, b_dec and threshold of a JumpReLU; nothing is taken from the
input. The site is not in the file: it is read from the folders' names
(`gemma-scope-2b-pt-res/layer_20/width_16k/average_l0_71`) or said by the caller.
"""

from __future__ import annotations

import re
from pathlib import Path

from mechanome.dictionaries.architectures import JumpReLU
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import npz_file

_POINTS = {"res": "resid_post", "mlp": "mlp_out", "att": "z"}
_RELEASE = re.compile(r"gemma-scope-(\w+)-(pt|it)-(res|mlp|att|transcoders)")
_LAYER = re.compile(r"layer_(\d+)")


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return _file(path).suffix == ".npz" and _file(path).is_file()


def read(path: Path, told: Told) -> Dictionary:
    """A folder with a `params.npz`, or that file.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, or tensors that do not fit together.
    """
    file = _file(path)
    release, layer = _RELEASE.search(str(file.absolute())), _LAYER.search(str(file.absolute()))
    tensors = npz_file(file)
    d_in, width = tensors.take("w_enc", None, None).shape
    d_out = tensors.take("w_dec", width, None).shape[1]
    transcoder = d_in != d_out or told.site_out is not None or (release is not None and release[3] == "transcoders")

    def site(point: str | None) -> str | None:
        return f"{point}.{layer[1]}" if point and layer else None

    found = "ln2" if transcoder else _POINTS.get(release[3]) if release else None
    origin = {} if release is None else {"model": f"google/gemma-2-{release[1]}{'-it' * (release[2] == 'it')}"}
    return Parts(
        JumpReLU(width),
        tensors.take("w_enc", d_in, width).T.contiguous(),
        tensors.take("b_enc", width),
        tensors.take("w_dec", width, d_out),
        tensors.take("b_dec", d_out),
        centered=False,
        selector={"threshold": tensors.take("threshold", width).clamp_min(0)},
        transcoder=transcoder,
        provenance={"format": "gemma_scope", **origin},
        **told.ends(lambda: site(found), (lambda: site("mlp_out")) if transcoder else None),
    ).dictionary()


def _file(path: Path) -> Path:
    return path / "params.npz" if path.is_dir() else path
