"""`Graph`: what can send to what inside a transformer.

A *source* writes to the residual stream: the embedding, each head, each MLP. A *target* reads from it: the query of
each head, the key and the value of each key/value head, the input of each MLP, the logits. There is an edge from every
source to every target that reads later. Sources are listed in the order in which they write, so the sources of a target
are always the first `after` ones, and everything known of edges is a matrix `[source, target]`. MLPs may be cut into
neurons or the units of any basis (`mechanome.circuits.units`), which then are sources in place of the whole.

Under grouped-query attention a key/value head is one reader, however many query heads use it. Edges are read before the
norm: a target reads the stream, and its norm belongs to the target.

| block | what a target reads | edges into one target |
|---|---|---|
| `pre` | the sum of what was written | add up exactly |
| `parallel` | as `pre`; attention and MLP read the same stream, with no edge from one to the other | add up exactly |
| `post` | the sum, sent through the norm after each part | do not add: approximate |
| `sandwich` | the sum; the heads of a layer write through one norm that they share | do not add: approximate |

Where norms stand on the way, an edge is defined by what its target would read if this source alone had written
something else: the norms between them are computed again. One edge is then exact, but two edges into one target do not
add up. By how much is measured on the inputs at hand and noted in every `Scores` of such a graph: the changes of single
edges miss the whole change of a target by 15 % of its length in AntiBERTy, by 15 to 30 % in random BERTs and Gemmas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.circuits.layers import Group, Kind, Layer, groups_of, layer_of, refused
from mechanome.circuits.units import Asked, units_of
from mechanome.core import BadInput, NotServed, UnknownName, UnknownSite, nearest
from mechanome.engine import Site
from mechanome.engine.architecture import Architecture
from mechanome.engine.asked import opened_model

if TYPE_CHECKING:
    from mechanome.engine import Model

ARROW = "->"
"""Between source and target in the name of an edge: `z.0.h3->q.2.h1`."""

_POINTS = {
    "embedding": "resid_pre", "head": "z", "mlp": "mlp_out", "q": "q", "k": "k", "v": "v", "mlp_in": "mlp_in",
    "logits": "logits",
}  # fmt: skip
_COORDINATE = {"head": "h", "q": "h", "k": "kv", "v": "kv"}


@dataclass(frozen=True)
class Graph:
    """Sources, targets and the edges between them; made by `Graph.of(model)`, or from shapes alone.

    Args:
        layers: one per block.
        tower: of a model with several.
        model: the opened model, None for a graph made from shapes (it counts and draws, but cannot be scored).
    """

    layers: tuple[Layer, ...]
    tower: str | None = None
    model: Model | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise BadInput("a graph without layers", "nothing can send to anything", "give at least one Layer")

    @classmethod
    def of(cls, model: Model, tower: str | None = None, *, units: Asked | None = None) -> Graph:
        """The graph of an opened model.

        Args:
            model: the model.
            tower: which tower, where it has several: the one that the logits are read from.
            units: cut MLPs into units, see `with_units`.

        Raises:
            NotServed: a model whose computation is not such a graph, with the reason.
            BadInput: a bare module, or no model.
        """
        opened_model(model)
        found = cls.shaped_like(model.architecture, tower)
        for site in found.needed_sites():
            try:
                model.tap(site)
            except (NotServed, UnknownSite) as error:
                raise refused(model.name, f"{error.what}: {error.why}") from error
        whole = replace(found, model=model)
        return whole if units is None else whole.with_units(units)

    def with_units(self, units: Asked) -> Graph:
        """The graph in which MLPs are cut into units: neurons, weight-SVD units, latents of a dictionary.

        Args:
            units: "neurons" or "svd" for every MLP, or a mapping from sites (`mlp_act.7`, `mlp_out.7`) to a `Basis` or
                to one of these names; MLPs that it leaves out stay whole. See `mechanome.circuits.units`.

        Raises:
            BadInput: a graph made from shapes, a name or basis that does not fit, an MLP that is cut twice.
            UnknownSite: a layer without MLP. ShapeMismatch: a basis of another width.
            NotServed: a site or weight that the model does not have, a decoder that is not linear.
        """
        model, mlps = self.opened(), [i for i, layer in enumerate(self.layers) if layer.mlp]
        heads = next(i for i, layer in enumerate(self.layers) if layer.heads)
        d_model = model.weight(f"W_O.{heads}", self.tower).value.shape[-1]
        found = units_of(model, self.tower, mlps, d_model, units)
        layers = (replace(layer, units=found.get(i)) for i, layer in enumerate(self.layers))
        return replace(self, layers=tuple(layers))

    @classmethod
    def shaped_like(cls, architecture: Architecture, tower: str | None = None) -> Graph:
        """The graph of an architecture (`mechanome.engine.architecture.discover`); needs modules but no weights.

        Raises:
            NotServed: blocks that are no attention and MLP on one stream of tokens, with the reason.
        """
        named = [t.name for t in architecture.towers if t.name]
        if any("cross" in block.roles for t in architecture.towers for block in t.blocks):
            why = "cross-attention ties one tower to another, and edges between towers are not defined"
            raise refused(type(architecture.root).__name__, why)
        if tower is None and len(named) > 1:
            raise NotServed(
                "a circuit graph", "the model has several towers", f"give tower= one of: {', '.join(named)}"
            )
        place = architecture.tower(tower)
        if place.feature_map or not place.additive:
            raise refused(place.path, "its blocks are no attention and MLP that add to a stream of tokens")
        layers = tuple(layer_of(place, block) for block in place.blocks)
        if not any(layer.heads for layer in layers):
            raise refused(place.path, "none of its blocks has attention")
        return cls(layers, tower)

    def ungrouped(self) -> Graph:
        """The same graph with a key and a value reader for every query head, as tools without grouped heads count.

        It cannot be scored: the model has no such readers.
        """
        return Graph(tuple(replace(layer, kv=layer.heads) for layer in self.layers), self.tower)

    # Nodes ---------------------------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
        return groups_of(self.layers)

    @property
    def writers(self) -> tuple[Group, ...]:
        """Sources by kind and layer, in the order in which they write."""
        return self._groups[0]

    @property
    def readers(self) -> tuple[Group, ...]:
        """Targets by kind and layer, in the order in which they read."""
        return self._groups[1]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Names of sources, which are sites: `resid_pre.0` (the embedding), `z.5.h3`, `mlp_out.5`."""
        return tuple(name for group in self.writers for name in self._names(group))

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Names of targets: `q.5.h3`, `k.5.kv1`, `v.5.kv1`, `mlp_in.5` (no site: the stream before the MLP's norm),
        `logits`."""
        return tuple(name for group in self.readers for name in self._names(group))

    def _names(self, group: Group) -> Iterator[str]:
        head = f"{self.tower}/" if self.tower and group.kind != "logits" else ""
        layer = 0 if group.kind == "embedding" else group.layer
        if group.kind in ("unit", "rest"):
            units = self.layers[layer].units  # type: ignore[index]
            assert units is not None
            return units.names(f"{head}{units.point}.{layer}", group.kind == "rest")
        stem = head + _POINTS[group.kind] + ("" if layer is None else f".{layer}")
        short = _COORDINATE.get(group.kind)
        return (f"{stem}.{short}{i}" if short else stem for i in range(group.count))

    def kinds(self, *kinds: Kind) -> Tensor:
        """Which sources are of some kinds ("embedding", "head", "mlp", "unit", "rest"), `[source]` of booleans."""
        return torch.tensor([group.kind in kinds for group in self.writers for _ in range(group.count)])

    def needed_sites(self) -> Iterator[Site]:
        """The engine's sites that scoring reads or edits."""
        for group in (*self.writers, *self.readers):
            if group.kind in ("mlp_in", "logits", "unit", "rest"):
                continue  # sites of units are checked when an MLP is cut
            point = {"q": "q_pre", "k": "k_pre"}.get(group.kind, _POINTS[group.kind])
            yield Site(point, 0 if group.layer is None else group.layer, tower=self.tower)
        yield Site("resid_post", len(self.layers) - 1, tower=self.tower)
        yield Site("logits")

    # Edges ---------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of sources and of targets."""
        return len(self.sources), len(self.targets)

    @cached_property
    def mask(self) -> Tensor:
        """Which pairs are edges, `[source, target]` of booleans."""
        after = torch.tensor([group.after for group in self.readers for _ in range(group.count)])
        return torch.arange(len(self.sources))[:, None] < after[None, :]

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return sum(group.after * group.count for group in self.readers)

    @cached_property
    def feeds(self) -> Tensor:
        """Which sources are computed from what a target reads, `[target, source]` of booleans.

        The queries of a head feed this head, keys and values all heads that share them, the MLP's input its MLP or all
        units that it is cut into.
        """
        feeds = torch.zeros(len(self.targets), len(self.sources), dtype=torch.bool)
        for group in self.readers:
            for into in (w for w in self.writers if w.layer == group.layer is not None):
                if (into.kind == "head") == (group.kind == "mlp_in"):
                    continue
                shared = into.count // group.count if into.kind == "head" else into.count
                for i in range(group.count):
                    start = into.first + i * shared
                    feeds[group.first + i, start : start + shared] = True
        return feeds

    @property
    def additive(self) -> bool:
        """Whether the edges into one target add up exactly."""
        return all(layer.style in ("pre", "parallel") for layer in self.layers)

    def index(self, edge: str) -> tuple[int, int]:
        """Source and target of an edge by name, `z.0.h3->q.2.h1`.

        Raises:
            UnknownName: no such node, or no edge between the two.
        """
        source, arrow, target = edge.partition(ARROW) if isinstance(edge, str) else ("", "", "")
        if not arrow:
            raise UnknownName(f"edge {edge!r}", "an edge names a source and a target", "write 'z.0.h3->q.2.h1'")
        i, j = self.source_index(source), self.target_index(target)
        if not bool(self.mask[i, j]):
            raise UnknownName(f"edge '{edge}'", f"{source} writes after {target} has read", "choose an earlier source")
        return i, j

    def name(self, source: int, target: int) -> str:
        """The name of an edge."""
        return f"{self.sources[source]}{ARROW}{self.targets[target]}"

    def source_index(self, name: str) -> int:
        """The index of a source.

        Raises:
            UnknownName: there is none of this name.
        """
        return _found("source", name, self._source_index)

    def target_index(self, name: str) -> int:
        """The index of a target.

        Raises:
            UnknownName: there is none of this name.
        """
        return _found("target", name, self._target_index)

    @cached_property
    def _source_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.sources)}

    @cached_property
    def _target_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.targets)}

    def opened(self) -> Model:
        """The model behind this graph.

        Raises:
            BadInput: a graph made from shapes alone.
        """
        if self.model is None:
            raise BadInput("this graph", "it was made from shapes, without a model", "use Graph.of(mn.load(...))")
        return self.model

    def __repr__(self) -> str:
        n, m = self.shape
        cut = sum(group.count for group in self.writers if group.kind == "unit")
        cut_to = f" ({cut} of them units)" if cut else ""
        rest = "" if self.additive else ", edges into one target do not add"
        return f"Graph({len(self.layers)} layers, {n} sources{cut_to}, {m} targets, {self.n_edges} edges{rest})"


def _found(what: str, name: str, table: dict[str, int]) -> int:
    if name not in table:
        raise UnknownName(f"{what} '{name}'", f"this graph has no such {what}", nearest(name, table))
    return table[name]


def same_graph(graphs: Sequence[Graph]) -> Graph:
    """The one graph that several things belong to.

    Raises:
        BadInput: they belong to different ones.
    """
    if any(graph != graphs[0] for graph in graphs[1:]):
        raise BadInput("these circuits or scores", "they belong to different graphs", "compare those of one model")
    return graphs[0]
