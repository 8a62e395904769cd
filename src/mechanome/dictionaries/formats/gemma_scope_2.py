"""Gemma Scope 2: `config.json` and `params.safetensors`, or a folder of `layer_{n}.safetensors` (cross-layer).

JumpReLU with w_enc `[d, latent]`, w_dec `[latent, d]` (of cross-layer ones `[latent, layer, d]`), b_enc, b_dec,
threshold, `affine_skip_connection [d_in, d_out]`. Places are Hugging Face modules (`hf_hook_point_in`,
`hf_hook_point_out`).
"""

from __future__ import annotations

from pathlib import Path

from mechanome.dictionaries.architectures import JumpReLU
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, site_of_module
from mechanome.dictionaries.formats.layers import layer_files, stacked
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import json_file, safetensors_file


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    config = path / "config.json"
    if not config.is_file() or not ((path / "params.safetensors").is_file() or layer_files(path, "layer_{n}")):
        return False
    return json_file(config).content.get("architecture") == "jump_relu"


def read(path: Path, told: Told) -> Dictionary:
    """A folder of Gemma Scope 2.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, or tensors that do not fit together.
        BadInput: another architecture; layers missing.
    """
    settings = json_file(path / "config.json")
    settings.choose("architecture", {"jump_relu": None}, "architecture")
    origin = {"format": "gemma_scope_2", "model": settings.get("model_name", None, str)}
    if not (path / "params.safetensors").is_file():
        return _cross_layer(path, told, origin)
    tensors = safetensors_file(path / "params.safetensors")
    d_in, width = tensors.take("w_enc", None, None).shape
    d_out = tensors.take("w_dec", width, None).shape[1]
    place, place_out = (settings.get(f"hf_hook_point_{end}", None, str) for end in ("in", "out"))
    transcoder = place_out is not None and place_out != place
    skip = "affine_skip_connection"
    return Parts(
        JumpReLU(width),
        tensors.take("w_enc", d_in, width).T.contiguous(),
        tensors.take("b_enc", width),
        tensors.take("w_dec", width, d_out),
        tensors.take("b_dec", d_out),
        centered=False,
        selector={"threshold": tensors.take("threshold", width).clamp_min(0)},
        transcoder=transcoder or skip in tensors,
        skip=tensors.take(skip, d_in, d_out).T.contiguous() if skip in tensors else None,
        provenance=origin,
        **told.ends(lambda: site_of_module(place), (lambda: site_of_module(place_out)) if transcoder else None),
    ).dictionary()


def _cross_layer(path: Path, told: Told, origin: dict[str, str | None]) -> Dictionary:
    files = [safetensors_file(file) for file in layer_files(path, "layer_{n}")]
    d, latents = files[0].take("w_enc", None, None).shape
    layers = len(files)
    parts = []
    for layer, tensors in enumerate(files):
        part = {
            "reads": tensors.take("w_enc", d, latents).T,
            "read_bias": tensors.take("b_enc", latents),
            "threshold": tensors.take("threshold", latents).clamp_min(0),
            # The file has room for earlier layers too, which a latent cannot reach.
            "writes": tensors.take("w_dec", latents, layers, d)[:, layer:],
            "write_bias": tensors.take("b_dec", d),
        }
        if "affine_skip_connection" in tensors:
            part["skips"] = tensors.take("affine_skip_connection", d, d).T
        parts.append(part)
    sites = tuple(tuple(f"{point}.{layer}" for layer in range(layers)) for point in ("ln2", "mlp_out"))
    return stacked(path, parts, told, (sites[0], sites[1]), origin, cross=True)
