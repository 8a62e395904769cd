"""Foreign names whose meaning depends on how a model is built: one small function each, given the model.

Where norms stand decides what "the attention's output" is, a gate decides what "before the activation" is, and the
code of a family decides which state Hugging Face returns last.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mechanome.core.errors import NotServed
from mechanome.engine.architecture import Block, child
from mechanome.engine.site import Site

if TYPE_CHECKING:
    from mechanome.engine.model import Model


def _block(model: Model, tower: str | None, layer: int) -> Block:
    return model.architecture.tower(tower).blocks[layer]


def module_output(role: str, point: str) -> Callable[[Model, str | None, int], Site]:
    """The output of the attention or MLP module itself: the point, unless a norm stands between it and the stream."""

    def resolve(model: Model, tower: str | None, layer: int) -> Site:
        block = _block(model, tower, layer)
        if role in block.roles and block.roles.get(point) is not block.roles[role]:
            return Site(f"path:{block.roles[role].path}")
        return Site(point, layer, tower=tower)

    return resolve


def module_input(norm: str, post: str) -> Callable[[Model, str | None, int], Site]:
    """What attention or MLP reads: the norm before it, or the stream where norms come after."""

    def resolve(model: Model, tower: str | None, layer: int) -> Site:
        block = _block(model, tower, layer)
        if block.style == "post":
            return Site(post, layer, tower=tower)
        return Site(norm if norm in block.roles else "ln1", layer, tower=tower)

    return resolve


def gated(model: Model, tower: str | None, layer: int) -> bool:
    """Whether the block's MLP has a gate."""
    return bool({"gate_proj", "gate_up", "experts"} & set(_block(model, tower, layer).roles))


def pre(model: Model, tower: str | None, layer: int) -> Site:
    """What stands before the activation function: the gate, or without one the up projection."""
    return Site("mlp_gate" if gated(model, tower, layer) else "mlp_up", layer, tower=tower)


def mlp_in(model: Model, tower: str | None, layer: int) -> Site:
    """The input of the norm before the MLP: changed there, only the MLP sees it."""
    block = _block(model, tower, layer)
    if "ln2" not in block.roles or block.style == "post":
        raise NotServed(
            f"hook_mlp_in of {block.part.path}", "no norm of its own stands before its MLP", "use resid_mid"
        )
    return Site(f"path:{block.roles['ln2'].path}:in")


def before_cap(model: Model, tower: str | None, layer: int) -> Site:
    """Logits before a final soft-cap or scale: the unembedding's output, where the model has one of these."""
    part = model.architecture.unembed
    capped = getattr(model.config, "final_logit_softcapping", None) or getattr(model.config, "logit_scale", None)
    return Site(f"path:{part.path}") if part is not None and capped else Site("logits")


def ungated_only(site: Site, model: Model | None) -> bool:
    """Whether the site's block has an MLP without gate."""
    return site.layer is not None and not gated(_needed(site, model), site.tower, site.layer)


def gated_only(site: Site, model: Model | None) -> bool:
    """Whether the site's block has an MLP with a gate."""
    return not ungated_only(site, model)


def _needed(site: Site, model: Model | None) -> Model:
    if model is None:
        raise NotServed(f"the foreign name of '{site}'", "it depends on how the model is built", "pass model=")
    return model


# Hugging Face returns states before each block and one more. Which state the last one is, and in one family all of
# them, depends on the model.
_AFTER_EACH_BLOCK = ("mamba", "mamba2", "falcon_mamba")


def hidden_state(model: Model, tower: str | None, index: int) -> Site:
    """Entry `index` of the hidden states that Hugging Face returns."""
    place = model.architecture.tower(tower)
    last = index == len(place.blocks)
    if last and last_is_normalized(model, tower):
        return Site("ln_final", tower=tower)
    if getattr(model.config, "model_type", "") in _AFTER_EACH_BLOCK:
        return Site("resid_post", index, tower=tower)
    return Site("resid_post", index - 1, tower=tower) if index else Site("resid_pre", 0, tower=tower)


def last_is_normalized(model: Model, tower: str | None) -> bool:
    """Whether the last of Hugging Face's hidden states went through the final norm.

    Transformers replaces it by the module's last state unless the module's forward, or the config, says otherwise.
    """
    place = model.architecture.tower(tower)
    if place.ln_final is None:
        return False
    configured = getattr(model.config, "tie_last_hidden_states", None)
    if configured is not None:
        return bool(configured)
    path = place.path
    while path:
        path = path.rpartition(".")[0]
        holder = child(model.architecture.root, path)
        forward: Any = getattr(type(holder), "forward", None)
        while forward is not None:
            ties = inspect.getclosurevars(forward).nonlocals.get("tie_last_hidden_states")
            if ties is not None:
                return bool(ties)
            forward = getattr(forward, "__wrapped__", None)
    return True  # models that collect their states by hand do so after the final norm


def state_index(site: Site, model: Model | None) -> bool:
    """Whether Hugging Face returns this state at all: the last one before the final norm is often not among them."""
    if site.point == "ln_final":
        return last_is_normalized(_needed(site, model), site.tower)
    if model is None:
        return True
    if shifted(site, model):
        return False
    last = site.layer == len(model.architecture.tower(site.tower).blocks) - 1
    return not (site.point == "resid_post" and last and last_is_normalized(model, site.tower))


def shifted(site: Site, model: Model | None) -> bool:
    """Whether the model returns its states after each block, from the first on."""
    return model is not None and getattr(model.config, "model_type", "") in _AFTER_EACH_BLOCK


def last_state(model: Model, tower: str | None, index: int) -> Site:
    """The last state: after the final norm, where the tower has one."""
    place = model.architecture.tower(tower)
    if place.ln_final is not None:
        return Site("ln_final", tower=tower)
    return Site("resid_post", len(place.blocks) - 1, tower=tower)
