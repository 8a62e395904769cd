"""Which module plays which part: found from the module tree, or given by the user as a `Layout`.

Discovery looks for lists of blocks that fit a known `BlockShape`; each such list is a *tower*. The result holds
module objects, so it works through PEFT, DDP, FSDP and compile wrappers, which forward attribute access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from mechanome.core.errors import BadInput, nearest
from mechanome.engine.architecture import Architecture, Block, Part, Tower, child
from mechanome.engine.families import (
    EMBED_NAMES,
    FINAL_NORM_NAMES,
    FUSED_PER_HEAD,
    HEAD_COUNT_NAMES,
    PROJECTIONS,
    ROLES,
    SHAPES,
    BlockShape,
    Layout,
)


def discover(root: nn.Module, layout: Layout | None = None) -> Architecture:
    """Find the towers of a model.

    Args:
        root: any module.
        layout: the user's description; without it the families table decides.

    Returns:
        the architecture; with no towers when nothing fits (then only `path:` sites and `logits` are served).
    """
    if layout is not None:
        return _from_layout(root, layout)
    found = [(path, blocks, shapes) for path, blocks, shapes in _block_lists(root)]
    names = _tower_names([path for path, _, _ in found])
    towers = tuple(_tower(root, path, blocks, shapes, name) for (path, blocks, shapes), name in zip(found, names))
    return Architecture(root, towers, _unembed(root))


def _block_lists(root: nn.Module) -> Iterator[tuple[str, nn.ModuleList, list[BlockShape]]]:
    for path, module in root.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) == 0:
            continue
        shapes = [_shape_of(block) for block in module]
        if all(shapes):
            yield path, module, [s for s in shapes if s]


def _shape_of(block: nn.Module) -> BlockShape | None:
    for shape in SHAPES:
        if shape.block in type(block).__name__ and all(child(block, r) is not None for r in shape.requires):
            return shape
    return None


def _tower_names(paths: list[str]) -> list[str | None]:
    if len(paths) <= 1:
        return [None] * len(paths)
    hints = {"vision": ("vision", "visual", "image"), "audio": ("audio", "speech"), "text": ("text", "language")}
    names: list[str | None] = []
    for path in paths:
        kinds = [k for k, words in hints.items() if any(w in path for w in words)]
        side = "encoder" if "encoder" in path else "decoder"
        names.append(kinds[0] if kinds and kinds[0] not in names else side)
    return names if len(set(names)) == len(names) else [n if names.count(n) == 1 else None for n in names]


def _tower(root: nn.Module, path: str, blocks: nn.ModuleList, shapes: list[BlockShape], name: str | None) -> Tower:
    built = tuple(
        _block(root, Part(f"{path}.{i}", block), shape) for i, (block, shape) in enumerate(zip(blocks, shapes))
    )
    base = path.rpartition(".")[0]
    post = built[-1].style == "post"
    return Tower(
        name,
        path,
        built,
        embed=_near(root, base, EMBED_NAMES, stop_at_towers=True),
        ln_final=None if post else _near(root, base, FINAL_NORM_NAMES, stop_at_towers=True),
        causal=_is_causal(built),
    )


def _near(root: nn.Module, base: str, names: tuple[str, ...], stop_at_towers: bool) -> Part | None:
    """The first child with one of these names, looking at the blocks' parent, then outward."""
    while True:
        parent = child(root, base)
        for name in names:
            found = child(parent, name) if parent is not None else None
            if found is not None and not isinstance(found, nn.ModuleList):
                return Part(f"{base}.{name}" if base else name, found)
        lists = sum(1 for _ in _block_lists(parent)) if parent is not None and stop_at_towers else 0
        if not base or lists > 1:
            return None
        base = base.rpartition(".")[0]


def _unembed(root: nn.Module) -> Part | None:
    get = getattr(root, "get_output_embeddings", None)
    head = get() if callable(get) else None
    if isinstance(head, nn.Module):
        path = next((p for p, m in root.named_modules() if m is head), "")
        return Part(path, head) if path else None
    for name in ("lm_head", "embed_out", "proj_out", "vocab_projector", "classifier", "decoder", "head"):
        found = child(root, name)
        if isinstance(found, nn.Linear):
            return Part(name, found)
    return None


def _config_of(block: nn.Module, root: nn.Module, attention: nn.Module | None) -> Any:
    return getattr(attention, "config", None) or getattr(block, "config", None) or getattr(root, "config", None)


def _block(root: nn.Module, part: Part, shape: BlockShape) -> Block:
    roles = {r: Part(f"{part.path}.{p}", m) for r, p in shape.roles.items() if (m := child(part.module, p)) is not None}
    for role, (below, names) in PROJECTIONS.items():
        if role in roles or below not in roles:
            continue
        for name in names:
            found = child(roles[below].module, name)
            if found is not None:
                roles[role] = Part(f"{roles[below].path}.{name}", found)
                break
    for whole, source in (("attn_out", "attention"), ("mlp_out", "mlp"), ("cross_out", "cross")):
        if whole not in roles and source in roles:
            roles[whole] = roles[source]
    _settle_mlp(roles)
    attention = roles["attention"].module if "attention" in roles else None
    config = _config_of(part.module, root, attention)
    style = shape.style(config) if callable(shape.style) else shape.style
    heads, kv = _heads(attention, config, roles)
    fused, reasons = _fused(roles, config)
    return Block(part, roles, style, heads, kv, _on_registry(root, attention), fused, reasons)


def _settle_mlp(roles: dict[str, Part]) -> None:
    """Keep either expert roles or dense roles: a mixture's neurons are not one tensor."""
    if "experts" in roles:
        for role in ("gate_proj", "up_proj", "gate_up", "down_proj"):
            roles.pop(role, None)
    else:
        roles.pop("router", None)


def _heads(attention: nn.Module | None, config: Any, roles: Mapping[str, Part]) -> tuple[int, int]:
    if attention is None:
        return 0, 0
    sources = [attention, config]
    heads = next((int(v) for s in sources for n in HEAD_COUNT_NAMES if isinstance(v := getattr(s, n, None), int)), 0)
    groups = getattr(attention, "num_key_value_groups", None)
    if isinstance(groups, int) and groups:
        return heads, heads // groups
    names = ("num_key_value_heads", "num_kv_heads")
    kv = next((v for s in sources for n in names if isinstance(v := getattr(s, n, None), int) and v), heads)
    return heads, kv


def _fused(roles: Mapping[str, Part], config: Any) -> tuple[str, dict[str, str]]:
    if "qkv" not in roles:
        return "", {}
    if roles["qkv"].path.rpartition(".")[2] not in FUSED_PER_HEAD:
        return "concat", {}
    if getattr(config, "new_decoder_architecture", False) or getattr(config, "multi_query", False):
        why = "its fused projection groups queries around each key/value head"
        return "", {"q_pre": why, "k_pre": why}
    return "per_head", {}


def _on_registry(root: nn.Module, attention: nn.Module | None) -> bool:
    """Whether the class of this attention asks the registry which function to run.

    The self-test counts the calls; this only reads what Transformers itself declares.
    """
    if attention is None:
        return False
    config = getattr(attention, "config", None)
    for module in root.modules():
        check = getattr(module, "_can_set_attn_implementation", None)
        if check is not None and getattr(module, "config", None) is config and config is not None:
            return bool(check())
    return False


def _is_causal(blocks: tuple[Block, ...]) -> bool:
    for block in blocks:
        if "attention" in block.roles:
            flag = getattr(block.roles["attention"].module, "is_causal", None)
            return bool(flag) if flag is not None else True
    return any("mixer" in b.roles for b in blocks)


def _from_layout(root: nn.Module, layout: Layout) -> Architecture:
    stack = child(root, layout.blocks)
    if not isinstance(stack, (nn.ModuleList, nn.Sequential)):
        raise BadInput(
            f"layout blocks '{layout.blocks}'", "no list of modules is there", "name an nn.ModuleList or nn.Sequential"
        )
    for role in layout.roles:
        if role not in ROLES:
            raise BadInput(f"layout role '{role}'", "there is no such role", nearest(role, ROLES))
    shape = BlockShape((), layout.roles, layout.style)
    blocks = []
    for i, module in enumerate(stack):
        block = _block(root, Part(f"{layout.blocks}.{i}", module), shape)
        missing = [r for r, p in layout.roles.items() if child(module, p) is None]
        if missing and i == 0:
            raise BadInput(
                f"layout role '{missing[0]}'",
                f"block 0 has no child '{layout.roles[missing[0]]}'",
                "print(model) shows the children",
            )
        heads = (layout.n_heads, layout.n_kv or layout.n_heads) if layout.n_heads else (block.n_heads, block.n_kv)
        blocks.append(Block(block.part, block.roles, block.style, *heads, block.registry, block.fused, block.reasons))
    parts = {}
    for name in ("embed", "ln_final", "unembed"):
        path = getattr(layout, name)
        found = child(root, path) if path else None
        if path and found is None:
            raise BadInput(f"layout {name} '{path}'", "no module is there", "print(model) shows the children")
        parts[name] = Part(path, found) if found is not None else None
    tower = Tower(
        None,
        layout.blocks,
        tuple(blocks),
        parts["embed"],
        parts["ln_final"],
        layout.causal,
        layout.feature_map,
        layout.additive,
    )
    return Architecture(root, (tower,), parts["unembed"])
