"""Small circuits run in small pieces: only what can differ from the base is computed.

The model's own forward is called, so embeddings, masks, rotary positions and the head stay its code, but its blocks do
not run as a whole. A block's attention runs for the circuits in which one of its heads is live, and stops once the
heads have spoken; its MLP runs, attention left out, for the circuits in which it is live, and stops once it has
written. What targets read is put together per stream, and targets with the same edges share one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.live_edges import Live, Slots
from mechanome.circuits.masked_streams import PROJECTIONS, Base, fewest_logits, last_logits, repeated
from mechanome.circuits.partial_blocks import first_rows, leave_out, like, put, run_until
from mechanome.circuits.phases import Phase
from mechanome.circuits.reading import Reader
from mechanome.circuits.wiring import Reads, Writes
from mechanome.engine.plan import Call, Plan
from mechanome.engine.resume import install
from mechanome.engine.run import build_plan, execute, place


def run_sparse(base: Base, live: Live) -> Tensor:
    """Logits at the last token of circuits, `[circuit, example, vocab]`: those of `run_dense`.

    Args:
        base: the examples.
        live: what has to be computed for the circuits.
    """
    wiring, model = base.wiring, base.wiring.model
    circuits = len(live.edges)
    if not base.n_tokens:  # no input differs from its counterfactual: all circuits are the empty one
        return base.logits.expand(circuits, *base.logits.shape).clone()
    with torch.no_grad():
        state = _State(base, live)
        plan = build_plan(model)
        blocks = model.architecture.tower(wiring.graph.tower).blocks
        for layer, block in enumerate(blocks):
            install(block.part.module)
            plan.blocks[block.part.module] = state.block(layer)
        embedding, logits = wiring.writes[0], wiring.reads[-1]
        place(plan, model.tap(embedding.site), state.embedding(embedding), embedding.site.tower, "reading embeddings")
        place(plan, model.tap(logits.site), state.logits(logits), logits.site.tower, "edges into the logits")
        batch = repeated(base.sample.batch, circuits)
        output = execute(model, batch, plan, **fewest_logits(wiring, base.sample.batch))
        return last_logits(output, batch).unflatten(0, (circuits, -1))


@dataclass
class _State:
    """What live sources have changed so far.

    Attributes:
        changes: per circuit, `[live source, token, d_model]`, in the order in which they write.
    """

    base: Base
    live: Live
    changes: list[Tensor] = field(init=False)
    _latest: tuple[int, Slots, Tensor] | None = None

    def __post_init__(self) -> None:
        wiring = self.base.wiring
        counts = [before[-1] for before in self.live.before]
        shape = sum(counts), self.base.n_tokens, self.base.d_model
        every = torch.zeros(shape, dtype=wiring.dtype, device=self.base.sample.clean[0].device)
        self.changes = list(every.split(counts))

    # Sources -------------------------------------------------------------------------------------------------

    def embedding(self, writes: Writes) -> Callable[[Tensor, Call], None]:
        """The operation at the embedding."""

        def keep(x: Tensor, call: Call) -> None:
            running = self.live.circuits(writes.group)
            if running:
                rows = x.unflatten(0, (len(self.live.edges), -1))[running]
                self._write(writes, running, rows.flatten(0, 1))

        return keep

    def _write(self, writes: Writes, running: Sequence[int], x: Tensor) -> None:
        """Keep what live sources of a group changed.

        Args:
            running: the circuits. x: their values, `[circuit * batch, pos, ...]`.
        """
        number = self.base.wiring.writes.index(writes)
        value = writes.cut.values(self.base.gather(x, len(running))) - self.base.patched[number]
        first = writes.group.first
        for unit in range(writes.group.count):
            having = [i for i, c in enumerate(running) if self.live.sources[c, first + unit]]
            if not having:
                continue
            own = value[:, :, unit] if len(having) == len(running) else value[having, :, unit]
            added = own if writes.weight is None else own @ writes.weight[unit]
            for i, change in zip(having, added):
                c = running[i]
                self.changes[c][self.live.before[c][first + unit]] = change

    # Targets -------------------------------------------------------------------------------------------------

    def _streams(self, phase: Phase) -> tuple[Slots, Tensor | None]:
        """The streams of a phase as changes, `[stream, token, d_model]`; None where there are none."""
        if self._latest is None or self._latest[0] != phase.number:
            self._latest = None
            slots = self.live.slots(phase)
            if not slots.count:
                return slots, None
            change = self.base.change(phase, lambda start, stop: self._sum(slots, start, stop))
            self._latest = phase.number, slots, change
        return self._latest[1], self._latest[2]

    def _sum(self, slots: Slots, start: int, stop: int) -> Tensor:
        shape = slots.count, self.base.n_tokens, self.base.d_model
        found = self.changes[0].new_zeros(shape)
        for circuit, (first, mask) in slots.masks.items():
            a, b = self.live.before[circuit][start], self.live.before[circuit][stop]
            if b > a:
                into = found[first : first + len(mask)].flatten(1)
                torch.mm(mask[:, a:b].to(into), self.changes[circuit][a:b].flatten(1), out=into)
        return found

    def _plain(self, phase: Phase, reads: Reads, running: Sequence[int]) -> Tensor:
        """What a single target without a projection of its own reads in some circuits, `[circuit, token, d_model]`."""
        slots, change = self._streams(phase)
        base = self.base.flat(reads.site)
        found = base.expand(len(running), *base.shape).clone()
        target = phase.own(reads).start
        having = [i for i, c in enumerate(running) if (c, target) in slots.of]
        if change is not None and having:
            streams = change[[slots.of[running[i], target] for i in having]]
            found[having] = Reader.of(self.base, reads).plain(streams)
        return found

    def _projected(self, phase: Phase, reads: Reads, running: Sequence[int]) -> Tensor:
        """What a group of targets with projections reads in some circuits, `[circuit * batch, pos, unit, width]`."""
        slots, change = self._streams(phase)
        reader, own = Reader.of(self.base, reads), phase.own(reads)
        base = self.base.flat(reads.site)
        found = base.expand(len(running), *base.shape).clone()
        place_of = {c: i for i, c in enumerate(running)}
        members: dict[int, tuple[list[int], list[int]]] = {}
        for (circuit, target), slot in slots.of.items():
            if own.start <= target < own.stop and circuit in place_of:
                rows, streams = members.setdefault(target - own.start, ([], []))
                rows.append(place_of[circuit])
                streams.append(slot)
        for unit, (rows, streams) in members.items():
            assert change is not None
            x = change[streams]
            x = x if reader.stream is None else x + reader.stream
            scale = None if reader.stream is None else reader.scale(x)
            found[rows, :, unit] = reader.projected(x, scale, unit) + reader.constant[:, unit]
        return self.base.scatter(reads.site, found)

    def logits(self, reads: Reads) -> Callable[[Tensor, Call], Tensor]:
        """The operation where the logits read."""

        def put(x: Tensor, call: Call) -> Tensor:
            new = self._plain(self.base.phases[-1], reads, range(len(self.live.edges)))
            return self.base.scatter(reads.site, new).to(x)

        return put

    # Blocks --------------------------------------------------------------------------------------------------

    def block(self, layer: int) -> Callable[..., Any]:
        """What runs in place of a block: those of its parts that are live, each for the circuits that need it."""
        wiring = self.base.wiring
        inside = {
            reads.group.kind: (p, reads) for p in self.base.phases for reads in p.reads if reads.group.layer == layer
        }
        parts = [writes for writes in wiring.writes[1:] if writes.group.layer == layer]

        def replacement(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            for is_heads, some in groupby(parts, lambda writes: writes.group.kind == "head"):
                together = list(some)
                running = self.live.circuits(*(writes.group for writes in together))
                if running and is_heads:
                    reads = [inside[kind] for kind in ("q", "k", "v")]
                    self._attention(layer, original, args, kwargs, together[0], reads, running)
                elif running:
                    self._mlp(layer, original, together, *inside["mlp_in"], running)
            return like(self.base.seen["block", layer].output, args[0] if args else kwargs["hidden_states"])

        return replacement

    def _attention(
        self,
        layer: int,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        writes: Writes,
        reads: Sequence[tuple[Phase, Reads]],
        running: Sequence[int],
    ) -> None:
        """Run a block until its heads have spoken, on the rows of some circuits."""
        rows = len(running) * self.base.sample.batch.rows
        plan = Plan(call=Call(rows=rows))
        for phase, each in reads:
            put(self.base, plan, each.site, self._projected(phase, each, running))
        leave_out(self.base, plan, layer, PROJECTIONS, rows)
        alone = self.base.seen["block", layer]
        taken = first_rows(args, alone.args, rows), first_rows(kwargs, alone.kwargs, rows)
        seen = run_until(self.base, plan, writes.site, original, *taken)
        self._write(writes, running, seen)

    def _mlp(
        self,
        layer: int,
        original: Callable[..., Any],
        writes: Sequence[Writes],
        phase: Phase,
        reads: Reads,
        running: Sequence[int],
    ) -> None:
        """Run a block's MLP on the tokens at which it matters; it treats each alone, so they are one row.

        Args:
            writes: the MLP, or the units that it is cut into, all at one site.
        """
        nodes = slice(writes[0].group.first, writes[-1].group.nodes.stop)
        late = self.live.late[running, nodes].all(1) & (not self.base.pooled)
        every = torch.arange(self.base.n_tokens, device=self.base.last.device)
        tokens = [self.base.last if alone else every for alone in late.tolist()]
        x = self._plain(phase, reads, running)
        given = torch.cat([own[at] for own, at in zip(x, tokens)])[None]
        plan = Plan(call=Call(rows=1))
        put(self.base, plan, reads.site, given)
        leave_out(self.base, plan, layer, ("attention",), 1, given.shape[1])
        dummy = given.to(self.base.wiring.model.dtype)
        args, kwargs, _ = self.base.seen["block", layer]  # for attention, which is left out
        with_dummy = ((dummy, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": dummy})
        seen = run_until(self.base, plan, writes[0].site, original, *with_dummy)[0].to(self.base.wiring.dtype)
        for each in writes:
            patched = self.base.patched[self.base.wiring.writes.index(each)]
            values = each.cut.values(seen).split([len(at) for at in tokens])
            for c, at, value in zip(running, tokens, values):
                units = self.live.units(c, each.group)
                if len(units):
                    change = value[:, units] - patched[at][:, units]
                    first = self.live.before[c][each.group.first]
                    self.changes[c][first : first + len(units), at] = each.added(change, units)
