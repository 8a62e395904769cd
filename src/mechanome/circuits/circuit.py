"""`Circuit`: a set of edges of a graph, with the algebra of sets.

A circuit is a claim: these edges carry the behaviour, the others may carry what they carry on another input. It is a
matrix of booleans `[source, target]` beside its graph, so that unions, complements and overlaps are one operation each
and many circuits are one stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph, same_graph
from mechanome.circuits.score_matrix import Scores
from mechanome.core import BadInput, ShapeMismatch, Table


@dataclass(frozen=True, eq=False)
class Circuit:
    """Some edges of a graph.

    Args:
        graph: where they are edges.
        edges: which ones, `[source, target]` of booleans.

    Raises:
        ShapeMismatch: a matrix of another shape. BadInput: no booleans, or pairs that are no edges.
    """

    graph: Graph
    edges: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        edges = self.edges
        if not isinstance(edges, Tensor) or edges.dtype != torch.bool:
            raise BadInput("the edges of a circuit", "they are no booleans", "give scores > threshold, or Circuit.of")
        if tuple(edges.shape) != self.graph.shape:
            raise ShapeMismatch(
                f"edges of shape {list(edges.shape)}", f"the graph is {list(self.graph.shape)}", "give [source, target]"
            )
        if bool((edges & ~self.graph.mask).any()):
            i, j = (edges & ~self.graph.mask).nonzero()[0].tolist()
            raise BadInput(f"edge {self.graph.name(i, j)}", "the graph has no such edge", "intersect with graph.mask")
        object.__setattr__(self, "edges", edges.detach().cpu())

    @classmethod
    def of(cls, graph: Graph, edges: Iterable[str]) -> Circuit:
        """A circuit from names of edges, such as `z.0.h3->q.2.h1`.

        Raises:
            UnknownName: an edge that does not exist.
        """
        found = torch.zeros_like(graph.mask)
        for edge in [edges] if isinstance(edges, str) else edges:
            found[graph.index(edge)] = True
        return cls(graph, found)

    @classmethod
    def of_nodes(cls, graph: Graph, sources: Iterable[str] | Tensor) -> Circuit:
        """All edges between some sources, and from them to the logits.

        Args:
            graph: the graph.
            sources: names of sources, or booleans `[source]`. A key or value reader counts as chosen where any head
                that uses it is.

        Raises:
            UnknownName: a source that does not exist.
        """
        if isinstance(sources, Tensor):
            chosen = sources.bool()
        else:
            chosen = torch.zeros(len(graph.sources), dtype=torch.bool)
            chosen[[graph.source_index(s) for s in ([sources] if isinstance(sources, str) else sources)]] = True
        reading = (graph.feeds & chosen).any(1)
        reading[-1] = True
        return cls(graph, graph.mask & chosen[:, None] & reading[None, :])

    @classmethod
    def full(cls, graph: Graph) -> Circuit:
        """Every edge: the model itself."""
        return cls(graph, graph.mask.clone())

    @classmethod
    def empty(cls, graph: Graph) -> Circuit:
        """No edge."""
        return cls(graph, torch.zeros_like(graph.mask))

    # As a set ------------------------------------------------------------------------------------------------

    def __or__(self, other: Circuit) -> Circuit:
        return Circuit(same_graph([self.graph, other.graph]), self.edges | other.edges)

    def __and__(self, other: Circuit) -> Circuit:
        return Circuit(same_graph([self.graph, other.graph]), self.edges & other.edges)

    def __sub__(self, other: Circuit) -> Circuit:
        return Circuit(same_graph([self.graph, other.graph]), self.edges & ~other.edges)

    def __xor__(self, other: Circuit) -> Circuit:
        return Circuit(same_graph([self.graph, other.graph]), self.edges ^ other.edges)

    def __invert__(self) -> Circuit:
        """The complement: every other edge of the graph."""
        return Circuit(self.graph, self.graph.mask & ~self.edges)

    def __le__(self, other: Circuit) -> bool:
        return not (self - other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self.graph == other.graph and torch.equal(self.edges, other.edges)

    def __hash__(self) -> int:
        return hash((self.graph, self.edges.numpy().tobytes()))

    def __len__(self) -> int:
        return int(self.edges.sum())

    def __contains__(self, edge: str) -> bool:
        return bool(self.edges[self.graph.index(edge)])

    def __iter__(self) -> Iterator[str]:
        """Names of the edges, in the order of the graph."""
        return (self.graph.name(i, j) for i, j in self.edges.nonzero().tolist())

    # As a graph ----------------------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """Its edges as a share of all."""
        return len(self) / self.graph.n_edges

    @property
    def used(self) -> Tensor:
        """Which sources send along any of its edges, `[source]` of booleans."""
        return self.edges.any(1)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the sources that send along any of its edges."""
        return tuple(name for name, used in zip(self.graph.sources, self.used.tolist()) if used)

    def pruned(self) -> Circuit:
        """Without dangling edges: those that lie on no path from the embedding to the logits.

        A source is reached if any of its readers is; what a source writes matters if any reader of it does.
        """
        edges, feeds = self.edges, self.graph.feeds
        while True:
            reached = (feeds & edges.any(0)[:, None]).any(0)
            reached[0] = True
            wanted = (feeds & edges.any(1)[None, :]).any(1)
            wanted[-1] = True
            kept = edges & reached[:, None] & wanted[None, :]
            if torch.equal(kept, edges):
                return Circuit(self.graph, edges)
            edges = kept

    @property
    def connected(self) -> bool:
        """Whether any path leads from the embedding to the logits."""
        return len(self.pruned()) > 0

    # To people -----------------------------------------------------------------------------------------------

    def table(self, scores: Scores | None = None, k: int | None = 20) -> Table:
        """Its edges, the largest score first where scores are given.

        Args:
            scores: of edges of the same graph.
            k: how many, None for all.
        """
        pairs = self.edges.nonzero()
        columns = ["source", "target"]
        values: list[list[float]] = [[] for _ in range(len(pairs))]
        if scores is not None:
            found = given("scores=", scores, Scores, self.graph).edge_values()[pairs[:, 0], pairs[:, 1]]
            order = found.abs().nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
            pairs = pairs[order]
            values = [[float(v)] for v in found[order]]
            columns.append("score (estimate)" if scores.estimate else "score")
        names = self.graph
        rows = [
            (names.sources[i], names.targets[j], *value)
            for (i, j), value in zip(pairs[:k].tolist(), values, strict=False)
        ]
        more = "" if k is None or len(self) <= k else f", the first {k}"
        return Table(columns, rows, f"{self!r}{more}")

    def __repr__(self) -> str:
        return f"Circuit of {len(self)} of {self.graph.n_edges} edges, {int(self.used.sum())} sources"

    def _repr_html_(self) -> str:
        return self.table().html()


def stack(circuits: Iterable[Circuit]) -> Tensor:
    """Circuits of one graph as one tensor, `[circuit, source, target]` of booleans.

    Raises:
        BadInput: none, something that is no circuit, or circuits of different graphs.
    """
    found = list(circuits) if isinstance(circuits, Iterable) else [circuits]
    if not found:
        raise BadInput("the circuits", "there are none", "give at least one")
    for circuit in found:
        if not isinstance(circuit, Circuit):
            raise BadInput("the circuits", f"{circuit!r} is none", "give circuits, such as Circuit.of(graph, edges)")
    same_graph([c.graph for c in found])
    return torch.stack([c.edges for c in found])
