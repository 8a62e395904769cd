"""What a latent says by way of the residual stream alone: its atom, read by the last norm's gain and the unembedding.

The norm divides by the length of the whole stream, which differs from token to token; without it, an effect is known up
to a positive factor that is the same for all tokens of the vocabulary. The mean over the vocabulary is taken off, which
no probability can tell. What later blocks make of the latent is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mechanome.core import NotServed, ShapeMismatch
from mechanome.engine import Site
from mechanome.engine.parameters import effective_gain
from mechanome.engine.site import parse

if TYPE_CHECKING:
    from mechanome.engine import Model

_STREAM = ("embed", "resid_pre", "resid_mid", "resid_post")
_ADDED = ("attn_out", "cross_out", "mixer_out", "mlp_out")
_NORMED = ("post", "sandwich")
_AT_ONCE = 1 << 25
"""Logits computed at once: 128 MB of float32."""

HOW = (
    "atom times the gain of the last norm times the unembedding, without the mean over the vocabulary; up to the "
    "norm's scale, and without what later blocks make of it"
)


def why_not(model: Model, site: str | Site) -> str | None:
    """Why a site's atoms have no direct effect on the logits, or None if they have one."""
    site = parse(site)
    tower = model.architecture.tower(site.tower)
    if site.point not in (*_STREAM, *_ADDED) or site.selector:
        return f"{site} does not write to the residual stream as it is"
    style = tower.blocks[site.layer].style if site.layer is not None else tower.blocks[0].style
    if tower.ln_final is None or style == "post" or (site.point in _ADDED and style in _NORMED):
        return "a norm stands between it and the last stream"
    return None


def logit_effects(model: Model, atoms: Tensor, k: int = 10) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The tokens that each atom promotes and suppresses most.

    Args:
        model: a language model. atoms: `[latent, d_model]`. k: tokens each way.

    Yields:
        per latent, promoted ids and effects, suppressed ids and effects, `[k]` each, the strongest first.

    Raises:
        ShapeMismatch: atoms of another width. NotServed: no unembedding or last norm.
    """
    unembed = model.weight("W_U").value.detach().float()
    if atoms.shape[-1] != unembed.shape[0]:
        what = f"atoms of width {atoms.shape[-1]}"
        raise ShapeMismatch(what, f"the stream is {unembed.shape[0]} wide", "use a dictionary of the stream")
    tower = model.architecture.tower(None)
    if tower.ln_final is None:
        raise NotServed(f"logit effects in {model.name}", "it has no last norm", "use a model with one")
    norm = tower.ln_final.module
    read = atoms.detach().float().to(unembed.device)
    if isinstance(norm, nn.LayerNorm):
        read = read - read.mean(1, keepdim=True)
    read = read * effective_gain(norm).float().to(read.device)
    for part in read.split(max(1, _AT_ONCE // unembed.shape[1])):
        effects = part @ unembed
        effects = effects - effects.mean(1, keepdim=True)
        up, down = effects.topk(k, dim=1), effects.topk(k, dim=1, largest=False)
        yield from zip(up.indices.cpu(), up.values.cpu(), down.indices.cpu(), down.values.cpu())


def similar(atoms: Tensor, latents: Tensor, k: int = 5) -> Iterator[tuple[Tensor, Tensor]]:
    """The latents whose atoms point most nearly the same way.

    Args:
        atoms: of the whole dictionary, `[latent, d]`. latents: which are asked about. k: how many.

    Yields:
        per latent, indices and cosines, `[k]` each, the nearest first; itself is left out.
    """
    unit = torch.nn.functional.normalize(atoms.detach().float(), dim=1)
    k = min(k, len(unit) - 1)
    for part in latents.split(max(1, _AT_ONCE // len(unit))):
        cosines = unit[part] @ unit.T
        cosines[torch.arange(len(part)), part] = -torch.inf
        best = cosines.topk(k, dim=1)
        yield from zip(best.indices, best.values)
