"""Circuits that are one and the same up to some place, run from there on.

A search that works from the outputs backward changes nothing before the place it has come to: there, every source still
carries what it carries in the model. These values are known, so no block before the place is run, and behind it only
what is live is. The numbers are those of the whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.circuits.live_edges import Live, Slots, live_edges
from mechanome.circuits.masked_streams import Base
from mechanome.circuits.phases import Phase
from mechanome.circuits.sparse_execution import run_sparse


@dataclass(frozen=True, eq=False)
class Behind(Live):
    """What has to be computed where the first sources are known.

    Args:
        graph: the graph.
        edges: the edges that matter, `[circuit, source, target]` of booleans.
        known: how many sources, in the order in which they write.
    """

    known: int = 0
    _seen: dict[int, Slots] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, graph: Graph, edges: Tensor, rooted: bool, known: int) -> Behind:
        """What has to be computed for circuits that have all edges up to a place.

        Args:
            graph: the graph.
            edges: circuits, `[circuit, source, target]` of booleans.
            rooted: as `live_edges` has it.
            known: sources that are computed from targets with all their edges, which are not looked at.
        """
        early = graph.feeds[:, :known].any(1) & ~graph.feeds[:, known:].any(1)
        return cls(graph, live_edges(graph, edges, rooted) & ~early, known)

    @cached_property
    def sources(self) -> Tensor:
        """Which sources have to be computed, `[circuit, source]` of booleans."""
        found = self.edges.any(2)
        found[:, : self.known] = False
        return found

    @cached_property
    def _every(self) -> Live:
        """The same edges, with known sources among those that are counted."""
        return Live(self.graph, self.edges)

    def _streams(self, phase: Phase) -> Slots:
        """The different streams of a phase, with masks of all live sources."""
        if phase.number not in self._seen:
            self._seen[phase.number] = self._every.slots(phase)
        return self._seen[phase.number]

    def slots(self, phase: Phase) -> Slots:
        """The different streams of a phase; their masks are those of sources that have to be computed."""
        every = self._streams(phase)
        before = self._every.before
        later = {c: (first, mask[:, before[c][self.known] :]) for c, (first, mask) in every.masks.items()}
        return Slots(every.of, later, every.count)

    def of_known(self, phase: Phase) -> Tensor:
        """Which known sources each stream of a phase takes, `[stream, known]` of booleans."""
        every = self._streams(phase)
        found = torch.zeros(every.count, self.known, dtype=torch.bool)
        for circuit, (first, mask) in every.masks.items():
            live = self._every.sources[circuit, : self.known].nonzero()[:, 0]
            found[first : first + len(mask), live] = mask[:, : len(live)]
        return found


@dataclass(frozen=True, eq=False)
class KnownBase(Base):
    """A base whose sources carry, as far as they are known, what they carry in the model.

    Args:
        carried: what each source changes in the model's own run, `[source, token, d_model]`.
        running: what is being run: none or one.
    """

    carried: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    running: list[Behind] = field(default_factory=list, repr=False)

    @classmethod
    def like(cls, base: Base) -> KnownBase:
        """From a base that knows what its sources carry in the model."""
        pieces = [-w.added(change) for w, change in zip(base.wiring.writes, base.sample.changes)]
        return cls(**{f.name: getattr(base, f.name) for f in fields(Base)}, carried=torch.cat(pieces))

    def change(self, phase: Phase, spans: Callable[[int, int], Tensor]) -> Tensor:
        """As `Base.change`, with what known sources add to the sums."""
        if not self.running:
            return super().change(phase, spans)
        (live,) = self.running
        masks = live.of_known(phase).to(self.carried)

        def with_known(start: int, stop: int) -> Tensor:
            found = spans(start, stop)
            end = min(stop, live.known)
            if start < end:
                found += (masks[:, start:end] @ self.carried[start:end].flatten(1)).view_as(found)
            return found

        return super().change(phase, with_known)


def run_behind(base: KnownBase, live: Behind) -> Tensor:
    """Logits at the last token of circuits, `[circuit, example, vocab]`: those of `run_sparse` of the whole circuits.

    Args:
        base: the examples.
        live: what has to be computed.
    """
    base.running[:] = [live]
    try:
        return run_sparse(base, live)
    finally:
        base.running.clear()
