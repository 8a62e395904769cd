"""sparsify (EleutherAI): `cfg.json` and `sae.safetensors` in a folder named after the module.

Weights are `encoder.weight [latent, d]`, `encoder.bias`, `W_dec [latent, d]`, `b_dec`, `W_skip [d, d]`. The input is
centered unless `transcode`; `num_latents: 0` means `d_in * expansion_factor`.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from mechanome.core.errors import NotServed
from mechanome.core.formats import write_json
from mechanome.dictionaries.architectures import GroupMax, Recipe, TopK
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, site_of_submodule
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import json_file, safetensors_file

_ACTIVATIONS = {"topk": TopK, "groupmax": GroupMax}


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return (path / "cfg.json").is_file() and (path / "sae.safetensors").is_file()


def read(path: Path, told: Told) -> Dictionary:
    """A folder of sparsify.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, or tensors that do not fit the configuration.
        BadInput: another activation, or a k that cannot be.
    """
    settings, tensors = json_file(path / "cfg.json"), safetensors_file(path / "sae.safetensors")
    d = settings.count("d_in")
    width = settings.get("num_latents", 0, int) or d * settings.count("expansion_factor")
    recipe = settings.choose("activation", _ACTIVATIONS, "activation", default="topk")
    transcoder, skip = settings.get("transcode", False, bool), settings.get("skip_connection", False, bool)
    written = site_of_submodule(path.name)
    return Parts(
        recipe(width, k=settings.count("k")),
        tensors.take("encoder.weight", width, d),
        tensors.take("encoder.bias", width),
        tensors.take("W_dec", width, d),
        tensors.take("b_dec", d),
        centered=not transcoder,
        transcoder=transcoder or skip,
        skip=tensors.take("W_skip", d, d) if skip else None,
        provenance={"format": "sparsify", "module": path.name},
        **told.ends(
            lambda: _input_of(written) if transcoder else written, (lambda: written) if transcoder or skip else None
        ),
    ).dictionary()


def write(dictionary: Dictionary, folder: Path) -> None:
    """Fill a folder that sparsify loads.

    Raises:
        NotServed: another code than TopK or GroupMax, or a transcoder between different widths.
    """
    parts = Parts.of(dictionary).folded()
    recipe, d = parts.recipe, parts.w_enc.shape[1]
    names: dict[type[Recipe], str] = {kind: name for name, kind in _ACTIVATIONS.items()}
    if not isinstance(recipe, TopK) or type(recipe) not in names or parts.rows or parts.w_dec.shape[1] != d:
        what = f"a dictionary of '{dictionary.spec.architecture}' from width {d} to {parts.w_dec.shape[1]} in sparsify"
        raise NotServed(what, "it has TopK and GroupMax of one width only", "write format='mechanome'")
    parts = parts.centering(not parts.transcoder)
    content = {
        "activation": names[type(recipe)],
        "expansion_factor": max(1, len(parts.w_enc) // d),
        "normalize_decoder": True,
        "num_latents": len(parts.w_enc),
        "k": recipe.k,
        "multi_topk": False,
        "skip_connection": parts.skip is not None,
        "transcode": parts.transcoder,
        "d_in": d,
    }
    stored = {"encoder.weight": parts.w_enc, "encoder.bias": parts.b_enc, "W_dec": parts.w_dec, "b_dec": parts.b_dec}
    stored |= {} if parts.skip is None else {"W_skip": parts.skip}
    save_file({name: t.float().cpu().contiguous() for name, t in stored.items()}, folder / "sae.safetensors")
    write_json(folder / "cfg.json", content)


def _input_of(site: str | None) -> str | None:
    """Where a transcoder of a module's output reads: the module's input, known here for MLPs."""
    point, _, layer = (site or "").partition(".")
    return f"ln2.{layer}" if point == "mlp_out" else None
