"""llamascopium 2 (OpenMOSS) and Llama-Scope-R1 before it: `config.json` and `sae_weights.safetensors`.

Weights are `W_E [d, latent]`, `W_D [latent, d]`, `b_E`, `b_D`, or `encoder.weight [latent, d]`, `decoder.weight
[d, latent]` with biases; thresholds are kept as logarithms. With `norm_activation: dataset-wise` they live where mean
norms are sqrt(d) (`dataset_average_activation_norm.<hook>`); "inference" means the norms are folded in. With
`sparsity_include_decoder_norm` a latent is chosen by its pre-activation times the length of its direction.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from mechanome.core.errors import NotServed
from mechanome.dictionaries.architectures import JumpReLU, Recipe, ReLU, TopK, WeightedTopK
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats.hooks import Told, site_of_hook
from mechanome.dictionaries.formats.llama_scope import unit_norm
from mechanome.dictionaries.formats.parts import Parts
from mechanome.dictionaries.formats.stored import Settings, Tensors, json_file, safetensors_file
from mechanome.dictionaries.norm import Affine

_THRESHOLDS = ("activation_function.log_jumprelu_threshold", "log_jumprelu_threshold")


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    config = path / "config.json"
    if not config.is_file() or not (path / "sae_weights.safetensors").is_file():
        return False
    return "sae_type" in json_file(config).content


def read(path: Path, told: Told) -> Dictionary:
    """A folder of llamascopium with one autoencoder or transcoder.

    Raises:
        CorruptFile, ShapeMismatch, NotFinite: damaged, or tensors that do not fit the configuration.
        BadInput: another kind of dictionary, activation or normalization. NotServed: a gated linear encoder.
    """
    settings, tensors = json_file(path / "config.json"), safetensors_file(path / "sae_weights.safetensors")
    settings.choose("sae_type", {"sae": None}, "dictionary")
    if settings.get("use_glu_encoder", False, bool):
        raise NotServed(str(path), "its encoder is a gated linear unit", "use one with use_glu_encoder = false")
    d = settings.count("d_model")
    width = int(d * settings.take("expansion_factor", (int, float)))
    linear = "encoder.weight" in tensors
    w_enc = tensors.take("encoder.weight", width, d) if linear else tensors.take("W_E", d, width).T.contiguous()
    w_dec = tensors.take("decoder.weight", d, width).T.contiguous() if linear else tensors.take("W_D", width, d)
    biased = settings.get("use_decoder_bias", True, bool)
    hooks = [settings.take(f"hook_point_{end}", str) for end in ("in", "out")]
    folded = settings.choose("norm_activation", {"dataset-wise": False, "inference": True}, "normalization")
    norms = [None if folded else _norm(tensors, hook, d, path) for hook in hooks]
    code = settings.choose("act_fn", {"relu": _relu, "jumprelu": _jump, "topk": _topk}, "activation")
    lengths = w_dec.norm(dim=1) if settings.get("sparsity_include_decoder_norm", True, bool) else None
    recipe, selector = code(settings, tensors, width, lengths)
    transcoder = hooks[0] != hooks[1]
    return Parts(
        recipe,
        w_enc,
        tensors.take("encoder.bias" if linear else "b_E", width),
        w_dec,
        tensors.take("decoder.bias" if linear else "b_D", d) if biased else w_dec.new_zeros(d),
        centered=False,
        selector=selector,
        transcoder=transcoder,
        norm=norms[0],
        norm_out=norms[1],
        provenance={"format": "llamascopium", "hook": hooks[0]},
        **told.ends(lambda: site_of_hook(hooks[0]), (lambda: site_of_hook(hooks[1])) if transcoder else None),
    ).dictionary()


def _norm(tensors: Tensors, hook: str, d: int, path: Path) -> Affine:
    return unit_norm(d, tensors.number(f"dataset_average_activation_norm.{hook}"), path)


_Code = tuple[Recipe, dict[str, Tensor]]


def _relu(settings: Settings, tensors: Tensors, width: int, lengths: Tensor | None) -> _Code:
    return ReLU(width), {}  # a positive length changes no sign


def _jump(settings: Settings, tensors: Tensors, width: int, lengths: Tensor | None) -> _Code:
    name = next((name for name in _THRESHOLDS if name in tensors), _THRESHOLDS[0])
    threshold = tensors.take(name, width).exp()
    return JumpReLU(width), {"threshold": threshold if lengths is None else threshold / lengths}


def _topk(settings: Settings, tensors: Tensors, width: int, lengths: Tensor | None) -> _Code:
    k = settings.count("top_k")
    return (TopK(width, k=k), {}) if lengths is None else (WeightedTopK(width, k=k), {"weight": lengths})
