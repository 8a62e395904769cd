"""A `Sample`: some examples, what every source writes on them, and what it would carry if it were patched.

Everything that edge scores need besides gradients. Tokens that cannot matter are left out at once: padding, and in a
causal model the tokens before the first one at which an example's two inputs differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from mechanome.circuits.interventions import Intervention, Means, noisy, written
from mechanome.circuits.norms import Norm
from mechanome.circuits.wiring import Reads, Turns, Wiring, Writes
from mechanome.core import NotServed
from mechanome.engine import Batch, Run, Site
from mechanome.engine.metrics import Metric, measure
from mechanome.engine.operations import take_positions

CHUNK_BYTES = 2**26
"""How large the changes of all sources in the stream's space may be at once."""


@dataclass(frozen=True)
class Sample:
    """Examples and what their sources carry.

    Args:
        wiring: of the graph.
        batch: the clean inputs.
        rows: the number of each of them among all examples, `[batch]`.
        clean, patched: per group of sources, `[batch, pos, unit, width]`: as it is, and as the intervention has it.
        keep: tokens that can matter, `[batch, pos]` of booleans.
        metric: of the clean inputs, `[batch]`.
        corrupted: the metric of the other inputs, None where there are none.
    """

    wiring: Wiring
    batch: Batch
    rows: Tensor
    clean: Sequence[Tensor] = field(repr=False)
    patched: Sequence[Tensor] = field(repr=False)
    keep: Tensor = field(repr=False)
    metric: Tensor = field(repr=False)
    corrupted: Tensor | None = field(default=None, repr=False)

    def flat(self, value: Tensor) -> Tensor:
        """The tokens that matter of a value `[batch, pos, ...]`, `[token, ...]`."""
        return value[self.keep].to(self.wiring.dtype)

    @cached_property
    def changes(self) -> list[Tensor]:
        """Per group of sources, patched minus clean, `[token, unit, width]`."""
        return [self.flat(b - a) for a, b in zip(self.clean, self.patched)]

    @cached_property
    def examples(self) -> Tensor:
        """Which row of the batch each token belongs to, `[token]`."""
        return self.keep.nonzero()[:, 0]


def sample(
    wiring: Wiring,
    metric: Metric,
    clean: Batch,
    other: Batch | None,
    rows: Sequence[int],
    intervention: Intervention,
    means: Means | None,
    known: tuple[Run, Tensor] | None = None,
) -> Sample:
    """Run the model on some examples and keep what edge scores need.

    Args:
        wiring: of the graph.
        metric: `metric(logits [rows, vocab], rows) -> [rows]`.
        clean, other: inputs and counterfactuals, row by row.
        rows: the number of each row among all examples.
        intervention: what a patched source carries; `means`: the means, where it takes them.
        known: a run of the clean inputs that captured all sources, and its metric, if there is one already.
    """
    model, sites = wiring.model, wiring.sites
    numbers = torch.tensor(list(rows))
    if known is None:
        run = model.run(clean, sites, logits="last")
        known = run, scored(metric, run, numbers)
    values = written(wiring, known[0])
    keep = real_tokens(wiring, clean, values[0])
    corrupted: Tensor | None = None
    if intervention.kind == "patch":
        assert other is not None
        run = model.run(other, sites, logits="last")
        patched, corrupted = written(wiring, run), scored(metric, run, numbers)
    elif intervention.kind == "noise":
        differs = keep if other is None else keep & embeddings_differ(wiring, values[0], other)
        run = model.run(clean, sites, [noisy(wiring, intervention, clean, differs, rows)], logits="last")
        patched, corrupted = written(wiring, run), scored(metric, run, numbers)
    elif intervention.kind == "zero":
        patched = [torch.zeros_like(v) for v in values]
    else:
        assert means is not None
        patched = means.like(wiring, clean, values)
    tower = model.architecture.tower(wiring.graph.tower)
    if tower.causal and corrupted is not None:
        first = (patched[0] != values[0]).flatten(2).any(-1)
        keep = keep & (first.cumsum(1) > 0)
    return Sample(wiring, clean, numbers, values, patched, keep, known[1], corrupted)


def scored(metric: Metric, run: Run, rows: Tensor) -> Tensor:
    """The metric at the last token of each row of a run.

    Raises:
        NotServed: a model without logits.
    """
    if run.logits is None:
        raise NotServed("the metric", "this model has no logits", "open a model with a head")
    return measure(metric, run.logits, rows.to(run.logits.device)).detach().float().cpu()


def real_tokens(wiring: Wiring, batch: Batch, value: Tensor) -> Tensor:
    """Which columns hold real tokens, `[batch, pos]` of booleans."""
    frame = wiring.model.frames(batch)[wiring.graph.tower].resolved(*value.shape[:2])
    columns = torch.arange(value.shape[1], device=value.device)
    starts, lengths = (torch.tensor(n, device=value.device)[:, None] for n in (frame.starts, frame.lengths))
    return (columns >= starts) & (columns < starts + lengths)


def embeddings_differ(wiring: Wiring, embedded: Tensor, other: Batch) -> Tensor:
    """Where the embeddings of the other inputs are not the same, `[batch, pos]` of booleans."""
    site = wiring.writes[0].site
    run = wiring.model.run(other, [site], logits=False)
    return (run.captured[site].to(embedded) != embedded[:, :, 0]).any(-1)


Through = Callable[[Norm, Site, Tensor], Tensor]
"""What a change of a norm's input, `[source, token, d_model]`, becomes behind the norm whose input is at this site."""


def walk(
    wiring: Wiring, changes: Sequence[Tensor | None], through: Through, units: Sequence[Tensor] | None = None
) -> Iterator[tuple[list[Reads], list[int], Tensor]]:
    """What every source contributes at every target.

    Args:
        wiring: of the graph.
        changes: per group of sources, by how much it changes, `[token, unit, width]`; None leaves it out.
        through: how changes go through norms on the way.
        units: per group of sources, the numbers of the units that changes are given for; None for all.

    Yields:
        groups of targets that read the same, the sources that have written by then, and what these contribute,
        `[source, token, d_model]`; the tensor changes later, so use it at once.
    """
    given = [c for c in changes if c is not None]
    order = {w.group: change for w, change in zip(wiring.writes, changes)}
    some = {} if units is None else {w.group: which for w, which in zip(wiring.writes, units)}
    total = sum(c.shape[1] for c in given)
    stream: Tensor | None = None
    rows: list[int] = []
    for kind, events in groupby(wiring.events, type):
        if kind is Reads and stream is not None:
            yield [e for e in events if isinstance(e, Reads)], rows, stream[: len(rows)]
            continue
        for event in events:
            if isinstance(event, Writes) and (change := order[event.group]) is not None:
                added = event.added(change, some.get(event.group))
                if event.norm is not None and event.into is not None:
                    added = through(event.norm, event.into, added)
                if stream is None:
                    stream = added.new_empty(total, *added.shape[1:])
                stream[len(rows) : len(rows) + len(added)] = added
                which = some[event.group].tolist() if some else range(event.group.count)
                rows += [event.group.first + i for i in which]
            elif isinstance(event, Turns) and stream is not None:
                stream[: len(rows)] = through(event.norm, event.site, stream[: len(rows)])


def take_last(logits: Tensor, batch: Batch) -> Tensor:
    """Logits at the last token of each row, `[row, vocab]`."""
    if logits.dim() == 2:
        return logits
    kept, frame = logits.shape[1], batch.frame.resolved(*logits.shape[:2])
    return take_positions(logits, frame.at(frame.offset + frame.width - kept, kept), "last")


def additivity_error(found: Sample) -> float:
    """How far the changes of single edges into a target are from adding up to its whole change.

    Args:
        found: examples.

    Returns:
        the largest over targets of `|sum of single changes - whole change| / |whole change|`, lengths taken over all
        tokens; rounding alone where a graph is additive.
    """
    wiring = found.wiring
    sites = list(dict.fromkeys([*wiring.streams, *(_stream_of(reads) for reads in wiring.reads)]))
    edits = wiring.edits(found.patched)
    clean = wiring.model.run(found.batch, sites, logits=False).captured
    patched = wiring.model.run(found.batch, sites, edits, logits=False).captured
    flat = {site: (found.flat(clean[site]), found.flat(patched[site])) for site in sites}
    squares: dict[int, list[float]] = {}
    for tokens in chunks(len(found.examples), wiring.graph.shape[0], found.clean[0].shape[-1]):

        def through(norm: Norm, site: Site, by: Tensor, tokens: slice = tokens) -> Tensor:
            x = flat[site][0][tokens]
            return norm(x + by) - norm(x)

        for (reads, *_), _, stream in walk(wiring, [c[tokens] for c in found.changes], through):
            before, after = (x[tokens] for x in flat[_stream_of(reads)])
            sums = squares.setdefault(reads.group.first, [0.0, 0.0])
            sums[0] += float((stream.sum(0) - (after - before)).square().sum())
            sums[1] += float((after - before).square().sum())
    return max(((apart / whole) ** 0.5 for apart, whole in squares.values() if whole > 0), default=0.0)


def chunks(tokens: int, sources: int, d_model: int, size: int = CHUNK_BYTES) -> Iterator[slice]:
    """Tokens in pieces, so that what sources contribute to the stream at each takes so many bytes of float32."""
    step = max(1, size // (4 * sources * d_model))
    return (slice(first, min(first + step, tokens)) for first in range(0, tokens, step))


def _stream_of(reads: Reads) -> Site:
    """Where the stream that a target reads can be captured."""
    if reads.stream is not None:
        return reads.stream
    if reads.weight is None:
        return reads.site
    return Site("resid_pre", reads.group.layer, tower=reads.site.tower)
