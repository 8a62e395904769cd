"""SAELens 6: `cfg.json` and `sae_weights.safetensors` (Bloom et al.).

Weights are `W_enc [d, latent]`, `W_dec [latent, d]`, `b_enc` (of gated ones `b_gate`, `r_mag`, `b_mag`), `b_dec`,
`threshold`, `W_skip [d_out, d_in]`. BatchTopK and Matryoshka are saved as JumpReLU, there and here. Configurations from
before version 6, which hold hooks at the top, are read too.

What SAELens cannot say: it has no norm, so a norm is folded into the weights; activations that were scaled by their
expected norm need the scale, which lies beside the weights in `activation_scaler.json` or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.core.formats import write_json
from mechanome.dictionaries.architectures import AbsTopK, BatchTopK, Gated, JumpReLU, Recipe, ReLU, TopK
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, hook_of_site, one_site, site_of_hook
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import Settings, Tensors, json_file, safetensors_file
from mechanome.dictionaries.norm import Affine
from mechanome.engine.site import parse

SPEAKS = "6.54.12"
"""The release whose configuration is written; 6 and later read it as it is."""

_ROWS = {"layer_norm": "layer", "constant_norm_rescale": "length"}
_Code = tuple[Recipe, dict[str, Tensor]]


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return (path / "cfg.json").is_file() and (path / "sae_weights.safetensors").is_file()


def read(path: Path, told: Told) -> Dictionary:
    """A folder of SAELens.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, or tensors that do not fit the configuration.
        BadInput: another architecture; a scale or a site that the files do not tell.
    """
    settings, tensors = json_file(path / "cfg.json"), safetensors_file(path / "sae_weights.safetensors")
    about = Settings(settings.path, {**settings.content, **settings.get("metadata", {}, dict)})
    d_in, width = settings.count("d_in"), settings.count("d_sae")
    name = settings.get("architecture", "standard", str)
    if about.get("activation_fn_str", about.get("activation_fn", "relu")) == "topk":
        name = "topk"  # before version 6, TopK was an activation function
    transcoder, skip = name.endswith("transcoder"), name.endswith("skip_transcoder")
    code = Settings(settings.path, {"architecture": name}).choose("architecture", _READERS, "architecture")
    d_out = settings.count("d_out") if transcoder else d_in
    norm, rows = _norm(settings, path, d_in)
    if rows and transcoder:
        raise NotServed(f"{path}", "a transcoder whose rows are normalized has no output scale", "use another")
    recipe, selector = code(settings, tensors, width)
    hook_out = about.get("hook_name_out", None, str)
    ends = told.ends(
        lambda: _site(about),
        (lambda: site_of_hook(hook_out)) if transcoder else None,
    )
    known = {"model": about.get("model_name", None, str), "hook": about.get("hook_name", None, str)}
    w_dec = tensors.take("W_dec", width, d_out)
    # Rescaled codes are |W_dec,j| times as large, and selected so; directions of length 1 say the same.
    rescaled = settings.get("rescale_acts_by_decoder_norm", False, bool)
    lengths = w_dec.norm(dim=1) if rescaled else torch.ones(width)
    return Parts(
        recipe,
        tensors.take("W_enc", d_in, width).T * lengths[:, None],
        tensors.take("b_gate" if name == "gated" else "b_enc", width) * lengths,
        w_dec / lengths[:, None],
        tensors.take("b_dec", d_out),
        centered=not transcoder and settings.get("apply_b_dec_to_input", True, bool),
        selector=selector,
        transcoder=transcoder,
        skip=tensors.take("W_skip", d_out, d_in) if skip else None,
        norm=norm,
        norm_out=norm,
        rows=rows,
        provenance={"format": "saelens", **{key: value for key, value in known.items() if value}},
        **ends,
    ).dictionary()


def write(dictionary: Dictionary, folder: Path) -> None:
    """Fill a folder that SAELens loads.

    Raises:
        NotServed: a dictionary that SAELens has no architecture for.
    """
    parts = Parts.of(dictionary).folded()
    name, settings, tensors = _written(parts)
    site_in, site_out = (one_site(ends) for ends in (parts.sites_in, parts.sites_out))
    hook = hook_of_site(site_in and site_in.whole) or parts.provenance.get("hook")
    head = site_in.head if site_in else None
    about = {"sae_lens_version": SPEAKS, "model_name": parts.provenance.get("model"), "hook_name": hook}
    about |= {"hook_head_index": head}
    about |= {"hook_name_out": hook_of_site(site_out)} if parts.transcoder else {}
    content = {
        "architecture": name,
        "d_in": parts.w_enc.shape[1],
        "d_sae": len(parts.w_enc),
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": parts.centered,
        "normalize_activations": {own: theirs for theirs, own in _ROWS.items()}.get(parts.rows, "none"),
        "reshape_activations": "hook_z" if hook and hook.endswith("hook_z") and head is None else "none",
        "metadata": about,
        **settings,
    }
    stored = {"W_enc": parts.w_enc.T, "W_dec": parts.w_dec, "b_dec": parts.b_dec, **tensors}
    stored |= {} if parts.skip is None else {"W_skip": parts.skip}
    save_file({key: t.float().cpu().contiguous() for key, t in stored.items()}, folder / "sae_weights.safetensors")
    write_json(folder / "cfg.json", content)


def writable(dictionary: Dictionary) -> bool:
    """Whether SAELens has an architecture for a dictionary."""
    try:
        _written(Parts.of(dictionary))
    except NotServed:
        return False
    return True


def _written(parts: Parts) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """SAELens' architecture of a dictionary, with its settings and tensors."""
    for kind, (name, in_transcoders, rest) in _WRITERS.items():
        if type(parts.recipe) is kind or (kind is BatchTopK and isinstance(parts.recipe, BatchTopK)):
            if parts.transcoder and not in_transcoders:
                break
            settings, tensors = rest(parts)
            if not parts.transcoder:
                return name, settings, tensors
            stem = {"standard": "", "jumprelu": "jumprelu_"}[name]
            skip = "" if parts.skip is None else "skip_"
            return f"{stem}{skip}transcoder", {**settings, "d_out": parts.w_dec.shape[1]}, tensors
    what = f"a {'transcoder' if parts.transcoder else 'dictionary'} of '{parts.recipe.architecture}' in SAELens"
    raise NotServed(what, "it has no such architecture", "write format='mechanome'")


def _norm(settings: Settings, path: Path, d_in: int) -> tuple[Affine | None, str]:
    """The norm of a folder, and how it normalizes rows."""
    kind = settings.get("normalize_activations", "none", (str, bool))
    kind = {True: "expected_average_only_in", False: "none"}.get(kind, kind)
    if kind in (*_ROWS, "none"):
        return None, _ROWS.get(kind, "")
    scaler, whitening = path / "activation_scaler.json", path / "activation_whitening.safetensors"
    if kind == "expected_average_only_in" and scaler.is_file():
        scale = json_file(scaler).take("scaling_factor", (int, float))
        return Affine(torch.zeros(d_in), torch.tensor(float(scale)), "scale"), ""
    if kind == "covariance_whitening" and whitening.is_file():
        found = safetensors_file(whitening)
        return Affine(found.take("mean", d_in), found.take("matrix", d_in, d_in), "whiten"), ""
    why = f"it was trained on activations normalized by '{kind}', and the numbers are not beside it"
    raise BadInput(str(path), why, "save the final dictionary, with them folded, or put the trainer's files beside it")


def _site(about: Settings) -> str | None:
    """Where it reads; one head where it was trained on one."""
    site = site_of_hook(about.get("hook_name", about.get("hook_point", None, str), str))
    head = about.get("hook_head_index", None, int)
    return site if site is None or head is None else str(parse(f"{site}.h{head}"))


def _relu(settings: Settings, tensors: Tensors, width: int) -> _Code:
    return ReLU(width), {}


def _jump(settings: Settings, tensors: Tensors, width: int) -> _Code:
    # Below 0 a threshold changes nothing, since values are rectified.
    return JumpReLU(width), {"threshold": tensors.take("threshold", width).clamp_min(0)}


def _gated(settings: Settings, tensors: Tensors, width: int) -> _Code:
    return Gated(width), {name: tensors.take(name, width) for name in ("r_mag", "b_mag")}


def _k(settings: Settings) -> int:
    return (settings if "k" in settings.content else settings.part("activation_fn_kwargs")).count("k")


def _topk(settings: Settings, tensors: Tensors, width: int) -> _Code:
    return TopK(width, k=_k(settings)), {}


def _abstopk(settings: Settings, tensors: Tensors, width: int) -> _Code:
    return AbsTopK(width, k=_k(settings)), {}


_READERS: dict[str, Callable[[Settings, Tensors, int], _Code]] = {
    "standard": _relu,
    "topk": _topk,
    "abstopk": _abstopk,
    "jumprelu": _jump,
    "gated": _gated,
    "transcoder": _relu,
    "skip_transcoder": _relu,
    "jumprelu_transcoder": _jump,
    "jumprelu_skip_transcoder": _jump,
}
_Written = Callable[[Parts], tuple[dict[str, Any], dict[str, Tensor]]]
_WRITERS: dict[type[Recipe], tuple[str, bool, _Written]] = {
    ReLU: ("standard", True, lambda p: ({}, {"b_enc": p.b_enc})),
    TopK: ("topk", False, lambda p: ({"k": _active(p)}, {"b_enc": p.b_enc})),
    AbsTopK: ("abstopk", False, lambda p: ({"k": _active(p)}, {"b_enc": p.b_enc})),
    JumpReLU: ("jumprelu", True, lambda p: ({}, {"b_enc": p.b_enc, "threshold": _thresholds(p)})),
    BatchTopK: ("jumprelu", True, lambda p: ({}, {"b_enc": p.b_enc, "threshold": _thresholds(p)})),
    Gated: ("gated", False, lambda p: ({}, {"b_gate": p.b_enc, **p.selector})),
}


def _active(parts: Parts) -> int:
    assert isinstance(parts.recipe, TopK)
    return parts.recipe.k


def _thresholds(parts: Parts) -> Tensor:
    return parts.selector["threshold"].clamp_min(0).expand(len(parts.w_enc))
