"""Which edges of circuits can matter: the others need not be run.

A source has its patched value wherever nothing in the circuit reaches it from the clean embedding, and what it writes
is lost wherever no path leads on to the logits. What remains is grouped: targets of one circuit with the same incoming
edges read the same stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.circuits.layers import Group
from mechanome.circuits.phases import Phase


def live_edges(graph: Graph, edges: Tensor, rooted: bool) -> Tensor:
    """The edges of circuits that lie on a path to the logits.

    Args:
        graph: the graph.
        edges: circuits, `[circuit, source, target]` of booleans.
        rooted: whether the path must start at the embedding: true where patched values are those of a run of the model,
            because a source without a changed input then has just its patched value. A mean is no such value.

    Returns:
        booleans as `edges`.
    """
    feeds = graph.feeds.float()
    while True:
        wanted = (edges.any(2).float() @ feeds.T) > 0
        wanted[:, -1] = True
        kept = edges & wanted[:, None, :]
        if rooted:
            reached = (edges.any(1).float() @ feeds) > 0
            reached[:, 0] = True
            kept = kept & reached[:, :, None]
        if torch.equal(kept, edges):
            return edges
        edges = kept


@dataclass(frozen=True)
class Slots:
    """The different streams that the live targets of a phase read.

    Args:
        of: the number of the stream of each live target, by circuit and target.
        masks: per circuit with any, the first of its streams and which of its live sources so far each of them takes,
            `[stream, live source]`.
        count: how many streams there are.
    """

    of: dict[tuple[int, int], int]
    masks: dict[int, tuple[int, Tensor]]
    count: int


@dataclass(frozen=True, eq=False)
class Live:
    """What has to be computed for some circuits.

    Args:
        graph: the graph.
        edges: the edges that matter, `[circuit, source, target]` of booleans.
    """

    graph: Graph
    edges: Tensor

    @cached_property
    def sources(self) -> Tensor:
        """Which sources have to be computed, `[circuit, source]` of booleans."""
        return self.edges.any(2)

    @cached_property
    def before(self) -> list[list[int]]:
        """How many live sources a circuit has before each source, by circuit and source."""
        counts = torch.zeros(len(self.edges), self.edges.shape[1] + 1, dtype=torch.long)
        counts[:, 1:] = self.sources.cumsum(1)
        return counts.tolist()

    @cached_property
    def late(self) -> Tensor:
        """Which sources matter at the last token alone, `[circuit, source]` of booleans.

        The logits read there, and so do the queries of a head and the MLP whose output matters there alone; keys and
        values are read from everywhere.
        """
        feeds, edges = self.graph.feeds.float(), self.edges.float()
        fixed = torch.zeros(len(feeds), dtype=torch.bool)
        for group in self.graph.readers:
            fixed[group.nodes] = group.kind in ("k", "v")
        everywhere = fixed.expand(len(edges), -1)
        while True:
            sources = torch.bmm(edges, everywhere[:, :, None].float())[:, :, 0] > 0
            targets = fixed | ((sources.float() @ feeds.T) > 0)
            if torch.equal(targets, everywhere):
                return ~sources
            everywhere = targets

    @cached_property
    def of_nodes(self) -> Tensor:
        """Which circuits are all edges among their sources, so that one mask of sources says it all, `[circuit]`."""
        found = []
        for edges, used in zip(self.edges, self.sources):
            reading = (self.graph.feeds & used).any(1)
            reading[-1] = True
            found.append(torch.equal(edges, self.graph.mask & used[:, None] & reading[None, :]))
        return torch.tensor(found)

    @cached_property
    def shares(self) -> Tensor:
        """The share of the graph's edges that matter, `[circuit]`."""
        return self.edges.sum((1, 2)) / self.graph.n_edges

    def circuits(self, *groups: Group) -> list[int]:
        """The circuits in which any source of some groups is live."""
        live = [self.sources[:, group.nodes].any(1) for group in groups]
        return torch.stack(live).any(0).nonzero()[:, 0].tolist()

    def units(self, circuit: int, group: Group) -> Tensor:
        """The live sources of a group in a circuit, by number within it."""
        return self.sources[circuit, group.nodes].nonzero()[:, 0]

    def take(self, circuits: Sequence[int]) -> Live:
        """Some of the circuits."""
        return Live(self.graph, self.edges[list(circuits)])

    def slots(self, phase: Phase) -> Slots:
        """The different streams of a phase."""
        part = self.edges[:, : phase.after, phase.targets]
        of: dict[tuple[int, int], int] = {}
        masks: dict[int, tuple[int, Tensor]] = {}
        count = 0
        targets: dict[int, list[int]] = {}
        for circuit, target in part.any(1).nonzero().tolist():
            targets.setdefault(circuit, []).append(target)
        for circuit, members in targets.items():
            columns = part[circuit][self.sources[circuit, : phase.after]][:, members].T
            known: dict[bytes, int] = {}
            kept = []
            for i, (target, column) in enumerate(zip(members, columns.contiguous().numpy())):
                key = column.tobytes()
                if key not in known:
                    known[key] = count + len(known)
                    kept.append(i)
                of[circuit, target] = known[key]
            masks[circuit] = count, columns[kept]
            count += len(known)
        return Slots(of, masks, count)
