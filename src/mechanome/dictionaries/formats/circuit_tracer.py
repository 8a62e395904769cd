"""circuit-tracer: `config.yaml` with a cross-layer transcoder or a set of per-layer ones (Hanna, Piotrowski).

Cross-layer: `W_enc_{l}.safetensors` of `W_enc_{l} [latent, d]`, `b_enc_{l}`, `b_dec_{l}`, perhaps `threshold_{l}`, and
`W_dec_{l}.safetensors` of `W_dec_{l} [latent, layers - l, d]`. Per layer: `layer_{l}.safetensors` of `W_enc`, `W_dec`
`[latent, d]`, `b_enc`, `b_dec`, perhaps `activation_function.threshold` and `W_skip [d_out, d_in]`. The whole folder is
one dictionary of all layers; one `layer_{l}.safetensors` is a transcoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml
from safetensors.torch import save_file
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.core.files import atomic_write
from mechanome.dictionaries.architectures import JumpReLU, ReLU
from mechanome.dictionaries.cross_layer import CrossLayerTranscoder
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, hook_of_site, site_of_hook
from mechanome.dictionaries.formats.layers import layer_files, stacked
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import Settings, safetensors_file, yaml_file

_CONFIG, _THRESHOLD = "config.yaml", "activation_function.threshold"
_LAYER = re.compile(r"layer_(\d+)\.safetensors")
_KINDS = {"cross_layer_transcoder": "W_enc_{n}", "transcoder_set": "layer_{n}"}


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    if path.is_file():
        return _LAYER.fullmatch(path.name) is not None and (path.parent / _CONFIG).is_file()
    return (path / _CONFIG).is_file() and "model_kind" in yaml_file(path / _CONFIG).content


def read(path: Path, told: Told) -> Dictionary:
    """A folder, or one layer's file of a set.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, a layer missing, or tensors that do not fit together.
        BadInput: another kind of model; a site named for a folder.
    """
    if path.is_file():
        return _one_layer(path, told)
    settings = yaml_file(path / _CONFIG)
    stem = settings.choose("model_kind", _KINDS, "model")
    files = layer_files(path, stem)
    if not files:
        raise BadInput(str(path), f"no file {stem.format(n=0)}.safetensors is there", "download the layers too")
    cross = stem == "W_enc_{n}"
    part = _cross_part if cross else _own_part
    hooks = [settings.get(f"feature_{end}_hook", None, str) for end in ("input", "output")]
    sites = [tuple(s for n in range(len(files)) if (s := site_of_hook(hook, n))) for hook in hooks]
    parts = [part(file, layer, len(files)) for layer, file in enumerate(files)]
    return stacked(path, parts, told, (sites[0], sites[1]), _origin(settings), cross=cross)


def write(dictionary: Dictionary, folder: Path) -> None:
    """Fill a folder that circuit-tracer loads.

    Raises:
        NotServed: another dictionary than of all layers; a cross-layer one with skip connections, which the tool does
            not store; sites other than the same hook in layers 0, 1, ...
    """
    if not isinstance(dictionary, CrossLayerTranscoder):
        what = f"a dictionary of '{dictionary.spec.architecture}' in circuit-tracer"
        raise NotServed(what, "it needs transcoders of all layers", "write format='saelens'")
    cross = bool(dictionary.spec.settings["cross"])
    if cross and dictionary.skips is not None:
        raise NotServed("cross-layer skip connections in circuit-tracer", "it does not store them", "use 'mechanome'")
    ends = (dictionary.spec.sites_in, dictionary.spec.sites_out)
    config = {
        "model_kind": "cross_layer_transcoder" if cross else "transcoder_set",
        "model_name": dictionary.spec.provenance.get("model"),
        "feature_input_hook": _hook(ends[0]) or dictionary.spec.provenance.get("hook"),
        "feature_output_hook": _hook(ends[1]),
        "scan": dictionary.spec.provenance.get("scan", "mechanome"),
    }
    save = _write_cross if cross else _write_own
    tensors = {name: t.detach().float().cpu() for name, t in dictionary.state_dict().items()}
    stacks = [name for name in ("reads", "read_bias", "threshold", "write_bias", "skips") if name in tensors]
    for layer in range(dictionary.layers):
        weights = {name: tensors[name][layer] for name in stacks} | {"writes": tensors[f"writes.{layer}"]}
        for name, content in save(weights, layer).items():
            save_file({key: t.contiguous() for key, t in content.items()}, folder / f"{name}.safetensors")
    with atomic_write(folder / _CONFIG, "w") as handle:
        yaml.safe_dump(config, handle)


def _one_layer(path: Path, told: Told) -> Dictionary:
    settings = yaml_file(path.parent / _CONFIG)
    found = _LAYER.fullmatch(path.name)
    if found is None:
        raise BadInput(str(path), "it is no layer_0.safetensors ...", "name a layer's file, or the folder")
    layer = int(found[1])
    own = _own_part(path, layer, layer + 1)
    hooks = [settings.get(f"feature_{end}_hook", None, str) for end in ("input", "output")]
    jump = bool(own["threshold"].any())
    return Parts(
        JumpReLU(len(own["reads"])) if jump else ReLU(len(own["reads"])),
        own["reads"],
        own["read_bias"],
        own["writes"][:, 0],
        own["write_bias"],
        centered=False,
        selector={"threshold": own["threshold"]} if jump else {},
        transcoder=True,
        skip=own.get("skips"),
        provenance=_origin(settings),
        **told.ends(lambda: site_of_hook(hooks[0], layer), lambda: site_of_hook(hooks[1], layer)),
    ).dictionary()


def _cross_part(file: Path, layer: int, layers: int) -> dict[str, Tensor]:
    encoder = safetensors_file(file)
    decoder = safetensors_file(file.with_name(f"W_dec_{layer}.safetensors"))
    latents, d = encoder.take(f"W_enc_{layer}", None, None).shape
    named = f"threshold_{layer}" in encoder
    reads = encoder.take(f"W_enc_{layer}", latents, d)
    return {
        "reads": reads,
        "read_bias": encoder.take(f"b_enc_{layer}", latents),
        "threshold": encoder.take(f"threshold_{layer}", latents).clamp_min(0) if named else reads.new_zeros(latents),
        "writes": decoder.take(f"W_dec_{layer}", latents, layers - layer, d),
        "write_bias": encoder.take(f"b_dec_{layer}", d),
    }


def _own_part(file: Path, layer: int, layers: int) -> dict[str, Tensor]:
    tensors = safetensors_file(file)
    latents, d = tensors.take("W_enc", None, None).shape
    writes = tensors.take("W_dec", latents, None)
    d_out = writes.shape[1]
    named = _THRESHOLD in tensors
    part = {
        "reads": tensors.take("W_enc", latents, d),
        "read_bias": tensors.take("b_enc", latents),
        "threshold": tensors.take(_THRESHOLD, latents).clamp_min(0) if named else writes.new_zeros(latents),
        "writes": writes[:, None],
        "write_bias": tensors.take("b_dec", d_out),
    }
    return part | ({"skips": tensors.take("W_skip", d_out, d)} if "W_skip" in tensors else {})


def _write_cross(part: Mapping[str, Tensor], n: int) -> dict[str, dict[str, Tensor]]:
    encoder = {f"W_enc_{n}": part["reads"], f"b_enc_{n}": part["read_bias"], f"b_dec_{n}": part["write_bias"]}
    encoder[f"threshold_{n}"] = part["threshold"]
    return {f"W_enc_{n}": encoder, f"W_dec_{n}": {f"W_dec_{n}": part["writes"]}}


def _write_own(part: Mapping[str, Tensor], n: int) -> dict[str, dict[str, Tensor]]:
    content = {"W_enc": part["reads"], "b_enc": part["read_bias"], "W_dec": part["writes"][:, 0]}
    content |= {"b_dec": part["write_bias"], _THRESHOLD: part["threshold"]}
    return {f"layer_{n}": content | ({"W_skip": part["skips"]} if "skips" in part else {})}


_Origin = dict[str, str | None]


def _origin(settings: Settings) -> _Origin:
    known = {"model": "model_name", "hook": "feature_input_hook", "scan": "scan"}
    found: _Origin = {own: settings.get(theirs, None, str) for own, theirs in known.items()}
    return {"format": "circuit_tracer", **{key: value for key, value in found.items() if value is not None}}


def _hook(sites: tuple[str, ...]) -> str | None:
    """The one hook that all layers share."""
    hooks = {hook_of_site(site, layered=False) for site in sites}
    return hooks.pop() if len(hooks) == 1 else None
