"""Llama Scope 1 (He et al. 2024): `hyperparams.json` and `checkpoints/final.safetensors`.

Weights (`encoder.weight [latent, d]`, `decoder.weight [d, latent]`) live where mean norms are sqrt(d), with a norm for
the input and another for the output; the one `jump_relu_threshold` is stored in units of raw activations. A loader that
scales a transcoder's output back by the norm of its input makes reconstructions too large by the ratio of the two.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from mechanome.core.errors import CorruptFile
from mechanome.dictionaries.architectures import JumpReLU
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, site_of_hook
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import json_file, safetensors_file
from mechanome.dictionaries.norm import Affine

_WEIGHTS = Path("checkpoints") / "final.safetensors"


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return (path / "hyperparams.json").is_file() and (path / _WEIGHTS).is_file()


def read(path: Path, told: Told) -> Dictionary:
    """A folder of Llama Scope 1.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, or tensors that do not fit the configuration.
        BadInput: another activation function, or norms that are not positive.
    """
    settings, tensors = json_file(path / "hyperparams.json"), safetensors_file(path / _WEIGHTS)
    settings.choose("act_fn", {"jumprelu": None}, "activation")
    settings.choose("norm_activation", {"dataset-wise": None}, "normalization", default="dataset-wise")
    d, width = settings.count("d_model"), settings.count("d_sae")
    norms = settings.part("dataset_average_activation_norm")
    norm, norm_out = (unit_norm(d, norms.take(end, (int, float)), path) for end in ("in", "out"))
    hook, hook_out = settings.take("hook_point_in", str), settings.take("hook_point_out", str)
    threshold = float(settings.take("jump_relu_threshold", (int, float))) * float(norm.scale)
    transcoder = hook != hook_out
    return Parts(
        JumpReLU(width),
        tensors.take("encoder.weight", width, d),
        tensors.take("encoder.bias", width),
        tensors.take("decoder.weight", d, width).T.contiguous(),
        tensors.take("decoder.bias", d),
        centered=settings.get("apply_decoder_bias_to_pre_encoder", False, bool),
        selector={"threshold": torch.full((width,), max(threshold, 0.0))},
        transcoder=transcoder,
        norm=norm,
        norm_out=norm_out,
        provenance={"format": "llama_scope", "model": "meta-llama/Llama-3.1-8B", "hook": hook},
        **told.ends(lambda: site_of_hook(hook), (lambda: site_of_hook(hook_out)) if transcoder else None),
    ).dictionary()


def unit_norm(d: int, mean_norm: float, path: Path) -> Affine:
    """The scale that makes a mean norm sqrt(d).

    Raises:
        CorruptFile: the mean norm is not a positive number.
    """
    if not (math.isfinite(mean_norm) and mean_norm > 0):
        raise CorruptFile(str(path), f"its average activation norm is {mean_norm}", "download or write it again")
    return Affine(torch.zeros(d), torch.tensor(math.sqrt(d) / mean_norm), "scale")
