"""What the engine's tests share: every tiny family opened once, its batch, and the real tokens of a capture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

import mechanome as mn
from families import FAMILIES, build
from mechanome.engine.inputs import Batch

N_TOKENS = 9
OWN = mn.Layout(
    "stack",
    {
        "ln1": "pre_attn", "attention": "attn", "q_proj": "attn.q", "k_proj": "attn.k", "v_proj": "attn.v",
        "o_proj": "attn.o", "ln2": "pre_ff", "mlp": "ff", "up_proj": "ff.0", "down_proj": "ff.2",
    },
    "tok", "out_norm", "unembed", n_heads=4, n_kv=2, causal=True,
)  # fmt: skip
CONV = mn.Layout("blocks", feature_map=True, additive=False, unembed="fc")

NAMED = [n for n in FAMILIES if n not in ("lstm", "convnet")]
REGISTRY = [n for n, f in FAMILIES.items() if f.registry]
LANGUAGE = [n for n in NAMED if FAMILIES[n].kind in ("causal", "ssm") or n == "own_transformer"]
TEXT = [*LANGUAGE, *(n for n in NAMED if FAMILIES[n].kind == "encoder")]


def fresh(name: str, **settings: Any) -> mn.Model:
    """A family's model, opened anew, that a test may change."""
    return _open(name, build(name), **settings)


def _open(name: str, module: torch.nn.Module, **settings: Any) -> mn.Model:
    if FAMILIES[name].kind == "custom":
        layouts = {"own_transformer": OWN, "convnet": CONV}
        settings.setdefault("layout", layouts.get(name))
        settings.setdefault("example", FAMILIES[name].inputs(module, N_TOKENS))
    return mn.load(module, **settings)


@cache
def opened(name: str) -> mn.Model:
    """A family's model that all tests share and none may change."""
    return fresh(name)


@cache
def double(name: str) -> mn.Model:
    """The same in float64, for finite differences."""
    module = build(name).double()
    if hasattr(module, "set_experts_implementation"):
        module.set_experts_implementation("eager")  # the fused kernel takes no float64
    return _open(name, module, check="off", example=None)


def double_batch(name: str) -> Batch:
    """One row of it, without padding."""
    one = unpadded(inputs_of(name), 0)
    return double(name).encode({k: v.double() if v.is_floating_point() else v for k, v in one.items()})


def inputs_of(name: str) -> dict[str, Tensor]:
    """Three padded rows."""
    return dict(FAMILIES[name].inputs(opened(name).module, N_TOKENS))


def batch_of(name: str) -> Batch:
    return opened(name).encode(inputs_of(name))


def rows_of(name: str, n: int = 2, length: int = 8, seed: int = 0) -> Tensor:
    """Unpadded ordinary token ids of a text model, `[row pos]`."""
    return torch.randint(4, 90, (n, length), generator=torch.Generator().manual_seed(seed))


def unpadded(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of inputs without its padding and without masks."""
    one = {k: v[row : row + 1] for k, v in inputs.items()}
    for mask, main in (
        ("decoder_attention_mask", "decoder_input_ids"), ("attention_mask", "input_ids"),
        ("attention_mask", "input_values"),
    ):  # fmt: skip
        if mask in one and main in one:
            one[main] = one[main][:, one[mask][0].bool()]
    return {k: v for k, v in one.items() if not k.endswith("attention_mask")}


def sites_of(name: str) -> list[mn.Site]:
    """Every named site that is captured as such (`head_out` is derived from `z`)."""
    return [s for s in opened(name).sites if s.point != "head_out"]


def real_parts(model: mn.Model, batch: Batch, site: mn.Site, value: Tensor) -> list[Tensor]:
    """Per row, what a captured tensor (positions on axis 1) holds for real tokens; for patterns for real keys too."""
    frames = model.frames(batch)
    cross = site.point.startswith("cross_")
    queries = frames["encoder" if site.point in ("cross_k", "cross_v") else site.tower]
    queries = queries.resolved(value.shape[0], value.shape[1])
    if value.shape[1] != queries.width:
        return list(value)
    parts = [value[i, s : s + n] for i, (s, n) in enumerate(zip(queries.starts, queries.lengths))]
    if not site.point.endswith(("scores", "pattern")):
        return parts
    keys = frames["encoder" if cross else site.tower].resolved(value.shape[0], value.shape[-1])
    return [p[..., s : s + n] for p, s, n in zip(parts, keys.starts, keys.lengths)]


def real_apart(model: mn.Model, batch: Batch, site: mn.Site, a: Tensor, b: Tensor) -> float:
    """`apart` over real tokens: what a padded query holds depends on the backend and means nothing."""
    parts = zip(real_parts(model, batch, site, a), real_parts(model, batch, site, b), strict=True)
    if site.point.endswith("scores"):  # what a mask hides is the lowest number, or that plus something
        parts = ((x.clamp(min=-1e4), y.clamp(min=-1e4)) for x, y in parts)  # type: ignore[assignment]
    return max(apart(x, y) for x, y in parts)


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest value of `b`."""
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) if a.numel() else 0.0


def outputs(model: mn.Model, batch: Batch, edits: Any = ()) -> Tensor:
    """What the model says: logits, or for clip what its towers say, which the pooled embeddings mostly hide."""
    if model.serves("logits"):
        found = model.run(batch, edits=edits).logits
        assert found is not None
        return found
    sites = ["text/ln_final", "vision/resid_post.2", "path:visual_projection"]
    run = model.run(batch, edits=edits, capture=sites)
    return torch.cat([run[s].flatten(1) for s in sites], dim=1)
