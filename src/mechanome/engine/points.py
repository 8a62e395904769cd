"""The points table: every tensor that has a name, what exactly it is, and its axes.

One row per point; capture, edits, docs, the self-test and the family matrix all derive from the row. A name
never changes its meaning with a mode, a backend or a model family.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TOWERS = ("audio", "decoder", "encoder", "text", "vision")

Where = Literal["input", "output", "attention", "derived"]


@dataclass(frozen=True)
class Point:
    """One named place in a network.

    Args:
        name: the point's name.
        definition: the exact tensor, in one sentence.
        axes: axis names in order; `batch` is always first.
        where: `input` or `output` of a module, inside the `attention` function, or `derived` from other points.
        coordinates: which of head, kv, neuron, expert a site may add.
        per_layer: whether it exists once per block.
        writable: whether edits may change it.
    """

    name: str
    definition: str
    axes: tuple[str, ...]
    where: Where = "output"
    coordinates: tuple[str, ...] = ()
    per_layer: bool = True
    writable: bool = True

    @property
    def differentiable(self) -> bool:
        """Whether gradients with respect to it are served: every point that can be written."""
        return self.writable

    @property
    def heads(self) -> str | None:
        """The name of the head axis, if there is one (`head` or `kv`)."""
        return next((a for a in self.axes if a in ("head", "kv")), None)


_STREAM = ("batch", "pos", "d_model")
_MLP = ("batch", "pos", "neuron")


def _head(width: str = "d_head") -> tuple[str, ...]:
    return ("batch", "pos", "head", width)


_KV = ("batch", "pos", "kv", "d_head")
_PATTERN = ("batch", "head", "query", "key")
_N, _H, _G, _E = ("neuron",), ("head",), ("kv",), ("expert",)

_ROWS = (
    Point("embed", "output of the (token, patch or frame) embedding module", _STREAM, per_layer=False, coordinates=_N),
    Point("resid_pre", "the residual stream as the block receives it", _STREAM, "input", _N),
    Point("ln1", "output of the norm on the attention side of the block", _STREAM, coordinates=_N),
    Point("q_pre", "query projection, before q-norm and rotary", _head(), coordinates=_H),
    Point("k_pre", "key projection, before k-norm and rotary", _KV, coordinates=_G),
    Point("q", "queries as attention uses them (after q-norm and rotary)", _head(), "attention", _H),
    Point("k", "keys as attention uses them, per key/value head", _KV, "attention", _G),
    Point("v", "values as attention uses them, per key/value head", _KV, "attention", _G),
    Point("scores", "attention scores: scaled, capped, biased and masked", _PATTERN, "attention", _H),
    Point("pattern", "attention probabilities; with sinks a row sums below 1", _PATTERN, "attention", _H),
    Point("z", "per-head mixed values: the input of the output projection", _head(), "input", _H),
    Point(
        "head_out",
        "what each head adds through the output projection: z W_O, without bias",
        ("batch", "pos", "head", "d_model"),
        "derived",
        _H,
        writable=False,
    ),
    Point("attn_out", "what attention adds to the residual stream", _STREAM, coordinates=_N),
    Point("cross_q", "cross-attention queries as attention uses them", _head(), "attention", _H),
    Point(
        "cross_k",
        "cross-attention keys over the encoder's positions",
        ("batch", "src", "kv", "d_head"),
        "attention",
        _G,
    ),
    Point(
        "cross_v",
        "cross-attention values over the encoder's positions",
        ("batch", "src", "kv", "d_head"),
        "attention",
        _G,
    ),
    Point("cross_scores", "cross-attention scores", _PATTERN, "attention", _H),
    Point("cross_pattern", "cross-attention probabilities", _PATTERN, "attention", _H),
    Point("cross_z", "per-head mixed values of cross-attention", _head(), "input", _H),
    Point("cross_out", "what cross-attention adds to the residual stream", _STREAM, coordinates=_N),
    Point(
        "mixer_out", "what a non-attention mixer (state space, recurrent) adds to the stream", _STREAM, coordinates=_N
    ),
    Point("resid_mid", "the residual stream between the token mixer and the MLP", _STREAM, "input", _N),
    Point("ln2", "output of the norm on the MLP side of the block", _STREAM, coordinates=_N),
    Point("router", "router logits over experts", ("batch", "pos", "expert"), coordinates=_E),
    Point("mlp_gate", "gate projection, before the activation function", _MLP, coordinates=_N),
    Point("mlp_up", "up projection (in an MLP without gate: before the activation function)", _MLP, coordinates=_N),
    Point("mlp_act", "the MLP's neurons: the input of the down projection", _MLP, "input", _N),
    Point("mlp_out", "what the MLP (or the experts together) adds to the residual stream", _STREAM, coordinates=_N),
    Point("resid_post", "the residual stream as the block returns it", _STREAM, "output", _N),
    Point("ln_final", "output of the last norm, read by the unembedding", _STREAM, per_layer=False, coordinates=_N),
    Point("logits", "the model's scores over its vocabulary or classes", ("batch", "pos", "vocab"), per_layer=False),
)

POINTS: dict[str, Point] = {row.name: row for row in _ROWS}
