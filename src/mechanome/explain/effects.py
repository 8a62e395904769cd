"""Exact effects: put the prompt's activations into the counterfactual's run, one place at a time, and see what returns.

Each effect is a share of the gap between the two runs: 0 means that the place alone changes nothing, 1 that it alone
brings the whole preference for the answer back. All are measured with `activation_patching`; where a long prompt has
more places than can be measured in a minute, a gradient estimate chooses which ones are, and the others stay unmeasured
(NaN), never estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.engine import Model, activation_patching
from mechanome.engine.memory import Budget
from mechanome.explain.question import Question

TOKENS = 5000
"""A sweep measures all places if that runs at most this many tokens, else the likeliest ones."""
FEWEST_LAYERS = 6
FEWEST_POSITIONS = 4


@dataclass(frozen=True)
class Grid:
    """Shares of the gap that places bring back.

    Args:
        point: what was patched: `resid_pre`, `z`, `mlp_out`, `mixer_out`.
        axis: what the columns are: "pos", "head" or "layer" (one column: the whole layer, at all positions).
        layers: of the rows.
        shares: `[layer, column]`; NaN where not measured.
        method: how the sweep ran, "wavefront" or "naive"; equal numbers.
        notes: what was left out, and why the plain loop was taken.
    """

    point: str
    axis: str
    layers: tuple[int, ...]
    shares: Tensor = field(repr=False)
    method: str
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every place was measured."""
        return not bool(self.shares.isnan().any())


def flow(model: Model, question: Question, budget: Budget = None, quiet: bool = False) -> Grid:
    """The residual stream at each layer and position: which position carries the answer, where in the depth.

    Raises:
        NotServed: a model whose residual stream cannot be patched.
    """
    n, depth = question.length, model.n_layers
    first = question.differing[0]
    positions, layers, notes = list(range(first, n)), list(range(depth)), []
    costs = {p: (n - p) / 2 for p in positions}  # a sweep runs half the layers on average, and no position before p
    if depth * sum(costs.values()) > TOKENS:
        layers = layers[:: max(1, depth // FEWEST_LAYERS)]
        scores = _estimate(model, question, "resid_pre").abs().amax(0)
        order = sorted(positions, key=lambda p: (p not in (first, n - 1), -float(scores[p])))
        positions = sorted(_affordable(order, {p: len(layers) * c for p, c in costs.items()}, FEWEST_POSITIONS, TOKENS))
        notes.append(
            f"a long prompt: the residual stream is measured at {len(positions)} of {n - first} positions and "
            f"{len(layers)} of {depth} layers, chosen by a gradient estimate"
        )
    sweep = _sweep(model, question, "resid_pre", "pos", layers, positions, budget, quiet)
    shares = torch.full((len(layers), n), float("nan"))
    shares[:, :first] = 0.0  # before the first difference both runs are the same
    shares[:, positions] = sweep.shares
    return Grid("resid_pre", "pos", tuple(layers), shares, sweep.method, (*notes, *sweep.notes))


def having(model: Model, point: str) -> list[int]:
    """The layers that have a point which can be patched."""
    return [layer for layer in range(model.n_layers) if model.why_not_edit(f"{point}.{layer}") is None]


def parts(
    model: Model,
    question: Question,
    point: str,
    axis: str,
    budget: Budget = None,
    quiet: bool = False,
    tokens: int | None = None,
) -> Grid:
    """Every part of one kind, at all positions.

    Args:
        model: an opened model.
        question: what is explained.
        point: the output of the parts: `z`, `mlp_out` or `mixer_out`; some layer must have it.
        axis: "head", or "layer" for one part a layer.
        budget: memory for the largest piece.
        quiet: no progress line.
        tokens: all parts are measured if that runs at most this many, else the likeliest layers; None for `TOKENS`.
    """
    most = TOKENS if tokens is None else tokens
    every = having(model, point)
    layers, notes = every, list[str]()
    columns = _columns(model, point, every[0]) if axis == "head" else 1
    cost = columns * (question.length - question.differing[0]) / 2
    if cost * len(every) > most:
        estimate = _estimate(model, question, point, every).sum(1).reshape(len(every), -1)
        strength = dict(zip(every, estimate.abs().amax(-1).tolist()))
        order = sorted(every, key=lambda layer: -strength[layer])
        layers = sorted(_affordable(order, dict.fromkeys(every, cost), FEWEST_LAYERS, most))
        notes.append(
            f"a long prompt: {point} is measured in {len(layers)} of {len(every)} layers, chosen by a gradient estimate"
        )
    found = _sweep(model, question, point, axis, layers, None, budget, quiet)
    shares = torch.full((len(every), columns), float("nan"))
    shares[[every.index(layer) for layer in layers]] = found.shares
    return Grid(point, axis, tuple(every), shares, found.method, (*notes, *found.notes))


def _sweep(
    model: Model,
    question: Question,
    point: str,
    axis: str,
    layers: Sequence[int],
    positions: Sequence[int] | None,
    budget: Budget,
    quiet: bool,
) -> Grid:
    found = activation_patching(
        model,
        question.clean,
        question.corrupted,
        point,
        question.metric,
        over=axis,  # type: ignore[arg-type]
        layers=layers,
        pos=positions,
        budget=budget,
        quiet=quiet,
    )
    return Grid(point, axis, tuple(layers), found.normalized()[0].float().cpu(), found.method, found.notes)


def _columns(model: Model, point: str, layer: int) -> int:
    return model.run([[0]], capture=[f"{point}.{layer}"], logits=False)[f"{point}.{layer}"].shape[2]


def _affordable(order: Sequence[int], cost: dict[int, float], fewest: int, most: float) -> list[int]:
    """The first of `order` that together run at most `most` tokens, and in any case `fewest`."""
    chosen, spent = list[int](), 0.0
    for item in order:
        spent += cost[item]
        if spent > most and len(chosen) >= fewest:
            break
        chosen.append(item)
    return chosen


def _estimate(model: Model, question: Question, point: str, layers: Sequence[int] | None = None) -> Tensor:
    """First-order effect of each place, gradient times difference: `[layer, pos]` or `[layer, pos, head]`."""
    chosen = range(model.n_layers) if layers is None else layers
    sites = [f"{point}.{layer}" for layer in chosen]
    gradients = model.grad(question.metric, question.corrupted, sites)
    clean = model.run(question.clean, capture=sites, logits=False)
    corrupted = model.run(question.corrupted, capture=sites, logits=False)
    change = [(gradients[s] * (clean[s] - corrupted[s])).sum(-1)[0].float().cpu() for s in sites]
    return torch.stack(change)
