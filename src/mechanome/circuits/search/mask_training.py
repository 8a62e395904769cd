"""`train_masks`: masks of any number of circuits, trained at once against any losses.

Each circuit is a matrix of logits `[source, target]`, one row of one tensor, and a gate makes masks of them. A loss
sees a `Moment`: the logits, a way to draw masks from them, and what the model says under masks. Losses take turns: each
draws for itself and has a step of its own, and one that returns None sits this step out. So a term that repels circuits
from each other, or a second objective on what a circuit leaves out, is one more function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from mechanome.circuits.search.gates import Gate
from mechanome.circuits.search.objectives import Said
from mechanome.circuits.search.running import Examples, Runner
from mechanome.core import Parts, Table, fit

_SPREAD = 0.01
"""Standard deviation of logits at the start, so that no two edges begin as one."""


@dataclass(frozen=True, eq=False)
class Moment:
    """What a loss is computed from.

    Args:
        logits: of all circuits, `[circuit, source, target]`.
        allowed: edges that may be open, `[source, target]` of booleans, or of each circuit.
        gate: makes masks of logits.
        runner: has the objective.
        part: the examples of this step.
        progress: how much of the training is done, from 0 up to below 1.
    """

    logits: Tensor
    allowed: Tensor
    gate: Gate
    runner: Runner
    part: Examples
    progress: float

    @cached_property
    def open(self) -> Tensor:
        """The expected number of open edges, `[circuit]`; differentiable."""
        return (self.gate.open(self.logits, self.progress) * self.allowed).sum((1, 2))

    def draw(self) -> Tensor:
        """Masks drawn anew, `[circuit, source, target]`."""
        return self.gate.sample(self.logits, self.progress) * self.allowed

    def said(self, masks: Tensor) -> Said:
        """What the model says under masks `[circuit, source, target]`; differentiable."""
        return self.runner.soft(self.part, masks)

    def cost(self, masks: Tensor) -> Tensor:
        """The objective under masks, mean over the examples of this step, `[circuit]`."""
        return self.runner.cost(self.said(masks)).mean(1)


Loss = Callable[[Moment], Tensor | None]
"""From a moment to a number per circuit, `[circuit]`; None for nothing this time."""


@dataclass(frozen=True, eq=False)
class Training:
    """Masks after training, and how it went.

    Args:
        logits: `[circuit, source, target]`.
        allowed: edges that could be open, `[source, target]` of booleans, or of each circuit.
        losses: of each step, summed over turns, mean over circuits.
        open: expected number of open edges at each step, mean over circuits.
    """

    logits: Tensor = field(repr=False)
    allowed: Tensor = field(repr=False)
    losses: tuple[float, ...] = field(repr=False)
    open: tuple[float, ...] = field(repr=False)

    def edges(self, size: int | None = None) -> Tensor:
        """The circuits, `[circuit, source, target]` of booleans: edges of positive logit, or the `size` largest."""
        if size is None:
            return (self.logits > 0) & self.allowed
        ranks = self.logits.masked_fill(~self.allowed, -torch.inf).flatten(1)
        order = ranks.argsort(dim=1, descending=True, stable=True)[:, :size]
        return torch.zeros_like(ranks, dtype=torch.bool).scatter_(1, order, True).view_as(self.logits)

    def table(self, k: int | None = 20) -> Table:
        """Loss and size over the training, at `k` steps evenly spaced, None for all."""
        steps = range(len(self.losses))
        if k is not None and len(steps) > k:
            steps = range(len(steps) - 1, -1, -max(1, len(steps) // k))[::-1]
        rows = [(i + 1, self.losses[i], self.open[i]) for i in steps]
        return Table(["step", "loss", "expected edges"], rows, repr(self))

    def __repr__(self) -> str:
        kept = self.edges().sum((1, 2)).tolist()
        return f"masks of {len(kept)} circuits after {len(self.losses)} steps, {kept} edges of positive logit"

    def _repr_html_(self) -> str:
        return self.table().html()


class _Logits(nn.Module):
    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(start)


def train_masks(
    runner: Runner,
    gate: Gate,
    losses: Sequence[Loss],
    *,
    circuits: int = 1,
    steps: int = 400,
    rate: float = 0.1,
    start: float | None = None,
    allowed: Tensor | None = None,
    multipliers: nn.Module | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Training:
    """Train masks with Adam.

    Args:
        runner: the examples; each step takes the next part of them.
        gate: makes masks of logits.
        losses: each has a step of its own, in order.
        circuits: how many circuits, rows of every pass.
        steps: how often every loss has its turn.
        rate: learning rate of logits and multipliers.
        start: logits at the start; None for the gate's own.
        allowed: edges that may be open, `[source, target]` of booleans, or `[circuit, source, target]` where circuits
            may use different ones; None for all.
        multipliers: parameters that the losses use, which climb where logits descend.
        seed: of initial logits and all draws.
        quiet: no progress bar.

    Raises:
        NotFinite: a loss that is NaN or infinite.
    """
    allowed = runner.graph.mask if allowed is None else allowed
    shape = (circuits, *runner.graph.shape)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    device = runner.parts[0].own.device
    masks = _Logits(((gate.start if start is None else start) + _SPREAD * drawn).to(device))
    climbing = nn.Module() if multipliers is None else multipliers.to(device)
    groups = [{"params": list(masks.parameters())}]
    if list(climbing.parameters()):
        groups.append({"params": list(climbing.parameters()), "maximize": True})  # type: ignore[dict-item]
    optimizer = torch.optim.Adam(groups, lr=rate)
    curve: list[tuple[float, float]] = []

    def step(done: int) -> dict[str, float]:
        part, total = runner.parts[done % len(runner.parts)], 0.0
        expected = 0.0
        for turn in losses:
            moment = Moment(masks.logits, allowed.to(device), gate, runner, part, done / steps)
            loss = turn(moment)
            if loss is None:
                continue
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
            total += float(loss.detach().mean())
            expected = float(moment.open.detach().mean())
        curve.append((total, expected))
        return {"loss": total, "edges": expected}

    state = Parts(masks=masks, multipliers=climbing, optimizer=optimizer)
    fit(step, state, steps=steps, seed=seed, what="training masks", quiet=quiet)
    losses_seen, expected = zip(*curve)
    return Training(masks.logits.detach().cpu(), allowed.cpu(), losses_seen, expected)
