"""What each target reads in a circuit's run, as a change of the run in which every source is patched.

In a circuit's run a target reads `sum over sources of m * value in this run + (1 - m) * patched value`, each target its
own sum. Against the base, the run in which every source carries its patched value, this is a change: the sum of
`m * (value - patched value)`. Changes are linear in the stream; a norm on the way is applied to each target's own
stream. Biases and positions are part of the base, so no edge carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mechanome.circuits.norms import Norm
from mechanome.circuits.phases import Phase, phases
from mechanome.circuits.samples import Sample, take_last
from mechanome.circuits.wiring import Reads, Turns, Wiring
from mechanome.core import NotServed
from mechanome.engine import Batch, Site
from mechanome.engine.operations import Capture
from mechanome.engine.plan import activate
from mechanome.engine.resume import install
from mechanome.engine.run import build_plan, execute
from mechanome.engine.taps import logits_of


def applied(norm: Norm, x: Tensor) -> Tensor:
    """What the norm's module makes of `x [..., d_model]`, differentiable and without taps."""
    weight = next(norm.part.module.parameters())
    with activate(None):
        return norm.part.module(x.to(weight.dtype)).to(x.dtype)


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qkv")
_WATCHED = ("block", "attention", *PROJECTIONS)


class Seen(NamedTuple):
    """One call of a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@dataclass(frozen=True, eq=False)
class Base:
    """The run in which every source of some examples carries its patched value.

    Args:
        sample: the examples, and the tokens of them that can matter.
        values: per site of targets and of norms on the way, `[batch, pos, ...]`.
        logits: at the last token, `[batch, vocab]`: those of the empty circuit.
        pooled: whether the logits are one set for all tokens, and not read at the last one.
        seen: by role and layer, what a block was called with, and what it and its parts returned.
        folded: per group of targets, its weights with the norm's gain folded in; shared by the bases of a wiring.
    """

    sample: Sample
    values: dict[Site, Tensor] = field(repr=False)
    logits: Tensor = field(repr=False)
    pooled: bool
    seen: Mapping[tuple[str, int], Seen] = field(repr=False)
    folded: dict[Reads, Tensor] = field(repr=False)

    @classmethod
    def of(cls, sample: Sample, folded: dict[Reads, Tensor]) -> Base:
        """Run the model on examples with every source patched.

        Args:
            sample: the examples. folded: of an earlier base of the same wiring, or empty.

        Raises:
            NotServed: a model without logits.
        """
        wiring, model = sample.wiring, sample.wiring.model
        edits = wiring.edits(sample.patched)
        sites = dict.fromkeys([*wiring.streams, *(reads.site for reads in wiring.reads)])
        captures = [Capture(site, copy=site.whole in model.volatile) for site in sites]
        plan = build_plan(model, captures, edits)
        seen: dict[tuple[str, int], Seen] = {}
        for layer, block in enumerate(model.architecture.tower(wiring.graph.tower).blocks):
            for role, part in {"block": block.part, **block.roles}.items():
                if role in _WATCHED:
                    install(part.module)
                    plan.blocks[part.module] = _Watch((role, layer), seen)
        with torch.no_grad():
            output = execute(model, sample.batch, plan, **fewest_logits(wiring, sample.batch))
        values = {c.site: c.values[0] for c in captures}
        logits = logits_of(output)
        pooled = logits is not None and logits.dim() == 2
        return cls(sample, values, last_logits(output, sample.batch), pooled, seen, folded)

    @property
    def wiring(self) -> Wiring:
        """The wiring of the graph."""
        return self.sample.wiring

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Where targets read, in order."""
        return phases(self.wiring)

    @cached_property
    def readers(self) -> dict[Reads, Any]:
        """What `mechanome.circuits.reading` knows of each group of targets here."""
        return {}

    @cached_property
    def n_tokens(self) -> int:
        """How many tokens can matter."""
        return int(self.sample.keep.sum())

    @property
    def d_model(self) -> int:
        """Width of the stream."""
        return self.sample.clean[0].shape[-1]

    @cached_property
    def last(self) -> Tensor:
        """The last token of each example, by number among the tokens that matter, `[batch]`."""
        return self.sample.keep.sum(1).cumsum(0) - 1

    @cached_property
    def _whole(self) -> bool:
        return bool(self.sample.keep.all())

    def flat(self, site: Site) -> Tensor:
        """A value at the tokens that matter, `[token, ...]`."""
        if site not in self._flat:
            self._flat[site] = self.sample.flat(self.values[site])
        return self._flat[site]

    @cached_property
    def _flat(self) -> dict[Site, Tensor]:
        return {}

    @cached_property
    def patched(self) -> list[Tensor]:
        """Per group of sources, the patched values at the tokens that matter, `[token, unit, width]`."""
        return [self.sample.flat(v) for v in self.sample.patched]

    def gather(self, x: Tensor, circuits: int) -> Tensor:
        """A tensor of a pass `[circuit * batch, pos, ...]` at the tokens that matter, `[circuit, token, ...]`."""
        x = x.unflatten(0, (circuits, -1)).to(self.wiring.dtype)
        return x.flatten(1, 2) if self._whole else x[:, self.sample.keep]

    def scatter(self, site: Site, new: Tensor) -> Tensor:
        """The base's value at a site with the tokens that matter replaced.

        Args:
            site: where. new: `[circuit, token, ...]`.

        Returns:
            `[circuit * batch, pos, ...]`.
        """
        base = self.values[site]
        new = new.to(base.dtype)
        if self._whole:
            return new.reshape(-1, *base.shape[1:])
        whole = base.expand(len(new), *base.shape).clone()
        whole[:, self.sample.keep] = new
        return whole.flatten(0, 1)

    def through(self, norm: Norm, site: Site, by: Tensor) -> Tensor:
        """What a change `[..., token, d_model]` of a norm's input becomes behind it; the input is at `site`."""
        x = self.flat(site)
        return applied(norm, x + by) - applied(norm, x)

    def change(self, phase: Phase, spans: Callable[[int, int], Tensor]) -> Tensor:
        """The changes of streams when the targets of a phase read.

        Args:
            phase: which targets.
            spans: for consecutive sources, by first and last: the sum of what they change, `[..., token, d_model]`.

        Returns:
            as `spans` returns.
        """
        total: Tensor | None = None
        for step in phase.steps:
            if isinstance(step, Turns):
                assert total is not None
                total = self.through(step.norm, step.site, total)
                continue
            part = spans(step.start, step.stop)
            if step.norm is not None and step.into is not None:
                part = self.through(step.norm, step.into, part)
            total = part if total is None else total + part
        assert total is not None
        return total


@dataclass(frozen=True)
class _Watch:
    """In place of a module's forward: run it, and keep what went in and came out."""

    key: tuple[str, int]
    seen: dict[tuple[str, int], Seen]

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = original(*args, **kwargs)
        self.seen[self.key] = Seen(args, kwargs, output)
        return output


def fewest_logits(wiring: Wiring, batch: Batch) -> dict[str, Any]:
    """The argument that limits logits to what is needed to read each row's last token."""
    frame = batch.frame
    if not frame.width:
        return {}
    ends = [start + length for start, length in zip(frame.starts, frame.lengths)]
    return wiring.model.keep_logits(frame.width - min(ends) + 1)


def last_logits(output: Any, batch: Batch) -> Tensor:
    """Logits at the last token of each row of what a model returned, `[row, vocab]`.

    Raises:
        NotServed: a model without logits.
    """
    logits = logits_of(output)
    if logits is None:
        raise NotServed("a circuit's logits", "this model has none", "open a model with a head")
    return take_last(logits, batch)


def repeated(batch: Batch, times: int) -> Batch:
    """All rows of a batch, several times over: `[times * row]`."""
    return batch if times == 1 else batch.take(list(range(batch.rows)) * times)
