"""Reading attention: for one prompt, which token each query looks at, and what it would take from there.

Everything in this family is computed from three tensors a layer: the pattern, the values, and the output map of each
head. A `Reading` holds them. It is refused where head outputs are anything else than `pattern @ values`, because then
no share of a token adds up to what the head says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed
from mechanome.engine import Batch, Model, Site
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Inputs, token_strings
from mechanome.engine.memory import Budget

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest difference of `pattern @ values` and `z`, relative to the largest `z`, by the model's type."""
_COARSE = 5e-2


@dataclass(frozen=True)
class AttentionLayer:
    """What the attention of one layer did with one prompt; fp32, or fp64 for a model in fp64.

    Args:
        layer: its index.
        pattern: attention weights, `[head, query, key]`.
        values: as attention mixes them, per key/value head, `[kv, key, d_v]`.
        output_weight: the output projection, `[head, d_v, d_model]`, without its bias.
        stream: the residual stream as the block receives it, `[query, d_model]`; None where it was not asked for.
        normed_after: whether a norm stands between attention's output and the residual stream ("sandwich").
    """

    layer: int
    pattern: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    output_weight: Tensor = field(repr=False)
    stream: Tensor | None = field(default=None, repr=False)
    normed_after: bool = False


@dataclass(frozen=True)
class Reading:
    """The attention of one prompt in some layers.

    Args:
        layers: one entry per layer that has attention.
        tokens: the prompt's tokens, one per key; their positions where the input has no tokens.
        queries: the positions along the query axes.
        causal: whether a position sees only itself and earlier ones.
    """

    layers: tuple[AttentionLayer, ...]
    tokens: tuple[str, ...]
    queries: tuple[int, ...]
    causal: bool

    @property
    def indices(self) -> tuple[int, ...]:
        """The layers' indices."""
        return tuple(layer.layer for layer in self.layers)


def read_attention(
    model: Model,
    inputs: Inputs,
    layers: Iterable[int] | None = None,
    queries: Positions = None,
    *,
    tower: str | None = None,
    stream: bool = False,
    budget: Budget = None,
) -> Reading:
    """Run one prompt and keep its attention.

    Args:
        model: an opened model.
        inputs: one prompt, without padding.
        layers: which layers; None takes every layer that has attention.
        queries: the positions that look, None for all: a list, `"last"`, an index (negative counts from the end).
            Fewer queries cost less memory; keys are always all.
        tower: of a model with several.
        stream: keep the residual stream before each block too.
        budget: memory, such as "2GB".

    Returns:
        a `Reading`.

    Raises:
        BadInput: several prompts, or padding. UnknownSite: a layer that does not exist.
        NotServed: no layer shows its attention, or a head's output is not `pattern @ values` (a gate or norm follows).
    """
    batch = one_prompt(model, inputs)
    found = attention_layers(model, layers, tower)

    def sites(point: str) -> list[Site]:
        return [Site(point, layer, tower=tower) for layer in found]

    looking = [*sites("pattern"), *sites("z"), *(sites("resid_pre") if stream else ())]
    if queries is None:
        both = model.run(batch, capture=[*sites("v"), *looking], logits=False, budget=budget)
        keys, looked, n = both, both, both[sites("v")[0]].shape[1]
        chosen = list(range(n))
    else:
        keys = model.run(batch, capture=sites("v"), logits=False, budget=budget)
        n = keys[sites("v")[0]].shape[1]
        chosen = model.frames(batch)[tower].resolved(1, n).positions(queries, 0)
        looked = model.run(batch, capture=looking, pos=chosen, logits=False, budget=budget)
    blocks, precise = model.architecture.tower(tower).blocks, _precise(model)
    parts = []
    for layer in found:
        pattern, z, v = (
            run[Site(point, layer, tower=tower)][0].to(precise)
            for run, point in ((looked, "pattern"), (looked, "z"), (keys, "v"))
        )
        values = v.transpose(0, 1)
        _check_mixing(model, layer, pattern, values, z)
        output = model.weight(f"W_O.{layer}", tower).value.to(device=z.device, dtype=precise)
        before = looked[Site("resid_pre", layer, tower=tower)][0].to(precise) if stream else None
        parts.append(AttentionLayer(layer, pattern, values, output, before, blocks[layer].style == "sandwich"))
    causal = model.architecture.tower(tower).causal
    return Reading(tuple(parts), token_labels(model, batch, n, tower), tuple(chosen), causal)


def per_query_head(values: Tensor, heads: int) -> Tensor:
    """Values per key/value head `[kv, key, d_v]` repeated for the query heads that share them, `[head, key, d_v]`."""
    groups, rest = divmod(heads, values.shape[0])
    if rest:
        raise BadInput(
            f"{heads} heads and {values.shape[0]} key/value heads", "heads share them evenly", "check the head axis"
        )
    return values.repeat_interleave(groups, dim=0) if groups > 1 else values


def one_prompt(model: Model, inputs: Inputs) -> Batch:
    """One prompt as a batch of one row.

    Raises:
        BadInput: several prompts, or padding.
    """
    batch = model.encode(inputs)
    if batch.rows != 1:
        raise BadInput(f"{batch.rows} prompts", "attention is read one prompt at a time", "call it once per prompt")
    if any(frame.width and frame.padded for frame in model.frames(batch).values()):
        raise BadInput("a padded prompt", "padding would appear among the keys", "leave padding and mask out")
    return batch


def attention_layers(model: Model, layers: Iterable[int] | None, tower: str | None) -> list[int]:
    """The layers whose pattern, values and mixed values can be read; all of the wanted ones, where some are named.

    Raises:
        NotServed: none, or one that was named. UnknownSite: a layer that does not exist.
    """
    wanted = list(range(len(model.architecture.tower(tower).blocks)) if layers is None else layers)
    points = ("pattern", "v", "z")
    served = [x for x in wanted if all(model.serves(Site(p, x, tower=tower)) for p in points)]
    refused = [x for x in wanted if x not in served]
    if refused and (layers is not None or not served):
        for point in points:
            model.tap(Site(point, refused[0], tower=tower))  # raises, with the reason and what is served instead
    if not served:
        raise BadInput("layers", "none is named", "give at least one, or None for all")
    return served


_IDS: dict[str | None, tuple[str, ...]] = {"encoder": ("input_ids",), "vision": (), "audio": ()}
"""The inputs whose ids a tower reads, first one first; a tower that is not named here reads the main sequence."""


def token_labels(model: Model, batch: Batch, n: int, tower: str | None = None) -> tuple[str, ...]:
    """The tokens a tower reads of a single prompt, or its positions where these are no tokens."""
    names = _IDS.get(tower, ("decoder_input_ids", "input_ids"))
    ids = next((batch.arguments[name] for name in names if name in batch.arguments), None)
    if isinstance(ids, Tensor) and ids.shape[-1] == n:
        return tuple(token_strings(model.tokenizer, ids[0].tolist()))
    return tuple(str(i) for i in range(n))


def on_one_line(token: str) -> str:
    """A token for a table: line breaks and tabs are shown, not made."""
    return token.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def stacked(parts: Sequence[Tensor], what: str) -> Tensor:
    """Per-layer tensors as one, `[layer, ...]`.

    Raises:
        NotServed: layers with different numbers of heads.
    """
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1:
        raise NotServed(what, "its layers have different numbers of heads", "ask for layers with equally many")
    return torch.stack(list(parts))


def _precise(model: Model) -> torch.dtype:
    return torch.float64 if model.dtype == torch.float64 else torch.float32


def _check_mixing(model: Model, layer: int, pattern: Tensor, values: Tensor, z: Tensor) -> None:
    mixed = torch.einsum("hqk,hkd->qhd", pattern, per_query_head(values, pattern.shape[0]))
    limit = _TOLERANCE.get(model.dtype, _COARSE)
    if mixed.shape != z.shape or float((mixed - z).abs().max()) > limit * float(z.abs().max()):
        raise NotServed(
            f"shares of tokens in layer {layer} of {model.name}",
            "its heads' outputs are not pattern @ values: something else acts before the output projection",
            "leave this layer out with layers=, or mask tokens (mechanome.heads.leave_one_out)",
        )
