"""Exact effects: the model is run with exactly one part patched.

The effect of an edge is measured where it is read: the target's own input is set to what it would be if this source
alone carried the patched value, and the model goes on from there. Blocks before the target are not run again, all
sources of a group of targets share passes as rows, and an edge to the logits costs no block at all. The numbers are
those of the plain loop with one hooked run per edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.attribution import Ask
from mechanome.circuits.norms import Norm
from mechanome.circuits.samples import Sample, sample, take_last, walk
from mechanome.circuits.wiring import Reads
from mechanome.core import NotServed
from mechanome.engine import Batch, Site, activation_patching
from mechanome.engine.metrics import measure
from mechanome.engine.operations import Capture
from mechanome.engine.plan import Call
from mechanome.engine.resume import Recorded, Stub, install, record
from mechanome.engine.run import build_plan, execute, place
from mechanome.engine.taps import hidden, logits_of

_ROW_TOKENS = 512
"""Rows times positions of one pass: enough for efficient products, few enough to stay small."""


def exact_edges(ask: Ask, only: Tensor) -> Tensor:
    """Measured effects of edges, `[example, source, target]`; NaN where nothing was measured.

    Args:
        ask: the examples.
        only: which edges, `[source, target]` of booleans.
    """
    graph = ask.wiring.graph
    effects = torch.full((ask.clean.rows, *graph.shape), float("nan"), dtype=ask.wiring.dtype)
    effects[:, ~graph.mask] = 0.0
    for i, row in enumerate(ask.rows):
        clean, other = ask.clean.take([i]), None if ask.other is None else ask.other.take([i])
        found = sample(ask.wiring, ask.metric, clean, other, [row], ask.intervention, ask.means)
        _Example(ask, found, *_recorded(ask, clean)).measure(only, effects[i])
    return effects


def _recorded(ask: Ask, clean: Batch) -> tuple[Recorded, dict[Site, Tensor]]:
    """The clean run, to resume from, and its values at targets and at norms on the way."""
    wiring, model = ask.wiring, ask.wiring.model
    sites = [*wiring.streams, *(reads.site for reads in wiring.reads)]
    captures = [Capture(site, copy=site.whole in model.volatile) for site in dict.fromkeys(sites)]
    plan = build_plan(model, captures)
    finish = record(model, model.architecture.tower(wiring.graph.tower), plan)
    with torch.no_grad():
        execute(model, clean, plan, **model.keep_logits(1))
    return finish(), {c.site: c.values[0] for c in captures}


@dataclass(frozen=True)
class _Put:
    """Replace one unit of a tensor `[row, pos, (unit), width]` in some rows."""

    rows: Tensor
    values: Tensor
    units: Tensor | None

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        x, rows = x.clone(), self.rows.to(x.device)
        where = (rows,) if self.units is None else (rows, slice(None), self.units.to(x.device))
        x[where] = self.values.to(x)
        return x


@dataclass(frozen=True)
class _Example:
    """One example, its clean run, and what it takes to go on from any target."""

    ask: Ask
    found: Sample
    recorded: Recorded
    values: dict[Site, Tensor]

    def measure(self, only: Tensor, effects: Tensor) -> None:
        """Fill in the effects `[source, target]` of the edges asked for."""
        shape = self.found.clean[0].shape[1]
        every = [(b - a)[0].to(self.ask.wiring.dtype) for a, b in zip(self.found.clean, self.found.patched)]
        keep = self.found.keep[0].to(every[0])
        changes = [change * keep[:, None, None] for change in every]

        def through(norm: Norm, site: Site, by: Tensor) -> Tensor:
            x = self.values[site][0].to(by)
            return norm(x + by) - norm(x)

        size = max(1, _ROW_TOKENS // shape)
        for readers, rows, stream in walk(self.ask.wiring, changes, through):
            # Where the stream does not change there is no effect: nothing is run, and no rounding comes out.
            moves = (stream != 0).flatten(1).any(1).cpu()
            place_of, edges = torch.tensor(rows), []
            for k, reads in enumerate(readers):
                block = only[rows, reads.group.nodes]
                effects[rows, reads.group.nodes] = torch.where(block, 0.0, effects[rows, reads.group.nodes])
                pairs = (block & moves[:, None]).nonzero()
                edges.append(torch.cat([torch.full((len(pairs), 1), k), pairs], 1))
            chosen = torch.cat(edges)
            for some in chosen.split(size) if len(chosen) else ():
                value = (self._metric(readers, stream, some) - self.found.metric[0]).to(effects)
                first = torch.tensor([reads.group.first for reads in readers])
                effects[place_of[some[:, 1]], first[some[:, 0]] + some[:, 2]] = value

    def _metric(self, readers: list[Reads], stream: Tensor, edges: Tensor) -> Tensor:
        """The metric after each of some edges into one place of the stream is patched, `[edge]`.

        Args:
            readers: who reads there. stream: what each source contributes, `[source, pos, d_model]`.
            edges: `[edge, 3]`: which reader, source and unit.
        """
        model, n, layer = self.ask.wiring.model, len(edges), readers[0].group.layer
        plan, blocks = build_plan(model), self.recorded.tower.blocks
        first = len(blocks) if layer is None else layer
        self.recorded.stub(plan, first)
        new: Tensor | None = None
        for k, reads in enumerate(readers):
            rows = (edges[:, 0] == k).nonzero()[:, 0]
            if not len(rows):
                continue
            units = edges[rows, 2]
            new = self._input(reads, stream[edges[rows, 1]], units)
            if layer is not None:
                put = _Put(rows, new, None if reads.weight is None else units)
                place(plan, model.tap(reads.site), put, reads.site.tower, f"an edge into {reads.site}")
        if first:
            raw = self.recorded.outputs[first - 1]
            last = hidden(raw)
            assert last is not None and new is not None
            whole = new.to(last) if layer is None else last.repeat(n, *[1] * (last.dim() - 1))
            block = blocks[first - 1].part.module
            install(block)
            plan.blocks[block] = Stub(whole.reshape(n, *last.shape[1:]), raw)
        batch = self.found.batch.take([0] * n)
        with torch.no_grad():
            output = execute(model, batch, plan, **self._keep(batch))
        logits = logits_of(output)
        if logits is None:
            raise NotServed("the metric", "this model has no logits", "open a model with a head")
        which = self.found.rows.expand(n).to(logits.device)
        return measure(self.ask.metric, take_last(logits, batch), which).float().cpu()

    def _keep(self, batch: Batch) -> dict[str, Any]:
        return self.ask.wiring.model.keep_logits(1) if not batch.frame.ragged and batch.frame.width else {}

    def _input(self, reads: Reads, by: Tensor, units: Tensor) -> Tensor:
        """What targets read after their stream changed, `[edge, pos, width]`."""
        clean = self.values[reads.site][0].to(by)
        if reads.norm is not None and reads.stream is not None:
            x = self.values[reads.stream][0].to(by)
            by = reads.norm(x + by) - reads.norm(x)
        if reads.weight is None:
            return clean + by
        return clean.transpose(0, 1)[units] + torch.bmm(by, reads.weight[units])


_SWEEPS = {"embedding": ("resid_pre", "layer"), "head": ("z", "head"), "mlp": ("mlp_out", "layer")}


def exact_nodes(ask: Ask) -> Tensor:
    """Measured effects of sources, patched at all positions at once, `[example, source]`."""
    wiring, model, graph = ask.wiring, ask.wiring.model, ask.wiring.graph
    effects = torch.zeros(ask.clean.rows, len(graph.sources), dtype=wiring.dtype)
    numbers = torch.tensor(list(ask.rows))
    other: Any = ask.other
    if ask.intervention.kind != "patch":
        found = sample(wiring, ask.metric, ask.clean, ask.other, ask.rows, ask.intervention, ask.means)
        starts = model.frames(ask.clean)[graph.tower].starts
        carried = {
            w.site: torch.stack([v.roll(-start, 0) for v, start in zip(value, starts)])
            for w, value in zip(wiring.writes, found.patched)
        }
        other = lambda site: carried[site] if site.point == "z" else carried[site][:, :, 0]  # noqa: E731
    for kind, (point, over) in _SWEEPS.items():
        groups = [group for group in graph.writers if group.kind == kind]
        if not groups:
            continue
        swept = activation_patching(
            model,
            ask.clean,
            other,
            point,
            lambda logits, rows: ask.metric(logits, numbers.to(rows.device)[rows]),
            over=over,  # type: ignore[arg-type]
            layers=[group.layer or 0 for group in groups],
            into="clean",
            tower=graph.tower,
            quiet=True,
        ).effects
        for i, group in enumerate(groups):
            effects[:, group.nodes] = swept[:, i, : group.count].to(effects)
    return effects
