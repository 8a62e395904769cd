"""Formats whose tools do not run here, told a second time: files written key by key, outputs computed in NumPy.

Nothing of the package is used: shapes and formulas come from the tools' published code and model cards, so a reader
that agrees with these agrees with the format and not with itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import save_file

D, F, ROWS = 8, 20, 9


@dataclass(frozen=True)
class Restated:
    """A file and what it must compute.

    Args:
        path: of the file or folder.
        format: its name in `FORMATS`.
        x: activations `[row, d_in]`; of several sites side by side.
        codes: `[row, latent]`.
        reconstruction: `[row, d_out]`.
        sites_in, sites_out: what the file says about them.
    """

    path: Path
    format: str
    x: np.ndarray
    codes: np.ndarray
    reconstruction: np.ndarray
    sites_in: tuple[str, ...]
    sites_out: tuple[str, ...]


def _draw(seed: int, d_in: int = D, d_out: int = D, width: int = F) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(ROWS, d_in)) * 2 + 0.3,
        "enc": rng.normal(size=(d_in, width)) * 0.5,
        "dec": rng.normal(size=(width, d_out)) * 0.7,
        "b_enc": rng.normal(size=width) * 0.4,
        "b_dec": rng.normal(size=d_out) * 0.5,
        "threshold": rng.uniform(0.1, 1.2, size=width),
        "skip": rng.normal(size=(d_in, d_out)) * 0.3,
    }


def _f32(**tensors: np.ndarray) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(t, dtype=np.float32) for name, t in tensors.items()}


def _jump(pre: np.ndarray, threshold: np.ndarray | float) -> np.ndarray:
    return np.where(pre > threshold, np.maximum(pre, 0), 0)


def gemma_scope_1(root: Path) -> Restated:
    """`params.npz` of W_enc (d, F), W_dec (F, d), b_enc, b_dec, threshold; b_dec is not subtracted from the input."""
    w, folder = _draw(1), root / "gemma-scope-2b-pt-mlp" / "layer_5" / "width_16k" / "average_l0_12"
    folder.mkdir(parents=True)
    stored = _f32(W_enc=w["enc"], W_dec=w["dec"], b_enc=w["b_enc"], b_dec=w["b_dec"], threshold=w["threshold"])
    np.savez(folder / "params.npz", **stored)
    codes = _jump(w["x"] @ w["enc"] + w["b_enc"], w["threshold"])
    return Restated(folder, "gemma_scope", w["x"], codes, codes @ w["dec"] + w["b_dec"], ("mlp_out.5",), ("mlp_out.5",))


def gemma_scope_2(root: Path) -> Restated:
    """`config.json` and `params.safetensors` of w_enc (d, F), w_dec (F, d), b_enc, b_dec, threshold."""
    w, folder = _draw(2), root / "resid_post" / "layer_7_width_16k_l0_medium"
    folder.mkdir(parents=True)
    about = {"architecture": "jump_relu", "model_name": "gemma-v3-1b-pt", "hf_hook_point_in": "model.layers.7.output"}
    (folder / "config.json").write_text(json.dumps(about))
    stored = _f32(w_enc=w["enc"], w_dec=w["dec"], b_enc=w["b_enc"], b_dec=w["b_dec"], threshold=w["threshold"])
    save_file(stored, folder / "params.safetensors")
    codes = _jump(w["x"] @ w["enc"] + w["b_enc"], w["threshold"])
    return Restated(
        folder, "gemma_scope_2", w["x"], codes, codes @ w["dec"] + w["b_dec"], ("resid_post.7",), ("resid_post.7",)
    )


def gemma_scope_2_transcoder(root: Path) -> Restated:
    """As before, with `affine_skip_connection` (d_in, d_out): x @ skip is added to the output."""
    w, folder = _draw(3), root / "transcoder" / "layer_7_width_16k_l0_medium_affine"
    folder.mkdir(parents=True)
    about = {
        "architecture": "jump_relu",
        "model_name": "gemma-v3-1b-pt",
        "hf_hook_point_in": "model.layers.7.pre_feedforward_layernorm.output",
        "hf_hook_point_out": "model.layers.7.post_feedforward_layernorm.output",
        "affine_connection": True,
    }
    (folder / "config.json").write_text(json.dumps(about))
    stored = _f32(
        w_enc=w["enc"], w_dec=w["dec"], b_enc=w["b_enc"], b_dec=w["b_dec"], threshold=w["threshold"],
        affine_skip_connection=w["skip"],
    )  # fmt: skip
    save_file(stored, folder / "params.safetensors")
    codes = _jump(w["x"] @ w["enc"] + w["b_enc"], w["threshold"])
    reconstruction = codes @ w["dec"] + w["b_dec"] + w["x"] @ w["skip"]
    return Restated(folder, "gemma_scope_2", w["x"], codes, reconstruction, ("ln2.7",), ("mlp_out.7",))


def gemma_scope_2_clt(root: Path) -> Restated:
    """One file a layer, w_dec (F, layers, d): latents of layer i write to layers i and later."""
    layers, folder = 3, root / "clt" / "width_262k_l0_medium_affine"
    folder.mkdir(parents=True)
    about = {"architecture": "jump_relu", "model_name": "gemma-v3-1b-pt"}
    (folder / "config.json").write_text(json.dumps(about))
    parts = [_draw(40 + i, d_out=layers * D) for i in range(layers)]
    for i, w in enumerate(parts):
        stored = _f32(
            w_enc=w["enc"], w_dec=w["dec"].reshape(F, layers, D), b_enc=w["b_enc"], b_dec=w["b_dec"][:D],
            threshold=w["threshold"], affine_skip_connection=w["skip"][:, :D],
        )  # fmt: skip
        save_file(stored, folder / f"layer_{i}.safetensors")
    codes = [_jump(w["x"] @ w["enc"] + w["b_enc"], w["threshold"]) for w in parts]
    out = []
    for target, w in enumerate(parts):
        y = w["b_dec"][:D] + w["x"] @ w["skip"][:, :D]
        for source in range(target + 1):
            y = y + codes[source] @ parts[source]["dec"].reshape(F, layers, D)[:, target]
        out.append(y)
    return Restated(
        folder, "gemma_scope_2", np.concatenate([w["x"] for w in parts], 1), np.concatenate(codes, 1),
        np.concatenate(out, 1), tuple(f"ln2.{i}" for i in range(layers)), tuple(f"mlp_out.{i}" for i in range(layers)),
    )  # fmt: skip


def _llama_scope(root: Path, name: str, hooks: tuple[str, str], norms: tuple[float, float], sites: Any) -> Restated:
    """Weights live where mean norms are sqrt(d); the scalar threshold is stored in units of the raw input."""
    w, folder = _draw(5 + len(name)), root / name
    (folder / "checkpoints").mkdir(parents=True)
    about = {
        "d_model": D,
        "d_sae": F,
        "hook_point_in": hooks[0],
        "hook_point_out": hooks[1],
        "act_fn": "jumprelu",
        "jump_relu_threshold": 0.21,
        "norm_activation": "dataset-wise",
        "dataset_average_activation_norm": {"in": norms[0], "out": norms[1]},
        "apply_decoder_bias_to_pre_encoder": False,
        "use_decoder_bias": True,
        "top_k": 50,
    }
    (folder / "hyperparams.json").write_text(json.dumps(about))
    stored = {
        "encoder.weight": w["enc"].T,
        "encoder.bias": w["b_enc"],
        "decoder.weight": w["dec"].T,
        "decoder.bias": w["b_dec"],
    }
    save_file(_f32(**stored), folder / "checkpoints" / "final.safetensors")
    scale_in, scale_out = np.sqrt(D) / norms[0], np.sqrt(D) / norms[1]
    codes = _jump(scale_in * w["x"] @ w["enc"] + w["b_enc"], 0.21 * scale_in)
    return Restated(folder, "llama_scope", w["x"], codes, (codes @ w["dec"] + w["b_dec"]) / scale_out, *sites)


def llama_scope(root: Path) -> Restated:
    """Residual stream: one norm."""
    hook, site = "blocks.8.hook_resid_post", ("resid_post.8",)
    return _llama_scope(root, "Llama3_1-8B-Base-L8R-8x", (hook, hook), (1.1, 1.1), (site, site))


def llama_scope_transcoder(root: Path) -> Restated:
    """Two norms: the output is scaled back by its own."""
    hooks = ("blocks.8.ln2.hook_normalized", "blocks.8.hook_mlp_out")
    return _llama_scope(root, "Llama3_1-8B-Base-L8TC-8x", hooks, (2.9, 0.4), (("ln2.8",), ("mlp_out.8",)))


def _llamascopium(root: Path, name: str, act: str, *, weighted: bool, folded: bool) -> Restated:
    """`config.json` and W_E (d, F), W_D (F, d), b_E, b_D; activation decided on pre * |decoder| where weighted."""
    w, folder = _draw(11 + len(name)), root / name
    folder.mkdir(parents=True)
    hook_in, hook_out = "blocks.4.hook_resid_mid", "blocks.4.hook_mlp_out"
    about = {
        "sae_type": "sae",
        "d_model": D,
        "expansion_factor": F / D,
        "use_decoder_bias": True,
        "act_fn": act,
        "norm_activation": "inference" if folded else "dataset-wise",
        "sparsity_include_decoder_norm": weighted,
        "top_k": 4,
        "hook_point_in": hook_in,
        "hook_point_out": hook_out,
        "use_glu_encoder": False,
    }
    (folder / "config.json").write_text(json.dumps(about))
    stored = {"W_E": w["enc"], "W_D": w["dec"], "b_E": w["b_enc"], "b_D": w["b_dec"]}
    if act == "jumprelu":
        stored["activation_function.log_jumprelu_threshold"] = np.log(w["threshold"])
    norms = {hook_in: 3.1, hook_out: 0.8}
    stored |= {f"dataset_average_activation_norm.{hook}": np.asarray(norm) for hook, norm in norms.items()}
    save_file(_f32(**stored), folder / "sae_weights.safetensors")
    scale_in, scale_out = (1.0, 1.0) if folded else (np.sqrt(D) / norms[hook_in], np.sqrt(D) / norms[hook_out])
    pre = scale_in * w["x"] @ w["enc"] + w["b_enc"]
    weight = np.linalg.norm(w["dec"], axis=1) if weighted else 1.0
    score = pre * weight
    if act == "jumprelu":
        codes = np.where(score > w["threshold"], pre, 0)
    elif act == "topk":
        positive = np.maximum(score, 0)
        bar = np.sort(positive, axis=1)[:, -4][:, None]
        codes = np.where((positive >= bar) & (positive > 0), pre, 0)
    else:
        codes = np.maximum(pre, 0)
    reconstruction = (codes @ w["dec"] + w["b_dec"]) / scale_out
    return Restated(folder, "llamascopium", w["x"], codes, reconstruction, ("resid_mid.4",), ("mlp_out.4",))


def llamascopium_jumprelu(root: Path) -> Restated:
    """Threshold on pre times decoder norm, dataset-wise norms not folded."""
    return _llamascopium(root, "jumprelu", "jumprelu", weighted=True, folded=False)


def llamascopium_topk(root: Path) -> Restated:
    """Selection by pre times decoder norm; values are pre."""
    return _llamascopium(root, "topk", "topk", weighted=True, folded=True)


def llamascopium_relu(root: Path) -> Restated:
    """Plain ReLU."""
    return _llamascopium(root, "relu", "relu", weighted=False, folded=False)


def llama_scope_r1(root: Path) -> Restated:
    """The release between the two: `encoder.weight` keys with `log_jumprelu_threshold` per latent."""
    w, folder = _draw(21), root / "400M-Slimpajama-400M-OpenR1-Math-220k" / "L9R"
    folder.mkdir(parents=True)
    hook = "blocks.9.hook_resid_post"
    about = {
        "sae_type": "sae",
        "d_model": D,
        "expansion_factor": F / D,
        "act_fn": "jumprelu",
        "norm_activation": "dataset-wise",
        "sparsity_include_decoder_norm": False,
        "hook_point_in": hook,
        "hook_point_out": hook,
    }
    (folder / "config.json").write_text(json.dumps(about))
    stored = {
        "encoder.weight": w["enc"].T,
        "encoder.bias": w["b_enc"],
        "decoder.weight": w["dec"].T,
        "decoder.bias": w["b_dec"],
        "log_jumprelu_threshold": np.log(w["threshold"]),
        f"dataset_average_activation_norm.{hook}": np.asarray(2.2),
    }
    save_file(_f32(**stored), folder / "sae_weights.safetensors")
    scale = np.sqrt(D) / 2.2
    codes = _jump(scale * w["x"] @ w["enc"] + w["b_enc"], w["threshold"])
    reconstruction = (codes @ w["dec"] + w["b_dec"]) / scale
    return Restated(folder, "llamascopium", w["x"], codes, reconstruction, ("resid_post.9",), ("resid_post.9",))


def qwen_scope(root: Path) -> Restated:
    """`layer{n}.sae.pt`: W_enc (F, d), W_dec (d, F), b_enc, b_dec; k stands in the repository's name alone."""
    w, folder = _draw(31), root / "SAE-Res-Qwen3-1.7B-Base-W32K-L0_4"
    folder.mkdir(parents=True)
    stored = {"W_enc": w["enc"].T, "W_dec": w["dec"].T, "b_enc": w["b_enc"], "b_dec": w["b_dec"]}
    torch.save({name: torch.from_numpy(t) for name, t in _f32(**stored).items()}, folder / "layer6.sae.pt")
    pre = np.maximum(w["x"] @ w["enc"] + w["b_enc"], 0)
    bar = np.sort(pre, axis=1)[:, -4][:, None]
    codes = np.where(pre >= bar, pre, 0)
    path, site = folder / "layer6.sae.pt", ("resid_post.6",)
    return Restated(path, "qwen_scope", w["x"], codes, codes @ w["dec"] + w["b_dec"], site, site)


def circuit_tracer_clt(root: Path) -> Restated:
    """`W_enc_{l}` (F, d), b_enc, b_dec, threshold; `W_dec_{l}` (F, layers - l, d), to layer l and later."""
    layers, folder = 3, root / "clt"
    folder.mkdir()
    about = {
        "model_kind": "cross_layer_transcoder",
        "model_name": "meta-llama/Llama-3.2-1B",
        "feature_input_hook": "hook_resid_mid",
        "feature_output_hook": "hook_mlp_out",
        "scan": "mine",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(about))
    parts = [_draw(60 + i, d_out=(layers - i) * D) for i in range(layers)]
    for i, w in enumerate(parts):
        bias = w["b_dec"][:D]
        encoder = {f"W_enc_{i}": w["enc"].T, f"b_enc_{i}": w["b_enc"], f"b_dec_{i}": bias}
        save_file(_f32(**encoder, **{f"threshold_{i}": w["threshold"]}), folder / f"W_enc_{i}.safetensors")
        save_file(_f32(**{f"W_dec_{i}": w["dec"].reshape(F, layers - i, D)}), folder / f"W_dec_{i}.safetensors")
    codes = [_jump(w["x"] @ w["enc"] + w["b_enc"], w["threshold"]) for w in parts]
    out = []
    for target, w in enumerate(parts):
        y = w["b_dec"][:D]
        for source in range(target + 1):
            y = y + codes[source] @ parts[source]["dec"].reshape(F, layers - source, D)[:, target - source]
        out.append(y)
    return Restated(
        folder, "circuit_tracer", np.concatenate([w["x"] for w in parts], 1), np.concatenate(codes, 1),
        np.concatenate(out, 1), tuple(f"resid_mid.{i}" for i in range(layers)),
        tuple(f"mlp_out.{i}" for i in range(layers)),
    )  # fmt: skip


def circuit_tracer_plt(root: Path) -> Restated:
    """`layer_{l}.safetensors` of W_enc (F, d), W_dec (F, d), b_enc, b_dec, W_skip (d_out, d_in): each layer its own."""
    layers, folder = 2, root / "plt"
    folder.mkdir()
    about = {
        "model_kind": "transcoder_set",
        "model_name": "Qwen/Qwen3-0.6B",
        "feature_input_hook": "mlp.hook_in",
        "feature_output_hook": "hook_mlp_out",
        "scan": "mine",
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(about))
    parts = [_draw(70 + i) for i in range(layers)]
    for i, w in enumerate(parts):
        stored = _f32(W_enc=w["enc"].T, W_dec=w["dec"], b_enc=w["b_enc"], b_dec=w["b_dec"], W_skip=w["skip"].T)
        stored |= _f32(**{"activation_function.threshold": w["threshold"]}) if i else {}
        save_file(stored, folder / f"layer_{i}.safetensors")
    codes = [_jump(w["x"] @ w["enc"] + w["b_enc"], w["threshold"] if i else 0.0) for i, w in enumerate(parts)]
    out = [z @ w["dec"] + w["b_dec"] + w["x"] @ w["skip"] for z, w in zip(codes, parts, strict=True)]
    return Restated(
        folder, "circuit_tracer", np.concatenate([w["x"] for w in parts], 1), np.concatenate(codes, 1),
        np.concatenate(out, 1), tuple(f"ln2.{i}" for i in range(layers)), tuple(f"mlp_out.{i}" for i in range(layers)),
    )  # fmt: skip


RESTATED: dict[str, Callable[[Path], Restated]] = {
    made.__name__: made
    for made in (
        gemma_scope_1,
        gemma_scope_2,
        gemma_scope_2_transcoder,
        gemma_scope_2_clt,
        llama_scope,
        llama_scope_transcoder,
        llama_scope_r1,
        llamascopium_jumprelu,
        llamascopium_topk,
        llamascopium_relu,
        qwen_scope,
        circuit_tracer_clt,
        circuit_tracer_plt,
    )
}
