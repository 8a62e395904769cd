"""The table of foreign names: one row says what one name of another tool means here.

Hook names of TransformerLens, SAELens and circuit-tracer share their tails (`attn.hook_z`), so these rows are
generated from one list; Hugging Face and nnterp have lists of their own. A row whose meaning depends on how the
model is built has a `resolve`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mechanome.engine.name_meanings import (
    before_cap,
    gated_only,
    hidden_state,
    last_state,
    mlp_in,
    module_input,
    module_output,
    pre,
    shifted,
    state_index,
    ungated_only,
)  # fmt: skip
from mechanome.engine.site import Site

if TYPE_CHECKING:
    from mechanome.engine.model import Model

SCHEMES = ("circuit_tracer", "hugging_face", "mechanome", "nnterp", "saelens", "transformer_lens")


@dataclass(frozen=True)
class Row:
    """One foreign name.

    Args:
        scheme: whose name it is.
        template: the name, with `{n}` where the index stands.
        point: our point; empty where only the model can say.
        tower: the tower the name speaks of.
        exact: whether the tensors are the same whatever the model.
        note: the difference, or a remark.
        norm: the foreign tensor is the point's, before gain and bias.
        resolve: `(model, tower, index) -> site`, where the model decides.
        usual: `index -> (point, layer)` without a model; by default the row's point at that layer.
        extra: how many more indices than layers there are.
        refused, fix: why there is no equivalent, and what to do.
        reads, writes: whether the row is used from, and to, the foreign scheme.
        when: `(site, model)`: whether the row may be used to write this site.
        shift: what is added to the layer when writing.
    """

    scheme: str
    template: str
    point: str = ""
    tower: str | None = None
    exact: bool = True
    note: str = ""
    norm: bool = False
    resolve: Callable[[Model, str | None, int], Site] | None = None
    usual: Callable[[int], tuple[str, int | None]] | None = None
    extra: int = 0
    refused: str = ""
    fix: str = ""
    reads: bool = True
    writes: bool = True
    when: Callable[[Site, Model | None], bool] | None = None
    shift: int = 0

    @property
    def layered(self) -> bool:
        """Whether the name speaks of one block, whether or not it says which."""
        return "{n}" in self.template or self.scheme == "circuit_tracer"

    @property
    def pattern(self) -> str:
        """A regular expression for the name; only bracketed indices may count from the end."""
        number = r"(?P<n>-?\d+)" if "[{n}]" in self.template else r"(?P<n>\d+)"
        return re.escape(self.template).replace(re.escape("{n}"), number)


# The rows ---------------------------------------------------------------------------------------------------------

_NORMED = "it is read before the norm's gain and bias (which folded weights move into the next matrix)"
_COPY = "it is a per-head copy of the stream that exists only there"
_ASK = "it depends on how the block is built"
_HOOKS = ("transformer_lens", "saelens", "circuit_tracer")
_BRIDGE = ("transformer_lens",)


def _hook(tail: str, point: str = "", schemes: tuple[str, ...] = _HOOKS, **more: Any) -> Iterator[Row]:
    for scheme in schemes:
        prefix = "" if scheme == "circuit_tracer" else "blocks.{n}."
        yield Row(scheme, prefix + tail, point, **more)


def _tails() -> Iterator[Row]:
    for point in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"):
        yield from _hook(f"hook_{point}", point)
    for tail, point in (("q", "q_pre"), ("k", "k_pre"), ("v", "v"), ("z", "z"), ("pattern", "pattern")):
        yield from _hook(f"attn.hook_{tail}", point)
    for letter in "qk":
        yield from _hook(f"attn.hook_rot_{letter}", letter, note="exists there only in models with rotary")
    yield from _hook("attn.hook_attn_scores", "scores", note="masked entries are -inf there, the lowest number here")
    yield from _hook("attn.hook_result", "head_out")
    yield from _hook("mlp.hook_post", "mlp_act")
    yield from _hook("mlp.gate.hook_out", "mlp_gate", _BRIDGE)
    yield from _hook("mlp.in.hook_out", "mlp_up", _BRIDGE)
    for letter, point in (("q", "q_pre"), ("k", "k_pre"), ("v", "v")):
        yield from _hook(f"attn.{letter}.hook_out", point, _BRIDGE, writes=False)
    yield from _hook("attn.o.hook_in", "z", _BRIDGE, writes=False)
    yield from _hook("mlp.out.hook_in", "mlp_act", _BRIDGE, writes=False)
    yield from _hook("hook_in", "resid_pre", _BRIDGE, writes=False)
    yield from _hook("hook_out", "resid_post", _BRIDGE, writes=False)
    older = ("saelens", "circuit_tracer", "transformer_lens")
    yield from _hook(
        "mlp.hook_pre", "", older, resolve=pre, note="it is the gate in a gated MLP, else the up projection"
    )
    yield from _hook("mlp.hook_pre_linear", "mlp_up", ("saelens", "circuit_tracer"), when=gated_only)
    yield from _hook("mlp.hook_pre", "mlp_gate", ("saelens", "circuit_tracer"), reads=False)
    yield from _hook("mlp.hook_pre", "mlp_up", ("saelens", "circuit_tracer"), reads=False, when=ungated_only)
    yield from _hook("mlp.hook_pre_linear", "mlp_up", _BRIDGE, writes=False)
    for norm in ("ln1", "ln2"):
        yield from _hook(f"{norm}.hook_out", norm, _BRIDGE)
        yield from _hook(f"{norm}.hook_normalized", norm, exact=False, norm=True, note=_NORMED, writes=False)
        yield from _hook(
            f"{norm}.hook_scale", refused="the norm's denominator has no site", fix="compute it from resid"
        )
    for part, point, norm, post in (("attn", "attn_out", "ln1", "resid_pre"), ("mlp", "mlp_out", "ln2", "resid_mid")):
        role = "attention" if part == "attn" else "mlp"
        out, into = module_output(role, point), module_input(norm, post)
        yield from _hook(f"{part}.hook_out", point, resolve=out, note=f"{_ASK}: a norm may follow it", writes=False)
        yield from _hook(f"{part}.hook_in", norm, resolve=into, note=f"{_ASK}: norms may come after", writes=False)
    for copied in ("hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input"):
        yield from _hook(
            copied, refused=_COPY, fix="use resid_pre; to change one head's input edit its q_pre, k_pre or v"
        )
    yield from _hook("hook_mlp_in", resolve=mlp_in, note="it is the input of the norm before the MLP", writes=False)


def _globals() -> Iterator[Row]:
    for scheme in ("transformer_lens", "saelens"):
        yield Row(scheme, "hook_embed", "embed", note="tokens alone, where our embed may add positions (bert)")
        yield Row(scheme, "embed.hook_out", "embed", writes=False)
        yield Row(scheme, "hook_pos_embed", refused="positions have no site", fix="use the weight W_pos")
        yield Row(scheme, "hook_tokens", refused="tokens are inputs", fix="use run.batch.input_ids")
        yield Row(scheme, "ln_final.hook_out", "ln_final", writes=scheme == "transformer_lens")
        yield Row(scheme, "unembed.hook_in", "ln_final", writes=False)
        yield Row(scheme, "ln_final.hook_normalized", "ln_final", exact=False, norm=True, note=_NORMED, writes=False)
        yield Row(scheme, "ln_final.hook_scale", refused="the norm's denominator has no site", fix="compute it")
        for name in ("unembed.hook_out", "hook_unembed"):
            note = "logits before the final soft-cap"
            yield Row(scheme, name, "logits", resolve=before_cap, note=note, writes=name == "unembed.hook_out")


def _towers() -> Iterator[Row]:
    """TransformerLens' encoder-decoder names. A decoder block's norms and middle states are counted differently."""
    moved = {"hook_resid_mid2": "resid_mid", "ln3.hook_out": "ln2"}
    for row in _tails():
        if row.scheme != "transformer_lens" or row.refused:
            continue
        tail = row.template.removeprefix("blocks.{n}.")
        yield replace(row, template=f"encoder_blocks.{{n}}.{tail}", tower="encoder")
        if not tail.startswith("ln2.") and tail not in ("hook_resid_mid", "hook_mlp_in"):
            tail = f"self_{tail}" if tail.startswith("attn.") else tail
            yield replace(row, template=f"decoder_blocks.{{n}}.{tail}", tower="decoder")
    cross = {f"cross_attn.hook_{t}": f"cross_{t}" for t in ("q", "k", "v", "z", "pattern")}
    cross |= {"cross_attn.hook_attn_scores": "cross_scores", "hook_cross_attn_out": "cross_out"}
    for tail, point in (moved | cross).items():
        yield Row("transformer_lens", f"decoder_blocks.{{n}}.{tail}", point, "decoder")
    for tower in ("encoder", "decoder"):
        yield Row("transformer_lens", f"{tower}_ln_final.hook_out", "ln_final", tower)


def _hugging_face() -> Iterator[Row]:
    scheme = "hugging_face"
    for tower in (None, "encoder", "decoder"):
        prefix = f"{tower}_" if tower else ""
        name = f"{prefix}hidden_states[{{n}}]"
        yield Row(
            scheme, name, "resid_post", tower, resolve=hidden_state, extra=1, shift=1, when=state_index,
            usual=lambda i: ("resid_post", i - 1) if i else ("resid_pre", 0),
            note="the last state is ln_final in most text models",
        )  # fmt: skip
        yield Row(scheme, name, "resid_post", tower, reads=False, when=shifted)
        yield Row(scheme, name, "resid_pre", tower, reads=False, when=state_index)
        yield Row(scheme, name, "ln_final", tower, reads=False, when=state_index)
        yield Row(scheme, f"{prefix}attentions[{{n}}]", "pattern", tower)
    yield Row(scheme, "cross_attentions[{n}]", "cross_pattern", "decoder")
    yield Row(scheme, "logits", "logits")
    yield Row(
        scheme,
        "last_hidden_state",
        "ln_final",
        resolve=last_state,
        writes=False,
        note="without final norm: last block",
    )


def _nnterp() -> Iterator[Row]:
    scheme = "nnterp"
    yield Row(scheme, "layers_input[{n}]", "resid_pre")
    yield Row(scheme, "layers_output[{n}]", "resid_post")
    yield Row(scheme, "attention_probabilities[{n}]", "pattern")
    yield Row(scheme, "token_embeddings", "embed")
    yield Row(scheme, "logits", "logits", reads=False)
    for part, role, point, norm, post in (
        ("attentions", "attention", "attn_out", "ln1", "resid_pre"),
        ("mlps", "mlp", "mlp_out", "ln2", "resid_mid"),
    ):
        out, into = module_output(role, point), module_input(norm, post)
        yield Row(scheme, f"{part}_output[{{n}}]", point, resolve=out, note=f"{_ASK}: a norm may follow it")
        yield Row(scheme, f"{part}_input[{{n}}]", norm, resolve=into, note=f"{_ASK}: norms may come after")


ROWS: tuple[Row, ...] = (*_tails(), *_globals(), *_towers(), *_hugging_face(), *_nnterp())
