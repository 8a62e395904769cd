"""dictionary_learning (Marks, Karvonen): `config.json` and `ae.pt`, a torch checkpoint.

`trainer.dict_class` in the configuration says which class it is; each has names of its own for the same tensors. Most
take `b_dec` from the input first; `AutoEncoderNew` and `JumpReluAutoEncoder` do not. BatchTopK and Matryoshka encode by
a threshold (-1 while none was set), TopK by the k largest. The tool's loader rescales an `AutoEncoder` to directions of
length 1, which makes codes larger; the same is done here, so that codes agree.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import NotServed
from mechanome.core.files import atomic_write
from mechanome.core.formats import write_json
from mechanome.dictionaries.architectures import BatchTopK, Gated, JumpReLU, Matryoshka, Recipe, ReLU, TopK
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, one_site
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import Settings, Tensors, json_file, torch_file


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return (path / "config.json").is_file() and (path / "ae.pt").is_file()


def read(path: Path, told: Told) -> Dictionary:
    """A folder of dictionary_learning.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, code in the checkpoint, or tensors that do not fit.
        BadInput: another class.
    """
    trainer, tensors = json_file(path / "config.json").part("trainer"), torch_file(path / "ae.pt")
    kind: _Class = trainer.choose("dict_class", CLASSES, "class")
    d, width = trainer.count("activation_dim"), trainer.count("dict_size")
    recipe, selector = kind.code(trainer, tensors, width)
    parts = Parts(
        recipe,
        _oriented(tensors, kind.encoder, width, d),
        tensors.take(kind.b_enc, width),
        _oriented(tensors, kind.decoder, width, d),
        tensors.take(kind.b_dec, d),
        centered=kind.centered,
        selector=selector,
        provenance=_origin(trainer),
        **told.ends(lambda: _site(trainer)),
    )
    if kind is CLASSES["AutoEncoder"]:
        lengths = parts.w_dec.norm(dim=1)
        own = {"w_enc": parts.w_enc * lengths[:, None], "w_dec": parts.w_dec / lengths[:, None]}
        parts = replace(parts, b_enc=parts.b_enc * lengths, **own)
    return parts.dictionary()


def write(dictionary: Dictionary, folder: Path) -> None:
    """Fill a folder that dictionary_learning loads.

    Raises:
        NotServed: a transcoder, or a code the tool has no class for.
    """
    parts = Parts.of(dictionary).folded()
    name = _WRITTEN.get(type(parts.recipe))
    if name is None or parts.transcoder or parts.rows:
        what = f"a dictionary of '{dictionary.spec.architecture}' in dictionary_learning"
        raise NotServed(what, "it has no such class", "write format='mechanome'")
    kind, width = CLASSES[name], len(parts.w_enc)
    parts = parts.centering(kind.centered)
    stored = {kind.b_enc: parts.b_enc, kind.b_dec: parts.b_dec, **kind.extra(parts)}
    for key, weight in ((kind.encoder, parts.w_enc), (kind.decoder, parts.w_dec)):
        transposed = (key == "W_enc") or (key == "decoder.weight")
        stored[key] = weight.T if transposed else weight
    site = one_site(parts.sites_in)
    trainer: dict[str, Any] = {
        "trainer_class": kind.trainer,
        "dict_class": name,
        "activation_dim": parts.w_enc.shape[1],
        "dict_size": width,
        "layer": None if site is None else site.layer,
        "lm_name": parts.provenance.get("model"),
        "submodule_name": None if site is None else str(site),
    }
    trainer |= {"k": parts.recipe.k} if isinstance(parts.recipe, TopK) else {}
    write_json(folder / "config.json", {"trainer": trainer, "buffer": {}})
    buffer = io.BytesIO()
    torch.save({key: value.cpu().clone().contiguous() for key, value in stored.items()}, buffer)
    with atomic_write(folder / "ae.pt") as handle:
        handle.write(buffer.getvalue())


def _oriented(tensors: Tensors, name: str, width: int, d: int) -> Tensor:
    """A weight as `[latent, d]`: `nn.Linear` keeps `[out, in]`, plain matrices multiply rows from the right."""
    if name in ("W_enc", "decoder.weight"):
        return tensors.take(name, d, width).T.contiguous()
    return tensors.take(name, width, d)


_POINTS = {"resid_post": "resid_post", "resid_pre": "resid_pre", "mlp_out": "mlp_out", "attn_out": "attn_out"}


def _site(trainer: Settings) -> str | None:
    """The site of `submodule_name` (`resid_post_layer_3`, or a site as written here); None where it is another."""
    name, layer = trainer.get("submodule_name", "", str), trainer.get("layer", None, int)
    point = name.partition("_layer_")[0].partition(".")[0]
    return f"{_POINTS[point]}.{layer}" if point in _POINTS and layer is not None else None


def _origin(trainer: Settings) -> dict[str, Any]:
    known = {"model": "lm_name", "module": "submodule_name", "seed": "seed"}
    found = {own: trainer.get(theirs, None) for own, theirs in known.items()}
    return {"format": "dictionary_learning", **{key: value for key, value in found.items() if value is not None}}


_Code = tuple[Recipe, Mapping[str, Tensor]]


def _nothing(parts: Parts) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class _Class:
    """One class of the tool.

    Args:
        trainer: the class that trains it.
        encoder, b_enc, decoder, b_dec: names of its tensors.
        centered: whether it takes `b_dec` from the input.
        code: the recipe and selector of its configuration and tensors.
        extra: further tensors it stores.
    """

    trainer: str
    encoder: str
    b_enc: str
    decoder: str
    b_dec: str
    centered: bool
    code: Callable[[Settings, Tensors, int], _Code]
    extra: Callable[[Parts], dict[str, Tensor]] = _nothing


def _relu(trainer: Settings, tensors: Tensors, width: int) -> _Code:
    return ReLU(width), {}


def _gated(trainer: Settings, tensors: Tensors, width: int) -> _Code:
    return Gated(width), {"r_mag": tensors.take("r_mag", width), "b_mag": tensors.take("mag_bias", width)}


def _jump(trainer: Settings, tensors: Tensors, width: int) -> _Code:
    return JumpReLU(width), {"threshold": tensors.take("threshold", width).clamp_min(0)}


def _topk(trainer: Settings, tensors: Tensors, width: int) -> _Code:
    return TopK(width, k=trainer.count("k")), {}


def _batch(trainer: Settings, tensors: Tensors, width: int) -> _Code:
    return BatchTopK(width, k=trainer.count("k")), {"threshold": tensors.take("threshold")}


def _nested(trainer: Settings, tensors: Tensors, width: int) -> _Code:
    groups = tuple(int(n) for n in tensors.take("group_sizes", None))
    return Matryoshka(width, k=trainer.count("k"), groups=groups), {"threshold": tensors.take("threshold")}


def _k_and_threshold(parts: Parts) -> dict[str, Tensor]:
    assert isinstance(parts.recipe, TopK)
    threshold = parts.selector.get("threshold", torch.tensor(-1.0))
    return {"k": torch.tensor(parts.recipe.k, dtype=torch.int32), "threshold": threshold.float().reshape(())}


def _groups(parts: Parts) -> dict[str, Tensor]:
    assert isinstance(parts.recipe, Matryoshka)
    return {**_k_and_threshold(parts), "group_sizes": torch.tensor(parts.recipe.groups)}


_LINEAR = ("encoder.weight", "encoder.bias", "decoder.weight", "b_dec")
_MATRIX = ("W_enc", "b_enc", "W_dec", "b_dec")
CLASSES: dict[str, _Class] = {
    "AutoEncoder": _Class("StandardTrainer", *_LINEAR[:3], "bias", True, _relu),
    "AutoEncoderNew": _Class("StandardTrainerAprilUpdate", *_LINEAR[:3], "decoder.bias", False, _relu),
    "GatedAutoEncoder": _Class(
        "GatedSAETrainer", "encoder.weight", "gate_bias", "decoder.weight", "decoder_bias", True, _gated,
        lambda p: {"r_mag": p.selector["r_mag"], "mag_bias": p.selector["b_mag"]},
    ),
    "JumpReluAutoEncoder": _Class(
        "JumpReluTrainer", *_MATRIX, False, _jump, lambda p: {"threshold": p.selector["threshold"]}
    ),
    "AutoEncoderTopK": _Class("TopKTrainer", *_LINEAR, True, _topk, _k_and_threshold),
    "BatchTopKSAE": _Class("BatchTopKTrainer", *_LINEAR, True, _batch, _k_and_threshold),
    "MatryoshkaBatchTopKSAE": _Class("MatryoshkaBatchTopKTrainer", *_MATRIX, True, _nested, _groups),
}  # fmt: skip
_WRITTEN: dict[type[Recipe], str] = {
    ReLU: "AutoEncoderNew",  # the class whose loader leaves codes as they are
    Gated: "GatedAutoEncoder",
    JumpReLU: "JumpReluAutoEncoder",
    TopK: "AutoEncoderTopK",
    BatchTopK: "BatchTopKSAE",
    Matryoshka: "MatryoshkaBatchTopKSAE",
}
