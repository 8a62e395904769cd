"""The table of named weights: what each kind of weight is, and the rule that finds it in a block.

A rule says which stored tensor (`Stored`) and which part of it (`Selection`) a name means; fused, grouped and
stacked layouts differ only in the selection. Where a model has no such single matrix the rule refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from mechanome.core.errors import NotServed, UnknownName
from mechanome.engine.architecture import Architecture, Block, Part, Tower, child
from mechanome.engine.parameters import Selection, Stored, bias, embedding, gain, matrix, named


@dataclass(frozen=True)
class Ask:
    """A parsed name, and the place in the architecture it speaks of."""

    name: str
    architecture: Architecture
    tower: Tower | None
    block: Block | None
    index: int | None

    def part(self, role: str) -> Part:
        """The module that plays a role in the block.

        Raises:
            NotServed: there is none, with the reason.
        """
        assert self.block is not None
        if role in self.block.roles:
            return self.block.roles[role]
        below = self.block.roles.get("attention")
        if role in ("q_proj", "k_proj", "v_proj") and below is not None and child(below.module, "kv_b_proj"):
            raise self.latent(below)
        why = f"{type(self.block.part.module).__name__} has no {role.replace('_', ' ')}"
        raise NotServed(f"{self.name} in {self.block.part.path}", why, "print(model.module) shows its parts")

    def latent(self, attention: Part) -> NotServed:
        """The refusal for attention that makes queries, keys and values in two steps with a norm between."""
        steps = ", ".join(n for n, m in attention.module.named_children() if n.startswith(("q_", "kv_")))
        return NotServed(
            f"{self.name} in {attention.path}",
            f"latent attention has no single matrix here: it chains {steps}",
            f"read these modules, as in model.module.get_submodule('{attention.path}')",
        )


Rule = Callable[[Ask], tuple[Stored, Selection]]


def _cut(stored: Stored, axis: int = -1, **more: int | bool | None) -> tuple[Stored, Selection]:
    return stored, replace(Selection(stored.transposed, axis=axis), **more)  # type: ignore[arg-type]


def _projection(letter: str, read: Callable[[Part], Stored], prefix: str = "") -> Rule:
    """Queries, keys or values: `[head, d_model, d_head]`, or a bias `[head, d_head]`."""

    def rule(ask: Ask) -> tuple[Stored, Selection]:
        block = ask.block
        assert block is not None
        if not prefix and "qkv" in block.roles:
            return _fused(ask, read, letter)
        part = ask.part(f"{prefix}{letter}_proj")
        if part.path.endswith("q_b_proj"):
            raise ask.latent(block.roles["attention"])
        heads = block.n_heads if letter == "q" or prefix else block.n_kv
        return _cut(read(part), heads=heads, head=_within(ask, heads))

    return rule


def _fused(ask: Ask, read: Callable[[Part], Stored], letter: str) -> tuple[Stored, Selection]:
    block = ask.block
    assert block is not None
    part = ask.part("qkv")
    stored, heads = read(part), block.n_heads
    width = stored.tensor.shape[0 if stored.transposed or stored.tensor.dim() == 1 else 1]
    if block.fused == "per_head":
        d = width // heads // 3
        start = "qkv".index(letter) * d
        return _cut(stored, start=start, stop=start + d, heads=heads, interleaved=True, head=_within(ask, heads))
    d = _width(matrix(ask.part("o_proj"))) // heads
    kv = (width // d - heads) // 2
    if block.fused == "concat" or kv == 1:
        start, n = {"q": (0, heads), "k": (heads, kv), "v": (heads + kv, kv)}[letter]
        return _cut(stored, start=start * d, stop=(start + n) * d, heads=n, head=_within(ask, n))
    each = heads // kv  # per group: its queries, one key, one value
    if letter != "q":
        start = (each + (letter == "v")) * d
        return _cut(stored, start=start, stop=start + d, heads=kv, interleaved=True, head=_within(ask, kv))
    head = _within(ask, heads)
    if head is None:
        raise NotServed(f"{ask.name} in {part.path}", "queries lie in groups between keys and values", "name one head")
    start = (head // each * (each + 2) + head % each) * d
    return _cut(stored, start=start, stop=start + d)


def _width(stored: Stored) -> int:
    """How many inputs a matrix reads."""
    return stored.tensor.shape[-1 if stored.transposed else -2]


def _within(ask: Ask, count: int) -> int | None:
    if ask.index is not None and ask.index >= count:
        raise UnknownName(f"weight '{ask.name}'", f"{ask.index} does not exist", f"it has 0 to {count - 1}")
    return ask.index


def _output(prefix: str) -> Rule:
    """The output projection: `[head, d_head, d_model]`."""

    def rule(ask: Ask) -> tuple[Stored, Selection]:
        assert ask.block is not None
        heads = ask.block.n_heads
        return _cut(matrix(ask.part(f"{prefix}o_proj")), axis=-2, heads=heads, head=_within(ask, heads))

    return rule


def _whole(role: str, read: Callable[[Part], Stored]) -> Rule:
    return lambda ask: _cut(read(ask.part(role)))


def _mlp(kind: str, is_bias: bool) -> Rule:
    """A matrix or bias of the MLP, or of one expert or all: `[expert, in, out]`."""

    def rule(ask: Ask) -> tuple[Stored, Selection]:
        assert ask.block is not None
        roles = ask.block.roles
        if "experts" in roles:
            return _experts(ask, roles["experts"], kind, is_bias)
        if ask.index is not None:
            raise UnknownName(f"weight '{ask.name}'", "this block has no experts", "leave .e out")
        read = bias if is_bias else matrix
        if kind != "down" and "gate_up" in roles:
            stored = read(roles["gate_up"])
            half = stored.tensor.shape[-1 if is_bias or not stored.transposed else -2] // 2
            return _cut(stored, start=0 if kind == "gate" else half, stop=half if kind == "gate" else None)
        return _cut(read(ask.part(f"{kind}_proj")))

    return rule


def _experts(ask: Ask, part: Part, kind: str, is_bias: bool) -> tuple[Stored, Selection]:
    module, tail = part.module, "_bias" if is_bias else ""
    fused = kind != "down" and hasattr(module, "gate_up_proj")
    flag = getattr(module, "is_transposed", None)
    if not isinstance(flag, bool):
        raise NotServed(f"{ask.name} in {part.path}", f"how {type(module).__name__} lies is not known", "read it there")
    if is_bias and not hasattr(module, f"{'gate_up' if fused else kind}_proj_bias"):
        raise NotServed(f"{ask.name} in {part.path}", f"{type(module).__name__} has no biases", "treat it as zero")
    # Transformers calls a stack transposed when it is stored `[expert, in, out]`, which is our orientation.
    stored = named(part, f"{'gate_up' if fused else kind}_proj{tail}", transposed=not flag and not is_bias)
    expert = _within(ask, stored.tensor.shape[0])
    if not fused:
        return _cut(stored, expert=expert)
    n = stored.tensor.shape[-2 if stored.transposed else -1]
    if getattr(module, "is_concatenated", True):
        return _cut(stored, expert=expert, start=0 if kind == "gate" else n // 2, stop=n // 2 if kind == "gate" else n)
    return _cut(stored, expert=expert, start=int(kind != "gate"), step=2)


def _norm(role: str, read: Callable[[Part], Stored]) -> Rule:
    def rule(ask: Ask) -> tuple[Stored, Selection]:
        if role == "ln_final":
            part = ask.tower.ln_final if ask.tower else None
            if part is None:
                raise NotServed(ask.name, "no norm stands after the last block", "use the last block's ln2")
            return _cut(read(part))
        if role in ("attn_out", "mlp_out") and ask.block is not None and ask.block.style != "sandwich":
            raise NotServed(f"{ask.name} in {ask.block.part.path}", "no norm stands after this part", "use ln1 or ln2")
        return _cut(read(ask.part(role)))

    return rule


_QK_NORMS = {"q": ("q_norm", "q_layernorm", "query_layernorm"), "k": ("k_norm", "k_layernorm", "key_layernorm")}
_TABLES = ("word_embeddings", "token_embedding", "tok_embeddings", "embed_tokens")
_POSITIONS = (
    "wpe", "embed_positions", "position_embeddings", "position_embedding", "embeddings.position_embeddings",
    "embeddings.position_embedding",
)  # fmt: skip


def _qk_norm(letter: str) -> Rule:
    def rule(ask: Ask) -> tuple[Stored, Selection]:
        attention = ask.part("attention")
        for name in _QK_NORMS[letter]:
            found = child(attention.module, name)
            if found is not None:
                return _cut(gain(Part(f"{attention.path}.{name}", found)))
        raise NotServed(f"{ask.name} in {attention.path}", f"it does not norm {letter}", f"use {letter}_pre as it is")

    return rule


def _embedding(ask: Ask) -> tuple[Stored, Selection]:
    part = ask.tower.embed if ask.tower else None
    if part is not None and not isinstance(part.module, nn.Embedding):
        found = [Part(f"{part.path}.{n}", m) for n in _TABLES if (m := child(part.module, n)) is not None]
        # An adapter's wrapper is no Embedding but holds the table all the same.
        part = found[0] if found else part if hasattr(part.module, "base_layer") else None
    if part is None:
        raise NotServed(ask.name, "this tower does not look its input up in a table", "use resid_pre.0")
    return _cut(embedding(part))


def _positions(ask: Ask) -> tuple[Stored, Selection]:
    root, base = ask.architecture.root, ask.tower.path if ask.tower else ""
    while base:
        base = base.rpartition(".")[0]
        here = child(root, base)
        for name in _POSITIONS if here is not None else ():
            path = f"{base}.{name}" if base else name
            owner, _, last = path.rpartition(".")
            holder = child(root, owner)
            value = getattr(holder, last, None) if holder is not None else None
            if isinstance(value, nn.Embedding):
                # OPT keeps unused rows before position 0 and says how many.
                return _cut(
                    replace(matrix(Part(path, value)), transposed=False),
                    axis=-2,
                    start=int(getattr(value, "offset", 0)),
                )
            if isinstance(value, nn.Parameter) and holder is not None:
                return _cut(named(Part(owner, holder), last), expert=0 if value.dim() == 3 else None)
    raise NotServed(ask.name, "this tower learns no absolute positions", "they enter inside attention, or not at all")


def _unembed(read: Callable[[Part], Stored]) -> Rule:
    def rule(ask: Ask) -> tuple[Stored, Selection]:
        part = ask.architecture.unembed
        if part is None:
            raise NotServed(ask.name, "no module maps the last state to logits", "use ln_final")
        above = part.path.rpartition(".")[0]
        holder = child(ask.architecture.root, above)
        outside = isinstance(getattr(holder, "bias", None), nn.Parameter)  # esm adds it after the map
        if read is bias and getattr(part.module, "bias", None) is None and holder is not None and outside:
            return _cut(named(Part(above, holder), "bias"))
        return _cut(read(part))

    return rule


@dataclass(frozen=True)
class Kind:
    """One kind of weight: its axes, what it reads, and the coordinate a name may add."""

    axes: tuple[str, ...]
    definition: str
    rule: Rule
    coordinate: str = ""
    per_layer: bool = True


def _table() -> dict[str, Kind]:
    rows: dict[str, Kind] = {}
    for prefix, where in (("", ""), ("cross_", "of cross-attention ")):
        for letter, short, word in (("q", "h", "query"), ("k", "kv", "key"), ("v", "kv", "value")):
            axis, role = ("head" if short == "h" else "kv"), letter.upper()
            rows[f"W_{prefix}{role}"] = Kind(
                (axis, "d_model", "d_head"), f"{word} maps {where}", _projection(letter, matrix, prefix), short
            )
            rows[f"b_{prefix}{role}"] = Kind(
                (axis, "d_head"), f"{word} biases {where}", _projection(letter, bias, prefix), short
            )
        rows[f"W_{prefix}O"] = Kind(("head", "d_head", "d_model"), f"output maps {where}", _output(prefix), "h")
        rows[f"b_{prefix}O"] = Kind(("d_model",), f"output bias {where}", _whole(f"{prefix}o_proj", bias))
    for name, kind, axes in (
        ("gate", "gate", ("d_model", "d_mlp")),
        ("in", "up", ("d_model", "d_mlp")),
        ("out", "down", ("d_mlp", "d_model")),
    ):
        rows[f"W_{name}"] = Kind(axes, f"{kind} projection of the MLP, or of experts", _mlp(kind, False), "e")
        rows[f"b_{name}"] = Kind(axes[1:], f"bias of the {kind} projection", _mlp(kind, True), "e")
    rows["W_router"] = Kind(("d_model", "expert"), "router of a mixture of experts", _whole("router", matrix))
    rows["b_router"] = Kind(("expert",), "bias of the router", _whole("router", bias))
    norms = {
        "ln1": "ln1", "ln2": "ln2", "ln_cross": "ln_cross", "ln1_post": "attn_out", "ln2_post": "mlp_out",
        "ln_final": "ln_final",
    }  # fmt: skip
    for name, role in norms.items():
        layered = role != "ln_final"
        rows[f"g_{name}"] = Kind(("d_model",), f"effective gain of {name}", _norm(role, gain), per_layer=layered)
        rows[f"b_{name}"] = Kind(("d_model",), f"bias of {name}", _norm(role, bias), per_layer=layered)
    rows["g_q"] = Kind(("d_head",), "effective gain of the query norm", _qk_norm("q"))
    rows["g_k"] = Kind(("d_head",), "effective gain of the key norm", _qk_norm("k"))
    rows["W_E"] = Kind(("vocab", "d_model"), "token table, scaled as lookups are", _embedding, per_layer=False)
    rows["W_pos"] = Kind(("pos", "d_model"), "learned absolute positions", _positions, per_layer=False)
    rows["W_U"] = Kind(("d_model", "vocab"), "unembedding: logits before soft-caps", _unembed(matrix), per_layer=False)
    rows["b_U"] = Kind(("vocab",), "bias of the unembedding", _unembed(bias), per_layer=False)
    return rows


WEIGHTS: dict[str, Kind] = _table()
