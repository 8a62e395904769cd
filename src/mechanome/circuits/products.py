"""Edge scores as matrix products: the change of every source times the gradient of every target, factorised.

The first-order effect of an edge is `<change of the source, gradient of the target>`, summed over tokens. Gradients are
taken where autograd has them anyway, at the outputs of projections, and pulled back to the stream per head in closed
form, so nothing is differentiated twice and no copy of the stream is made per head. Several gradients (of the steps of
integrated gradients) are added up before they are pulled back: the maps are the same, only the norms' scales differ,
and these enter by a term of rank one per step. Contraction over tokens is additive, so tokens are taken in chunks that
fit. Where the stream only adds up, the units of an MLP, which may be many, are multiplied group by group and what they
write is never held for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from mechanome.circuits.norms import Norm
from mechanome.circuits.samples import CHUNK_BYTES, Sample, walk
from mechanome.circuits.wiring import Reads
from mechanome.engine import Site


@dataclass(frozen=True)
class Pass:
    """One differentiated pass over a sample.

    Args:
        weight: of this pass in the average.
        values, gradients: per site, `[token, ...]`, tokens as the sample keeps them.
    """

    weight: float
    values: Mapping[Site, Tensor]
    gradients: Mapping[Site, Tensor]


@dataclass
class Pull:
    """Gradients of one group of targets, added up over passes in their own small space.

    Args:
        reads: the targets.
        linear: norms count as linear, with a constant scale.

    Attributes:
        main: `[token, unit, width]`, scaled as the norm scales.
        along: per pass, the part along the normalized stream that the norm takes out, `[token, unit]`.
        flat: per pass, the normalized stream, `[token, d_model]`.
    """

    reads: Reads
    linear: bool = False
    main: Tensor | None = None
    along: list[Tensor] = field(default_factory=list)
    flat: list[Tensor] = field(default_factory=list)
    _constant: Tensor | None = None

    def add(self, found: Pass) -> None:
        """Add the gradients of one pass."""
        gradient = self._units(found.gradients[self.reads.site]) * found.weight
        if self.reads.norm is not None and self.reads.stream is not None:
            flat, scale = self.reads.norm.normalized(found.values[self.reads.stream])
            gradient = gradient * scale.unsqueeze(1)
            if not self.linear:
                # What the model itself read, without biases, saves one more pass of every projection.
                value = self._units(found.values[self.reads.site])
                if self._constant is None:
                    self._constant = value[:1] - self._read(flat[:1])
                self.along.append(((value - self._constant) * gradient).sum(-1) / flat.shape[-1])
                self.flat.append(flat)
        self.main = gradient if self.main is None else self.main + gradient

    def _units(self, x: Tensor) -> Tensor:
        return x if self.reads.weight is not None else x.unsqueeze(1)

    def _read(self, flat: Tensor) -> Tensor:
        """What targets make of a normalized stream, without biases, `[token, unit, width]`."""
        assert self.reads.norm is not None
        gained = (flat * self.reads.norm.gain).unsqueeze(1)
        if self.reads.weight is None:
            return gained
        return torch.einsum("tud,udw->tuw", gained.expand(-1, len(self.reads.weight), -1), self.reads.weight)

    def gradients(self, tokens: slice) -> Tensor:
        """Gradients at the stream that each target reads, `[unit, token, d_model]`."""
        assert self.main is not None
        reads, units = self.reads, self.main[tokens].transpose(0, 1)
        if reads.weight is not None:
            weight = reads.weight if reads.norm is None else reads.norm.readers(reads.weight)
            found = torch.bmm(units, weight.transpose(1, 2))
        elif reads.norm is not None:
            found = units * reads.norm.gain
            found = found - found.mean(-1, keepdim=True) if reads.norm.centered else found
        else:
            return units
        for along, flat in zip(self.along, self.flat):
            found.addcmul_(along[tokens].T.unsqueeze(-1), flat[tokens], value=-1.0)
        return found


@dataclass
class EdgeSums:
    """Adds up edge scores of one sample, pass by pass.

    Args:
        sample: the examples.
        changes: per group of sources, `[token, unit, width]`; None leaves a group out.
        per_input: keep examples apart.
        linear: norms count as linear, with a constant scale.

    Attributes:
        total: `[example, source, target]`, one example where they are not kept apart.
    """

    sample: Sample
    changes: Sequence[Tensor | None]
    per_input: bool
    linear: bool = False
    total: Tensor = field(init=False)
    pulls: list[Pull] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        graph = self.sample.wiring.graph
        rows = self.sample.batch.rows if self.per_input else 1
        given = next(c for c in self.changes if c is not None)
        self.total = torch.zeros(rows, *graph.shape, dtype=given.dtype, device=given.device)

    def add(self, found: Pass) -> None:
        """Add one pass."""
        wiring = self.sample.wiring
        if not self.pulls:
            self.pulls = [Pull(reads, self.linear) for reads in wiring.reads if reads.site in found.gradients]
        for pull in self.pulls:
            pull.add(found)
        if not wiring.graph.additive:
            # Norms on the way differ from pass to pass, and so does what a change becomes behind them.
            self.multiply(found.values)

    def multiply(self, values: Mapping[Site, Tensor] | None = None) -> None:
        """Multiply what was added since the last time.

        Args:
            values: the streams at the norms on the way; None where there are none.
        """
        pulls = {pull.reads.group: pull for pull in self.pulls}
        for row, tokens in self._spans():

            def through(norm: Norm, site: Site, by: Tensor, tokens: slice = tokens) -> Tensor:
                assert values is not None
                return norm.change(values[site][tokens], by, self.linear)

            changes = [None if c is None or i in self._apart else c[tokens] for i, c in enumerate(self.changes)]
            late: list[Pull] = []
            for readers, rows, stream in walk(self.sample.wiring, changes, through):
                some = [pulls[reads.group] for reads in readers if reads.group in pulls]
                if self._can_wait(some):
                    late += some
                    continue
                # Targets are multiplied together where possible: one pass over the changes of sources for all.
                self._multiply(self.total[row], rows, stream, [*late, *some], tokens)
                late = []
            self._multiply_units(self.total[row], tokens)
        self.pulls = []

    @cached_property
    def _apart(self) -> list[int]:
        """Groups of sources that are multiplied alone: units, unless norms on the way must see them, too."""
        wiring = self.sample.wiring
        given = [i for i, c in enumerate(self.changes) if c is not None]
        return [i for i in given if wiring.graph.additive and wiring.writes[i].thin]

    def _multiply_units(self, total: Tensor, tokens: slice) -> None:
        if not self._apart:
            return
        gradients = torch.cat([pull.gradients(tokens) for pull in self.pulls]).flatten(1)
        first = self.pulls[0].reads.group.first
        for i in self._apart:
            writes, change = self.sample.wiring.writes[i], self.changes[i]
            assert change is not None
            # Readers behind a group are the last ones: they are in the order in which they read.
            stop = writes.group.first + writes.group.count
            start = next(pull.reads.group.first for pull in self.pulls if pull.reads.group.after >= stop)
            added = writes.added(change[tokens]).flatten(1)
            total[writes.group.nodes, start:] += added @ gradients[start - first :].T

    def _can_wait(self, pulls: Sequence[Pull]) -> bool:
        """Whether targets can be multiplied with later ones: single ones, where the stream only grows."""
        alone = all(pull.reads.group.count == 1 and pull.reads.group.kind != "logits" for pull in pulls)
        return not pulls or (alone and self.sample.wiring.graph.additive)

    def _multiply(self, total: Tensor, rows: list[int], stream: Tensor, pulls: list[Pull], tokens: slice) -> None:
        gradients = torch.cat([pull.gradients(tokens) for pull in pulls]).flatten(1)
        columns = [j for pull in pulls for j in range(*pull.reads.group.nodes.indices(total.shape[1]))]
        block = torch.tensor(rows)[:, None], torch.tensor(columns)[None, :]
        edges = self.sample.wiring.graph.mask[block].to(stream)
        total[block] += (stream.flatten(1) @ gradients.T) * edges

    def finish(self) -> Tensor:
        """The scores."""
        if self.pulls:
            self.multiply()
        return self.total

    def _spans(self) -> Iterator[tuple[int, slice]]:
        """Chunks of tokens, and the example they are counted for."""
        examples = self.sample.examples
        ends = [0, len(examples)]
        if self.per_input:
            each = torch.bincount(examples, minlength=self.sample.batch.rows)
            ends = [0, *each.cumsum(0).tolist()]
        counts = [0 if c is None else c.shape[1] for c in self.changes]
        sources = sum(n for i, n in enumerate(counts) if i not in self._apart)
        if self._apart:
            sources += max(counts[i] for i in self._apart) + self.total.shape[2]
        d_model = self.sample.clean[0].shape[-1]
        size = max(1, CHUNK_BYTES // (sources * d_model * self.total.element_size()))
        for row, (start, end) in enumerate(pairwise(ends)):
            for first in range(start, end, size):
                yield row, slice(first, min(first + size, end))
