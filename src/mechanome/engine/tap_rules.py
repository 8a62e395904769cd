"""From a site to its tap: one table from point to rule.

A rule returns a `Tap` or raises `NotServed` with the reason; `tap_for` adds the nearest points that are served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn

from mechanome.core.errors import NotServed, UnknownSite, nearest
from mechanome.engine.architecture import Architecture, Block, Part, Tower, child
from mechanome.engine.points import POINTS
from mechanome.engine.site import Site
from mechanome.engine.taps import Tap
from mechanome.engine.views import Channels, Columns, HeadsFirst, Plain, View

_TITLES = {
    "attention": "attention",
    "attn_out": "attention",
    "cross": "cross-attention",
    "cross_o_proj": "cross-attention",
    "cross_out": "cross-attention",
    "down_proj": "down projection of its own",
    "k_proj": "key projection of its own",
    "ln1": "norm there",
    "ln2": "norm between token mixer and MLP",
    "mixer": "token mixer besides attention",
    "mlp_out": "MLP",
    "o_proj": "output projection of attention",
    "q_proj": "query projection of its own",
    "router": "router, as it is no mixture of experts",
    "up_proj": "up projection of its own",
}
# Where the whole is missing, that is the better reason.
_WITHIN = {
    **dict.fromkeys(("o_proj", "q_proj", "k_proj"), "attention"),
    **dict.fromkeys(("up_proj", "down_proj"), "mlp_out"),
}
_ATTENDING = ("z", "q", "k", "v", "q_pre", "k_pre", "attn_out", "mixer_out")
_FEEDING = ("mlp_act", "router", "mlp_out", "mixer_out")
# Points to offer instead, nearest first; the stream itself is always there.
_NEAR = {
    "attn_out": ("mixer_out",),
    "mixer_out": ("attn_out",),
    "mlp_gate": ("mlp_up", *_FEEDING),
    "resid_mid": ("attn_out", "mixer_out", "mlp_out"),
    "router": ("mlp_act", "mlp_out"),
    **dict.fromkeys(("mlp_up", "mlp_act", "mlp_out"), _FEEDING),
    **dict.fromkeys(("q", "k", "v", "q_pre", "k_pre", "scores", "pattern", "z", "head_out"), _ATTENDING),
    **{f"cross_{p}": (p, *_ATTENDING) for p in ("q", "k", "v", "scores", "pattern", "z")},
    "cross_out": ("attn_out", "mixer_out"),
}


def _need(block: Block, role: str, point: str) -> Part:
    if role in block.roles:
        return block.roles[role]
    whole = _WITHIN.get(role, role)
    title = _TITLES[role if whole in block.roles else whole]
    raise _refusal(block, point, block.reasons.get(point) or f"{type(block.part.module).__name__} has no {title}")


def _refusal(block: Block, point: str, why: str, fix: str = "") -> NotServed:
    return NotServed(f"{point} of {block.part.path}", why, fix)


def _offer(tower: Tower, block: Block, point: str) -> str:
    """The nearest points that this block serves, as a phrase."""
    served = []
    for name in dict.fromkeys((*_NEAR.get(point, ()), "resid_pre", "resid_post")):
        try:
            _RULES[name](tower, block, name)
        except NotServed:
            continue
        served.append(name)
    return f"use {', '.join(served[:2])} or {served[2]}" if len(served) > 2 else f"use {' or '.join(served)}"


def _stream(tower: Tower) -> View:
    return Channels() if tower.feature_map else Plain()


def _resid_pre(tower: Tower, block: Block) -> Tap:
    return Tap(block.part, "input", _stream(tower))


def _resid_post(tower: Tower, block: Block) -> Tap:
    return Tap(block.part, "output", _stream(tower))


def _resid_mid(tower: Tower, block: Block) -> Tap:
    if block.style == "parallel":
        raise _refusal(block, "resid_mid", "attention and MLP read the same stream (parallel block)")
    if block.style == "post":
        return Tap(_need(block, "ln1", "resid_mid"), "output", _stream(tower))
    ln2 = _need(block, "ln2", "resid_mid")
    # The block keeps the stream in a local variable for its skip connection, so an edit of the norm's input would
    # change only half of it. Edits go through the last part that adds to the stream before the norm.
    writer = next((r for r in ("cross_out", "attn_out", "mixer") if r in block.roles), None)
    if writer is None:
        return Tap(ln2, "input", _stream(tower))
    before = block.roles["ln_cross"] if writer == "cross_out" else block.part
    through = (Tap(block.roles[writer], "output", _stream(tower)), Tap(before, "input", _stream(tower)))
    return Tap(ln2, "input", _stream(tower), through=through)


def _module_output(role: str) -> Callable[[Tower, Block, str], Tap]:
    def rule(tower: Tower, block: Block, point: str) -> Tap:
        return Tap(_need(block, role, point), "output", _stream(tower))

    return rule


def _norm(role: str) -> Callable[[Tower, Block, str], Tap]:
    def rule(tower: Tower, block: Block, point: str) -> Tap:
        part = _need(block, role, point)
        if type(part.module) is nn.Identity:
            raise _refusal(block, point, "this block has no norm there")
        return Tap(part, "output", Plain())

    return rule


def _z(prefix: str) -> Callable[[Tower, Block, str], Tap]:
    def rule(tower: Tower, block: Block, point: str) -> Tap:
        part = _need(block, f"{prefix}o_proj", point)
        if not block.n_heads:
            raise _refusal(block, point, "its number of heads is unknown", "give n_heads in a Layout")
        return Tap(part, "input", Columns(heads=block.n_heads))

    return rule


def _projection(kind: Literal["q", "k"]) -> Callable[[Tower, Block, str], Tap]:
    def rule(tower: Tower, block: Block, point: str) -> Tap:
        heads = block.n_heads if kind == "q" else block.n_kv
        if block.fused:
            part = block.roles["qkv"]
            return Tap(part, "output", _fused_view(part.module, block, kind))
        return Tap(_need(block, f"{kind}_proj", point), "output", Columns(heads=heads))

    return rule


def _fused_view(module: nn.Module, block: Block, kind: str) -> View:
    width = _out_features(module)
    if block.fused == "per_head":
        part = width // block.n_heads // 3
        start = {"q": 0, "k": part, "v": 2 * part}[kind]
        return Columns(block.n_heads, start, start + part, interleaved=True)
    d_head = width // (block.n_heads + 2 * block.n_kv)
    q, kv = block.n_heads * d_head, block.n_kv * d_head
    start, size, heads = {"q": (0, q, block.n_heads), "k": (q, kv, block.n_kv), "v": (q + kv, kv, block.n_kv)}[kind]
    return Columns(heads, start, start + size)


def _out_features(module: nn.Module) -> int:
    declared = getattr(module, "out_features", None) or getattr(module, "nf", None)
    weight: Any = module.weight
    return int(declared) if declared else int(weight.shape[0])


def _attention(role: str, slot: str) -> Callable[[Tower, Block, str], Tap]:
    def rule(tower: Tower, block: Block, point: str) -> Tap:
        part = _need(block, role, point)
        if not block.registry:
            name = type(part.module).__name__
            raise _refusal(block, point, f"{name} computes attention itself, outside the attention registry")
        return Tap(part, "attention", HeadsFirst(), slot)

    return rule


def _mlp(kind: Literal["gate", "up", "act"]) -> Callable[[Tower, Block, str], Tap]:
    def rule(tower: Tower, block: Block, point: str) -> Tap:
        if "experts" in block.roles:
            raise _refusal(block, point, "its experts run in one fused kernel, tokens sorted by expert")
        if kind == "act":
            return Tap(_need(block, "down_proj", point), "input", Plain())
        if "gate_up" in block.roles:
            part = block.roles["gate_up"]
            half = _out_features(part.module) // 2
            return Tap(part, "output", Columns(0, 0, half) if kind == "gate" else Columns(0, half, None))
        if kind == "gate" and "gate_proj" not in block.roles:
            _need(block, "up_proj", point)
            raise _refusal(block, point, "its MLP has no gate")
        return Tap(block.roles["gate_proj"] if kind == "gate" else _need(block, "up_proj", point), "output", Plain())

    return rule


def _router(tower: Tower, block: Block, point: str) -> Tap:
    return Tap(_need(block, "router", point), "output", Plain())


_RULES: dict[str, Callable[[Tower, Block, str], Tap]] = {
    "resid_pre": lambda t, b, p: _resid_pre(t, b),
    "resid_mid": lambda t, b, p: _resid_mid(t, b),
    "resid_post": lambda t, b, p: _resid_post(t, b),
    "ln1": _norm("ln1"),
    "ln2": _norm("ln2"),
    "q_pre": _projection("q"),
    "k_pre": _projection("k"),
    "q": _attention("attention", "q"),
    "k": _attention("attention", "k"),
    "v": _attention("attention", "v"),
    "scores": _attention("attention", "scores"),
    "pattern": _attention("attention", "pattern"),
    "z": _z(""),
    "head_out": _z(""),
    "attn_out": _module_output("attn_out"),
    "cross_q": _attention("cross", "q"),
    "cross_k": _attention("cross", "k"),
    "cross_v": _attention("cross", "v"),
    "cross_scores": _attention("cross", "scores"),
    "cross_pattern": _attention("cross", "pattern"),
    "cross_z": _z("cross_"),
    "cross_out": _module_output("cross_out"),
    "mixer_out": _module_output("mixer"),
    "router": _router,
    "mlp_gate": _mlp("gate"),
    "mlp_up": _mlp("up"),
    "mlp_act": _mlp("act"),
    "mlp_out": _module_output("mlp_out"),
}


def tap_for(architecture: Architecture, site: Site) -> Tap:
    """The tap of a site.

    Raises:
        UnknownSite: a layer, head or module that does not exist. NotServed: a point this model cannot serve.
    """
    if site.is_path:
        module = child(architecture.root, site.module_path)
        if module is None:
            names = [name for name, _ in architecture.root.named_modules() if name]
            raise UnknownSite(f"site '{site}'", "no module is at this path", nearest(site.module_path, names))
        return Tap(Part(site.module_path, module), "input" if site.is_input else "output", Plain())
    if site.point == "logits":
        return Tap(Part("", architecture.root), "output", Plain())
    tower = architecture.tower(site.tower)
    if site.layer is None:
        part = tower.embed if site.point == "embed" else tower.ln_final
        if part is None:
            raise NotServed(
                f"{site.point} of {type(architecture.root).__name__}",
                "no single module computes it",
                f"use {Site('resid_pre', 0, tower=tower.name)}"
                if site.point == "embed"
                else f"use {Site('resid_post', len(tower.blocks) - 1, tower=tower.name)}",
            )
        return Tap(part, "output", Plain())
    if site.layer >= len(tower.blocks):
        raise UnknownSite(
            f"site '{site}'",
            f"layer {site.layer} does not exist",
            f"this {'tower' if site.tower else 'model'} has layers 0 to {len(tower.blocks) - 1}",
        )
    block = tower.blocks[site.layer]
    _check_coordinate(site, block)
    try:
        return _RULES[site.point](tower, block, site.point)
    except NotServed as refusal:
        raise NotServed(refusal.what, refusal.why, refusal.fix or _offer(tower, block, site.point)) from None


def _check_coordinate(site: Site, block: Block) -> None:
    for value, count, what in ((site.head, block.n_heads, "head"), (site.kv, block.n_kv, "key/value head")):
        if value is not None and count and value >= count:
            raise UnknownSite(f"site '{site}'", f"{what} {value} does not exist", f"it has {what}s 0 to {count - 1}")


assert set(_RULES) == {p.name for p in POINTS.values() if p.per_layer}, "every per-layer point needs a rule"
