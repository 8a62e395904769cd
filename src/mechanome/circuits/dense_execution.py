"""Circuits run as rows of one pass of the whole model: every target's stream is a product of its mask with the changes.

The model runs as it is; at each source its change is kept, at each target what it reads is put together and set. The
products are written so that gradients reach the masks without a copy of the changes per target.
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
        changes: `[circuit, source, token, d_model]`; each source is written once, before any target reads it.
        pieces: the same per group of sources, with their gradients.
    """

    base: Base
    masks: Tensor
    changes: Tensor = field(init=False)
    pieces: list[Tensor] = field(init=False, default_factory=list)
    _latest: tuple[int, Tensor] | None = None

    def __post_init__(self) -> None:
        d_model = self.base.d_model
        shape = (len(self.masks), self.masks.shape[1], self.base.n_tokens, d_model)
        self.changes = torch.empty(shape, dtype=self.masks.dtype, device=self.masks.device)

    def source(self, number: int, writes: Writes) -> Callable[[Tensor, Call], None]:
        """The operation at a group of sources."""

        def keep(x: Tensor, call: Call) -> None:
            value = self.base.gather(x, len(self.masks))
            value = (value if writes.weight is not None else value.unsqueeze(2)) - self.base.patched[number]
            added = writes.added(value.flatten(0, 1)).unflatten(1, value.shape[:2]).transpose(0, 1)
            self.changes[:, writes.group.nodes] = added.detach()
            self.pieces.append(added if added.requires_grad else added.new_empty(0))

        return keep

    def target(self, phase: Phase, reads: Reads) -> Callable[[Tensor, Call], Tensor]:
        """The operation at a group of targets."""
        reader = Reader.of(self.base, reads)

        def put(x: Tensor, call: Call) -> Tensor:
            change = self._change(phase)
            own = change if change.shape[1] == 1 else change[:, phase.own(reads)]
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

    def _change(self, phase: Phase) -> Tensor:
        if self._latest is None or self._latest[0] != phase.number:
            self._latest = None  # a phase's streams are the largest tensors there are: never hold two
            self._latest = phase.number, self.base.change(phase, lambda a, b: self._sum(phase, a, b))
        return self._latest[1]

    def _sum(self, phase: Phase, start: int, stop: int) -> Tensor:
        """The masked sums of consecutive sources, `[circuit, target, token, d_model]`."""
        mask = self.masks[:, start:stop]
        mask = mask.unsqueeze(1) if mask.dim() == 2 else mask[:, :, phase.targets].transpose(1, 2)
        groups = [g for g in self.base.wiring.graph.writers if start <= g.first < stop]
        first = self.base.wiring.graph.writers.index(groups[0])
        pieces = self.pieces[first : first + len(groups)]
        return _MaskedSum.apply(mask, self.changes[:, start:stop], [g.count for g in groups], *pieces)


class _MaskedSum(torch.autograd.Function):
    """`mask [circuit, target, source] @ values [circuit, source, token, d_model]`.

    The values are given twice: as one tensor that is shared by all sums and not copied, and as the pieces it was put
    together from, which receive the gradients.
    """

    @staticmethod
    def forward(ctx: Any, mask: Tensor, values: Tensor, counts: list[int], *pieces: Tensor) -> Tensor:
        ctx.mask, ctx.values, ctx.counts = mask, values, counts
        return torch.bmm(mask, values.flatten(2)).unflatten(2, values.shape[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].flatten(2)
        to_mask = torch.bmm(gradient, ctx.values.flatten(2).transpose(1, 2)) if ctx.needs_input_grad[0] else None
        wanted = ctx.needs_input_grad[3:]
        to_values: list[Tensor | None] = [None] * len(wanted)
        if any(wanted):
            every = torch.bmm(ctx.mask.transpose(1, 2), gradient).unflatten(2, ctx.values.shape[2:])
            to_values = [part if w else None for part, w in zip(every.split(ctx.counts, 1), wanted)]
        return (to_mask, None, None, *to_values)
