"""Exact effects: the model is run with exactly one part patched.

The effect of an edge is measured where it is read: the target's own input is set to what it would be if this source
alone carried the patched value, and the model goes on from there. Blocks before the target are not run again, all
sources of a group of targets share passes as rows, and an edge to the logits costs no block at all. The numbers are
those of the plain loop with one hooked run per edge.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from mechanome.engine.plan import Call, Plan
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
    for i, example in enumerate(_examples(ask)):
        example.measure_edges(only, effects[i])
    return effects


def _examples(ask: Ask) -> Iterator[_Example]:
    for i, row in enumerate(ask.rows):
        clean, other = ask.clean.take([i]), None if ask.other is None else ask.other.take([i])
        found = sample(ask.wiring, ask.metric, clean, other, [row], ask.intervention, ask.means)
        yield _Example(ask, found, *_recorded(ask, clean))


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

    def change(self, group: int, units: Tensor) -> Tensor | None:
        """By how much some units of a group of sources change, `[pos, unit, width]`; None for no units."""
        if not len(units):
            return None
        clean, patched = (values[group][0][:, units] for values in (self.found.clean, self.found.patched))
        return (patched - clean).to(self.ask.wiring.dtype) * self.found.keep[0][:, None, None]

    def through(self, norm: Norm, site: Site, by: Tensor) -> Tensor:
        """What a change of a norm's input becomes behind it."""
        x = self.values[site][0].to(by)
        return norm(x + by) - norm(x)

    @property
    def size(self) -> int:
        """How many runs share a pass."""
        return max(1, _ROW_TOKENS // self.found.clean[0].shape[1])

    def measure_edges(self, only: Tensor, effects: Tensor) -> None:
        """Fill in the effects `[source, target]` of the edges asked for."""
        wiring = self.ask.wiring
        units = [only[w.group.nodes].any(1).nonzero()[:, 0] for w in wiring.writes]
        changes = [self.change(i, which) for i, which in enumerate(units)]
        if all(change is None for change in changes):
            return
        for readers, rows, stream in walk(wiring, changes, self.through, units):
            # Where the stream does not change there is no effect: nothing is run, and no rounding comes out.
            moves = (stream != 0).flatten(1).any(1).cpu()
            place_of, edges = torch.tensor(rows), []
            for k, reads in enumerate(readers):
                block = only[rows, reads.group.nodes]
                effects[rows, reads.group.nodes] = torch.where(block, 0.0, effects[rows, reads.group.nodes])
                pairs = (block & moves[:, None]).nonzero()
                edges.append(torch.cat([torch.full((len(pairs), 1), k), pairs], 1))
            chosen = torch.cat(edges)
            for some in chosen.split(self.size) if len(chosen) else ():
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
        plan = build_plan(model)
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
        return self._resumed(plan, layer, n, new if layer is None else None)

    def moved(self, layer: int | None, by: Tensor) -> Tensor:
        """The metric after the stream that enters a block was changed, `[run]`.

        Args:
            layer: the block; None for the head. by: `[run, pos, d_model]`.
        """
        last = self.recorded.stream(len(self.recorded.outputs) if layer is None else layer)
        return self._resumed(build_plan(self.ask.wiring.model), layer, len(by), last[0].to(by) + by)

    def _resumed(self, plan: Plan, layer: int | None, n: int, stream: Tensor | None) -> Tensor:
        """The metric of runs that start at a block, `[run]`.

        Args:
            plan: what happens from there on. layer: the block; None for the head.
            n: how many runs. stream: what enters, `[run, pos, d_model]`; None for that of the clean run.
        """
        model, blocks = self.ask.wiring.model, self.recorded.tower.blocks
        first = len(blocks) if layer is None else layer
        self.recorded.stub(plan, first)
        if first:
            raw = self.recorded.outputs[first - 1]
            last = hidden(raw)
            assert last is not None
            whole = last.repeat(n, *[1] * (last.dim() - 1)) if stream is None else stream.to(last)
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


def exact_nodes(ask: Ask, only: Tensor) -> Tensor:
    """Measured effects of sources, patched at all positions at once, `[example, source]`; NaN for those not asked for.

    Args:
        ask: the examples.
        only: which sources, `[source]` of booleans.
    """
    wiring, model, graph = ask.wiring, ask.wiring.model, ask.wiring.graph
    effects = torch.full((ask.clean.rows, len(graph.sources)), float("nan"), dtype=wiring.dtype)
    numbers = torch.tensor(list(ask.rows))
    other: Any = ask.other
    if ask.intervention.kind != "patch":
        found = sample(wiring, ask.metric, ask.clean, ask.other, ask.rows, ask.intervention, ask.means)
        starts = model.frames(ask.clean)[graph.tower].starts
        carried = {
            w.site: torch.stack([v.roll(-start, 0) for v, start in zip(value, starts)])
            for w, value in zip(wiring.writes, found.patched)
            if w.group.kind in _SWEEPS
        }
        other = lambda site: carried[site] if site.point == "z" else carried[site][:, :, 0]  # noqa: E731
    for kind, (point, over) in _SWEEPS.items():
        groups = [group for group in graph.writers if group.kind == kind and bool(only[group.nodes].any())]
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
    if bool((only & graph.kinds("unit", "rest")).any()):
        _units(ask, only, effects)
    effects[:, ~only] = float("nan")
    return effects


def _units(ask: Ask, only: Tensor, effects: Tensor) -> None:
    """Fill in the effects `[example, source]` of units, which change the stream behind their block."""
    for i, example in enumerate(_examples(ask)):
        for number, writes in enumerate(ask.wiring.writes):
            if writes.group.kind not in ("unit", "rest"):
                continue
            for units in only[writes.group.nodes].nonzero()[:, 0].split(example.size):
                change = example.change(number, units)
                if change is None:
                    continue
                alone = [change if w is writes else None for w in ask.wiring.writes]
                which = [units] * len(alone)
                (reads, *_), _, stream = next(walk(ask.wiring, alone, example.through, which))
                effect = torch.zeros(len(units), dtype=effects.dtype)
                moves = (stream != 0).flatten(1).any(1).cpu()
                if bool(moves.any()):
                    effect[moves] = (example.moved(reads.group.layer, stream[moves]) - example.found.metric[0]).to(
                        effect
                    )
                effects[i, writes.group.first + units] = effect
