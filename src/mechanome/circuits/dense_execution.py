"""Circuits run as rows of one pass of the whole model: every target's stream is a product of its mask with the changes.

The model runs as it is; at each source its change is kept, at each target what it reads is put together and set. The
products are written so that gradients reach the masks without a copy of the changes per target, and so that gradients
of all targets of a source add up in one place: changes are one tensor, and so are their gradients. Of an MLP's units,
which may be many, only the coordinates are kept; what they write is summed at once where all targets share a mask, and
per target where not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.masked_streams import Base, fewest_logits, last_logits, repeated
from mechanome.circuits.phases import Phase
from mechanome.circuits.reading import Reader
from mechanome.circuits.wiring import Reads, Writes
from mechanome.core import ShapeMismatch
from mechanome.engine.gradients import frozen
from mechanome.engine.plan import Call
from mechanome.engine.run import build_plan, execute, place


def run_dense(base: Base, masks: Tensor) -> Tensor:
    """Logits at the last token of circuits given as masks, `[circuit, example, vocab]`; differentiable in the masks.

    Args:
        base: the examples.
        masks: how much of each edge is kept, `[circuit, source, target]`, or of each source, `[circuit, source]`: 1
            carries what the circuit's own run has there, 0 the patched value, numbers between a mixture.

    Raises:
        ShapeMismatch: masks of another graph.
    """
    wiring, model = base.wiring, base.wiring.model
    shape = wiring.graph.shape
    if masks.dim() not in (2, 3) or tuple(masks.shape[1:]) != shape[: masks.dim() - 1]:
        raise ShapeMismatch(
            f"masks of shape {list(masks.shape)}",
            f"the graph has {shape[0]} sources and {shape[1]} targets",
            "give [circuit, source, target] or [circuit, source]",
        )
    with torch.set_grad_enabled(masks.requires_grad and torch.is_grad_enabled()), frozen(model.module):
        state = _State(base, masks.to(base.values[wiring.reads[-1].site].device, wiring.dtype))
        plan = build_plan(model)
        for i, writes in enumerate(wiring.writes):
            place(plan, model.tap(writes.site), state.source(i, writes), writes.site.tower, f"reading {writes.site}")
        for phase in base.phases:
            for reads in phase.reads:
                tap = model.tap(reads.site)
                place(plan, tap, state.target(phase, reads), reads.site.tower, f"edges into {reads.site}")
        batch = repeated(base.sample.batch, len(masks))
        output = execute(model, batch, plan, **fewest_logits(wiring, base.sample.batch))
        return last_logits(output, batch).unflatten(0, (len(masks), -1))


@dataclass
class _State:
    """What sources have changed so far.

    Attributes:
        changes: `[circuit, held, token, d_model]`; each source is written once, before any target reads it. Units of an
            MLP are held as one, already masked, or not at all.
        held: masks of what is held, as `masks`.
        slots: which of them belong to each group of sources.
        written: the groups that are held and have written.
        gradients: of `changes`, filled by the backward pass; None where there will be none.
        order: a number that every source and every sum hands on, so that the backward pass visits them in reverse.
        coordinates: per group of units that is not held, their changes, `[circuit, token, unit]`.
    """

    base: Base
    masks: Tensor
    changes: Tensor = field(init=False)
    held: Tensor = field(init=False)
    slots: list[slice] = field(init=False, default_factory=list)
    written: list[int] = field(init=False, default_factory=list)
    gradients: Tensor | None = field(init=False, default=None)
    order: Tensor = field(init=False)
    coordinates: dict[int, Tensor] = field(init=False, default_factory=dict)
    _latest: tuple[int, dict[Reads, Tensor]] | None = None

    def __post_init__(self) -> None:
        by_source, count, masks = self.masks.dim() == 2, 0, []
        for writes in self.base.wiring.writes:
            own = self.masks[:, writes.group.nodes]
            masks.append(torch.ones_like(own[:, : int(by_source)]) if writes.thin else own)
            self.slots.append(slice(count, count + masks[-1].shape[1]))
            count = self.slots[-1].stop
        self.held = torch.cat(masks, 1)
        shape = (len(self.masks), count, self.base.n_tokens, self.base.d_model)
        self.changes = self.masks.new_empty(shape)
        self.order = self.masks.new_zeros(1)
        if torch.is_grad_enabled():
            self.gradients = self.masks.new_zeros(shape)

    def source(self, number: int, writes: Writes) -> Callable[[Tensor, Call], None]:
        """The operation at a group of sources."""

        def keep(x: Tensor, call: Call) -> None:
            value = writes.cut.values(self.base.gather(x, len(self.masks))) - self.base.patched[number]
            if not writes.thin:
                added = writes.added(value.flatten(0, 1)).unflatten(1, value.shape[:2]).transpose(0, 1)
            elif self.masks.dim() == 2:
                added = self._together(writes, value.squeeze(-1) * self.masks[:, None, writes.group.nodes]).unsqueeze(1)
            else:
                self.coordinates[number] = value.squeeze(-1)
                return
            self.changes[:, self.slots[number]] = added.detach()
            self.written.append(number)
            if added.requires_grad:
                assert self.gradients is not None
                self.order = _Written.apply(self.order, added, self.gradients[:, self.slots[number]])

        return keep

    @staticmethod
    def _together(writes: Writes, values: Tensor) -> Tensor:
        """What units write together, `[..., token, d_model]`, from their coordinates `[..., token, unit]`."""
        assert writes.weight is not None
        return values @ writes.weight[:, 0]

    def target(self, phase: Phase, reads: Reads) -> Callable[[Tensor, Call], Tensor]:
        """The operation at a group of targets."""
        reader = Reader.of(self.base, reads)

        def put(x: Tensor, call: Call) -> Tensor:
            own = self._change(phase)[reads]
            new = reader.plain(own[:, 0]) if reads.weight is None else self._projected(reader, own)
            return self.base.scatter(reads.site, new).to(x)

        return put

    def _projected(self, reader: Reader, change: Tensor) -> Tensor:
        """What targets read, `[circuit, token, unit, width]`, from changes `[circuit, unit or one, token, d_model]`."""
        by_unit = change.transpose(0, 1)
        x = by_unit.contiguous() if reader.stream is None else by_unit.contiguous() + reader.stream
        if len(x) == len(reader.folded):
            found = torch.bmm(x.flatten(1, 2), reader.folded).unflatten(1, x.shape[1:3])
        else:
            together = x[0].flatten(0, 1) @ reader.folded.transpose(0, 1).flatten(1)
            found = together.unflatten(1, reader.folded.shape[::2]).transpose(0, 1).unflatten(1, x.shape[1:3])
        if reader.stream is not None:
            found = found * reader.scale(x)
        return found.permute(1, 2, 0, 3) + reader.constant

    def _change(self, phase: Phase) -> dict[Reads, Tensor]:
        """What each group of a phase's targets reads, `[circuit, target or one, token, d_model]`."""
        if self._latest is None or self._latest[0] != phase.number:
            self._latest = None  # a phase's streams are the largest tensors there are: never hold two
            change = self.base.change(phase, lambda a, b: self._sum(phase, a, b))
            counts = [reads.group.count for reads in phase.reads]
            own = [change] * len(counts) if change.shape[1] == 1 else change.split(counts, 1)
            self._latest = phase.number, dict(zip(phase.reads, own))
        return self._latest[1]

    def _sum(self, phase: Phase, start: int, stop: int) -> Tensor:
        """The masked sums of consecutive sources, `[circuit, target, token, d_model]`."""
        writes = self.base.wiring.writes
        numbers = [i for i, w in enumerate(writes) if start <= w.group.first < stop]
        held = [i for i in numbers if i in self.written]
        total: Tensor | None = None
        if held:
            span = slice(self.slots[held[0]].start, self.slots[held[-1]].stop)
            mask = self.held[:, span]
            mask = mask.unsqueeze(1) if mask.dim() == 2 else mask[:, :, phase.targets].transpose(1, 2)
            gradients = None if self.gradients is None else self.gradients[:, span]
            total, self.order = _MaskedSum.apply(mask, self.order, self.changes[:, span], gradients)
        for i in (i for i in numbers if i in self.coordinates):
            mask = self.masks[:, writes[i].group.nodes, phase.targets].transpose(1, 2)
            part = self._together(writes[i], self.coordinates[i].unsqueeze(1) * mask.unsqueeze(2))
            total = part if total is None else total + part
        assert total is not None
        return total


class _Written(torch.autograd.Function):
    """A group of sources that has written: hands its gradient back once all sums that read it have added theirs.

    What it hands back it takes out, so that a graph that is kept may be gone through again.
    """

    @staticmethod
    def forward(ctx: Any, order: Tensor, added: Tensor, gradients: Tensor) -> Tensor:
        ctx.gradients = gradients
        return order.clone()

    @staticmethod
    def backward(ctx: Any, *passed: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.gradients.clone()
        ctx.gradients.zero_()
        return passed[0], found, None


class _MaskedSum(torch.autograd.Function):
    """`mask [circuit, target, source] @ values [circuit, source, token, d_model]`.

    The values are shared by all sums and not copied. Their gradient is added in place to `gradients`, where `_Written`
    takes it.
    """

    @staticmethod
    def forward(ctx: Any, mask: Tensor, order: Tensor, values: Tensor, gradients: Tensor | None) -> Any:
        ctx.mask, ctx.values, ctx.gradients = mask, values, gradients
        return torch.bmm(mask, values.flatten(2)).unflatten(2, values.shape[2:]), order.clone()

    @staticmethod
    def backward(ctx: Any, *passed: Tensor) -> tuple[Tensor | None, ...]:
        gradient, order = passed[0].flatten(2), passed[1]
        to_mask = torch.bmm(gradient, ctx.values.flatten(2).transpose(1, 2)) if ctx.needs_input_grad[0] else None
        for total, mask, own in zip(ctx.gradients.flatten(2), ctx.mask, gradient):
            total.addmm_(mask.T, own)
        return to_mask, order, None, None
