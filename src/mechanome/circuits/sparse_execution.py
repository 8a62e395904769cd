"""Small circuits run in small pieces: only what can differ from the base is computed.

The model's own forward is called, so embeddings, masks, rotary positions and the head stay its code, but its blocks do
not run as a whole. A block's attention runs for the circuits in which one of its heads is live, and stops once the
heads have spoken; its MLP runs, attention left out, for the circuits in which it is live, and stops once it has
written. What targets read is put together per stream, and targets with the same edges share one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mechanome.circuits.live_edges import Live, Slots
from mechanome.circuits.masked_streams import Base, fewest_logits, last_logits, repeated
from mechanome.circuits.phases import Phase
from mechanome.circuits.reading import Reader
from mechanome.circuits.wiring import Reads, Writes
from mechanome.engine.plan import Call, Plan, activate
from mechanome.engine.resume import install
from mechanome.engine.run import build_plan, execute, place
from mechanome.engine.taps import hidden, replaced


def run_sparse(base: Base, live: Live) -> Tensor:
    """Logits at the last token of circuits, `[circuit, example, vocab]`: those of `run_dense`.

    Args:
        base: the examples.
        live: what has to be computed for the circuits.
    """
    wiring, model = base.wiring, base.wiring.model
    circuits = len(live.edges)
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


@dataclass(frozen=True)
class _Put:
    """Replace a value."""

    value: Tensor

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        return self.value.to(x)


class _Enough(Exception):
    """What a part of a block was run for has been seen."""


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
        every = torch.empty(shape, dtype=wiring.dtype, device=self.base.sample.clean[0].device)
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
        value = self.base.gather(x, len(running))
        number = self.base.wiring.writes.index(writes)
        value = (value if writes.weight is not None else value.unsqueeze(2)) - self.base.patched[number]
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

    def _read(self, phase: Phase, reads: Reads, running: Sequence[int]) -> Tensor:
        """What a group of targets reads in some circuits, `[circuit * batch, pos, ...]`."""
        slots, change = self._streams(phase)
        reader, own = Reader.of(self.base, reads), phase.own(reads)
        whole = self.base.values[reads.site]
        whole = whole.expand(len(running), *whole.shape).clone()
        if change is None:
            return whole.flatten(0, 1)
        batch, pos = self.base.sample.keep.nonzero(as_tuple=True)
        place_of = {c: i for i, c in enumerate(running)}
        members: dict[int, tuple[list[int], list[int]]] = {}
        for (circuit, target), slot in slots.of.items():
            if own.start <= target < own.stop and circuit in place_of:
                rows, streams = members.setdefault(target - own.start, ([], []))
                rows.append(place_of[circuit])
                streams.append(slot)
        for unit, (rows, streams) in members.items():
            x = change[streams]
            if reads.weight is None:
                new = reader.plain(x)
            else:
                x = x if reader.stream is None else x + reader.stream
                scale = None if reader.stream is None else reader.scale(x)
                new = reader.projected(x, scale, unit) + reader.constant[:, unit]
            at = torch.tensor(rows, device=whole.device)[:, None]
            (whole if reads.weight is None else whole.select(-2, unit))[at, batch, pos] = new.to(whole)
        return whole.flatten(0, 1)

    def logits(self, reads: Reads) -> Callable[[Tensor, Call], Tensor]:
        """The operation where the logits read."""

        def put(x: Tensor, call: Call) -> Tensor:
            return self._read(self.base.phases[-1], reads, range(len(self.live.edges))).to(x)

        return put

    # Blocks --------------------------------------------------------------------------------------------------

    def block(self, layer: int) -> Callable[..., Any]:
        """What runs in place of a block: those of its parts that are live, each for the circuits that need it."""
        wiring = self.base.wiring
        inside = [p for p in self.base.phases if any(reads.group.layer == layer for reads in p.reads)]
        parts = [writes for writes in wiring.writes[1:] if writes.group.layer == layer]

        def replacement(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            for writes in parts:
                running = self.live.circuits(writes.group)
                if running:
                    kinds = ("mlp_in",) if writes.group.kind == "mlp" else ("q", "k", "v")
                    reads = [(p, r) for p in inside for r in p.reads if r.group.kind in kinds]
                    self._run(layer, original, args, kwargs, writes, reads, running)
            like = self.base.blocks[layer].output
            given = args[0] if args else kwargs["hidden_states"]
            return replaced(like if isinstance(like, Tensor) else copy.copy(like), given)

        return replacement

    def _run(
        self,
        layer: int,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        writes: Writes,
        reads: Sequence[tuple[Phase, Reads]],
        running: Sequence[int],
    ) -> None:
        """Run a block until a group of its sources has written, on the rows of some circuits."""
        model = self.base.wiring.model
        plan = Plan(call=Call(rows=len(running) * self.base.sample.batch.rows))
        for phase, each in reads:
            value = self._read(phase, each, running)
            place(plan, model.tap(each.site), _Put(value), each.site.tower)
        seen: list[Tensor] = []

        def stop(x: Tensor, call: Call) -> None:
            seen.append(x)
            raise _Enough

        place(plan, model.tap(writes.site), stop, writes.site.tower)
        if writes.group.kind == "mlp" and layer in self.base.attention:
            self._leave_out(plan, layer)
        some = _Rows(running, len(self.live.edges), self.base.sample.batch.rows)
        alone = self.base.blocks[layer]
        taken = some.of(args, alone.args), some.of(kwargs, alone.kwargs)
        try:
            with activate(plan):
                original(*taken[0], **taken[1])
        except _Enough:
            self._write(writes, running, seen[0])

    def _leave_out(self, plan: Plan, layer: int) -> None:
        """Let the attention of a block return nothing: what its MLP reads is known."""
        module: nn.Module = (
            self.base.wiring.model.architecture.tower(self.base.wiring.graph.tower)
            .blocks[layer]
            .roles["attention"]
            .module
        )
        like = self.base.attention[layer].output
        value = hidden(like)
        assert value is not None
        nothing = value.new_zeros(plan.call.rows, *value.shape[1:])
        install(module)
        plan.blocks[module] = lambda original, args, kwargs: replaced(
            like if isinstance(like, Tensor) else copy.copy(like), nothing
        )


@dataclass(frozen=True)
class _Rows:
    """Takes the rows of some circuits out of a block's arguments.

    Args:
        running: the circuits. circuits: how many there are. rows: examples of each.
    """

    running: Sequence[int]
    circuits: int
    rows: int

    def of(self, given: Any, alone: Any) -> Any:
        """The arguments for some circuits.

        Args:
            given: for all circuits. alone: for one. A tensor that grew with the number of circuits has one row each.
        """
        if len(self.running) == self.circuits:
            return given
        if isinstance(given, Tensor):
            total = self.circuits * self.rows
            if given.dim() and given.shape[0] == total and alone.shape[0] == self.rows:
                return given.unflatten(0, (self.circuits, -1))[list(self.running)].flatten(0, 1)
            return given
        if isinstance(given, dict):
            return {k: self.of(v, alone[k]) for k, v in given.items()}
        if type(given) in (tuple, list):
            return type(given)(self.of(a, b) for a, b in zip(given, alone))
        return given
