"""What happens to queries and keys between their projections and attention: rotary positions, measured and not assumed.

Families turn queries and keys in their own ways: halves or neighbors, all of the head or a part of it, with scaled
angles, in some layers and not in others, or not at all. So the model itself is asked: basis vectors are put in place of
its query and key projections, and what comes out at each position is that position's linear map. Whether the map is all
there is (norms of queries and keys are not linear) is checked where it is used, on the model's own scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed
from mechanome.engine import Edit, Model, Site

_LINEAR = 1e-3
"""Largest departure from a linear map, relative to the largest entry, when two vectors are put in together."""


@dataclass(frozen=True, eq=False)
class Rotations:
    """Maps of head vectors by position, row vectors from the left: `q = q_pre @ query[layer][pos]`.

    Args:
        query, key: layer to `[pos, d_head, d_head]`, float64.
        scale: layer to the number that products of queries and keys are multiplied by.
    """

    query: Mapping[int, Tensor] = field(repr=False)
    key: Mapping[int, Tensor] = field(repr=False)
    scale: Mapping[int, float]

    def moving(self, layer: int) -> bool:
        """Whether positions matter in a layer: whether its maps differ from position to position."""
        each = torch.stack([self.query[layer], self.key[layer]])
        return bool((each - each[:, :1]).abs().max() > 1e-6)


def rotations(model: Model, layers: Sequence[int], length: int, tower: str | None = None) -> Rotations:
    """Measure the maps of some layers at positions 0 to `length - 1`.

    The cost is one pass over `ceil((d_head + 1) / key/value heads)` rows of `length` tokens, for all layers together.

    Args:
        model: an opened language model whose queries and keys can be edited before and read after.
        layers: which. length: how many positions.
        tower: of a model with several.

    Raises:
        NotServed: queries or keys that cannot be reached, that are no linear map of their projections, or scores that
            are not their scaled product.
        BadInput: no layer, or no position.
    """
    if not layers or length < 1:
        raise BadInput(f"rotations of {len(layers)} layers, {length} positions", "there is nothing to measure", "ask")
    blocks = model.architecture.tower(tower).blocks
    width = {layer: model.weight(f"W_Q.{layer}.h0", tower).value.shape[1] for layer in layers}
    rows = -(-(max(width.values()) + 1) // min(blocks[layer].n_kv for layer in layers))
    edits = []
    for layer in layers:
        for point, heads in (("q_pre", blocks[layer].n_heads), ("k_pre", blocks[layer].n_kv)):
            probes = _probes(width[layer], rows, heads).to(model.dtype)
            edits.append(Edit(Site(point, layer, tower=tower), "set", probes))
    sites = [Site(point, layer, tower=tower) for layer in layers for point in ("q", "k", "scores")]
    ids = torch.zeros(rows, length, dtype=torch.long)
    run = model.run(ids, capture=sites, edits=edits, logits=False)
    query, key, scale = {}, {}, {}
    for layer in layers:
        q, k, scores = (run[Site(point, layer, tower=tower)].double() for point in ("q", "k", "scores"))
        query[layer], key[layer] = (_maps(x, Site(p, layer, tower=tower)) for x, p in ((q, "q"), (k, "k")))
        scale[layer] = _scale(q[:, 0], k[:, 0], scores[..., 0, 0], Site("scores", layer, tower=tower))
    return Rotations(query, key, scale)


def _probes(width: int, rows: int, heads: int) -> Tensor:
    """Basis vectors, one in each head of each row, then the sum of all; `[row, head, d_head]`."""
    vectors = torch.cat([torch.eye(width), torch.ones(1, width)])
    more = rows * heads - len(vectors)
    vectors = torch.cat([vectors, torch.zeros(max(0, more), width)])[: rows * heads]
    return vectors.reshape(rows, heads, width)


def _maps(out: Tensor, site: Site) -> Tensor:
    """`[row, pos, head, d_head]` of the probes to maps `[pos, in, out]`."""
    rows, length, heads, width = out.shape
    each = out.transpose(1, 2).reshape(rows * heads, length, width)
    maps, together = each[:width].transpose(0, 1), each[width]
    off = float((maps.sum(1) - together).abs().max() / together.abs().max().clamp(min=1e-12))
    if off > _LINEAR:
        why = f"the model normalizes or bends it after the projection ({off:.1g} off a linear map)"
        raise NotServed(f"{site} as a map of its projection", why, "read its pattern instead (mechanome.heads)")
    return maps


def _scale(q: Tensor, k: Tensor, scores: Tensor, site: Site) -> float:
    """The factor between products of queries `[row, head, d]` and keys `[row, kv, d]`, and scores `[row, head]`."""
    product = (q * k.repeat_interleave(q.shape[1] // k.shape[1], 1)).sum(-1)
    scale = float((product * scores).sum() / product.square().sum())
    off = float((scale * product - scores).abs().max() / scores.abs().max().clamp(min=1e-12))
    if off > _LINEAR:
        why = f"they are not the scaled product of queries and keys ({off:.1g} off): a cap or a bias acts on them"
        raise NotServed(f"{site} in parts", why, "read the pattern instead (mechanome.heads)")
    return scale
