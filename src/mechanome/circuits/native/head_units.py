"""The two maps of an attention head as units: what makes it look (QK), and what it moves (OV).

Paper 28 (Franco, Loughridge & Crovella 2026). A score is bilinear in the streams that query and key read,

    score(q, j) = r_q Omega s_j,     Omega = W_Q M_q M_j^T W_K^T / sqrt(d_head),

with M the turn of rotary positions: one map for each relative position there, one for all pairs elsewhere. Norm gains
are folded into the weights; biases and the norm's shift are a constant 1 appended to r and s. Omega is never made: each
factor has d_head columns, and the decomposition is that of a `[d_head, d_head]` core. Heads that share keys (grouped
queries) have the same W_K and maps of their own. A head has at most d_head units; more features than that must share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.native.folding import Fold
from mechanome.circuits.native.rotary import Rotations, rotations
from mechanome.circuits.native.weight_units import WeightUnits
from mechanome.core import BadInput, NotServed
from mechanome.engine import Model, Site
from mechanome.engine.asked import opened_model


@dataclass(frozen=True, eq=False)
class QueryKey:
    """The query-key map of one head, in factors; made by `query_key`. Everything is float64.

    Args:
        layer, head: which.
        query, key: `[d_model + 1, d_head]`: folded weights with the constant's row last.
        scale: what products of queries and keys are multiplied by.
        rotations: of the positions it was made for.
        fold: the norm that queries and keys read through.
    """

    layer: int
    head: int
    query: Tensor = field(repr=False)
    key: Tensor = field(repr=False)
    scale: float
    rotations: Rotations = field(repr=False)
    fold: Fold = field(repr=False)

    @property
    def moving(self) -> bool:
        """Whether the map differs from pair to pair of positions."""
        return self.rotations.moving(self.layer)

    def inputs(self, stream: Tensor) -> Tensor:
        """What queries and keys are made from: the normalized stream `[..., d_model]`, and the constant."""
        x = self.fold.normalize(stream.double())
        return torch.cat([x, torch.ones_like(x[..., :1])], -1)

    def queries(self, inputs: Tensor, pos: int) -> Tensor:
        """Queries as attention uses them, scale included, `[..., d_head]`."""
        return self.scale * inputs @ self.query @ self.rotations.query[self.layer][pos]

    def units(self, query: int | None = None, key: int | None = None) -> WeightUnits:
        """Units of Omega: `left` on the query side, `right` on the key side, `[unit, d_model + 1]`.

        Args:
            query, key: positions; needed where positions turn the map.

        Raises:
            BadInput: a rotary head without positions, or positions it was not made for.
        """
        if query is None or key is None:
            if self.moving:
                why = "rotary positions turn it: it is another map for each distance"
                raise BadInput(f"the query-key map of head {self.layer}.h{self.head}", why, "give query= and key=")
            query = key = 0
        turns = self.rotations.query[self.layer], self.rotations.key[self.layer]
        if not (0 <= query < len(turns[0]) and 0 <= key < len(turns[1])):
            raise BadInput(f"positions {query} and {key}", f"it was made for 0 to {len(turns[0]) - 1}", "use those")
        return WeightUnits.svd_of_product(self.scale * self.query @ turns[0][query], (self.key @ turns[1][key]).T)


def query_key(
    model: Model,
    layer: int,
    head: int,
    length: int = 1,
    *,
    turned: Rotations | None = None,
    tower: str | None = None,
) -> QueryKey:
    """The query-key map of one head. Paper 28 (Franco, Loughridge & Crovella 2026).

    Args:
        model: an opened model; multi-head, grouped or single-key attention, rotary or not.
        layer, head: which.
        length: for positions 0 to `length - 1`.
        turned: what `rotations` measured for at least this layer and length; None measures it.
        tower: of a model with several.

    Raises:
        NotServed: no such weights (latent attention), or queries that are no linear map of the stream.
        UnknownName, UnknownSite: a layer or head that does not exist.
    """
    opened_model(model)
    model.tap(Site("q", layer, head=head, tower=tower))
    block = model.architecture.tower(tower).blocks[layer]
    shared = head // (block.n_heads // block.n_kv)
    fold = Fold.of(model, layer, "attention", tower)
    query = _factor(model, fold, f"Q.{layer}.h{head}", tower)
    key = _factor(model, fold, f"K.{layer}.kv{shared}", tower)
    turned = rotations(model, [layer], length, tower) if turned is None else turned
    return QueryKey(layer, head, query, key, turned.scale[layer], turned, fold)


def output_value(model: Model, layer: int, head: int, *, tower: str | None = None) -> WeightUnits:
    """Units of a head's output-value map, from the normalized stream it reads to what it adds, `[unit, d_model]`.

    What `model.weight("W_V") @ model.weight("W_O")` does, the norm's gain folded in; biases are no part of it.

    Args, raises: as `query_key`.
    """
    opened_model(model)
    model.tap(Site("z", layer, head=head, tower=tower))
    block = model.architecture.tower(tower).blocks[layer]
    shared = head // (block.n_heads // block.n_kv)
    value = model.weight(f"W_V.{layer}.kv{shared}", tower).value.double()
    output = model.weight(f"W_O.{layer}.h{head}", tower).value.double()
    return WeightUnits.svd_of_product(Fold.of(model, layer, "attention", tower).matrix(value), output)


def _factor(model: Model, fold: Fold, name: str, tower: str | None) -> Tensor:
    weight = model.weight(f"W_{name}", tower).value.double()
    try:
        bias = model.weight(f"b_{name}", tower).value.double()
    except NotServed:
        bias = weight.new_zeros(weight.shape[1])
    return torch.cat([fold.matrix(weight), (bias + fold.offset(weight))[None]])
