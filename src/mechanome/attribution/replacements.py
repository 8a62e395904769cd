"""What to put in a part's place when it is ablated: the mean over a data set, or another prompt's value.

Zero is a value the rest of the network may never have seen; a mean or another prompt's value stays in its range. A
replacement is a function from a site to a tensor, so it goes where `activation_patching` takes one:

    activation_patching(model, prompts, mean_of(model, pool), "z", metric)

All layers of a point are read when the first is asked for, in pieces that fit the budget, and kept for the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor

from mechanome.core import BadInput, BudgetTooSmall, NotServed
from mechanome.engine import Batch, Model, Site, memory, preflight
from mechanome.engine.asked import opened_model
from mechanome.engine.inputs import Inputs
from mechanome.engine.plain import whole

_OVER_KEYS = ("scores", "pattern", "cross_scores", "cross_pattern")
# More tokens in one forward pass do not make it faster.
_TOKENS_AT_ONCE = 2048


@dataclass
class _Kept:
    """Values by site, for one state of the weights."""

    state: tuple[int, int] = (0, 0)
    values: dict[Site, Tensor] = field(default_factory=dict)

    def missing(self, model: Model, site: Site) -> bool:
        if self.state != model.weights_state():
            self.state, self.values = model.weights_state(), {}
        return site not in self.values


@dataclass(frozen=True)
class Mean:
    """The mean of a site over prompts. Made by `mean_of`.

    Attributes:
        batch: over which prompts.
        by_position: whether each position has a mean of its own.
    """

    model: Model = field(repr=False)
    batch: Batch = field(repr=False)
    by_position: bool = False
    budget: memory.Budget = None
    _kept: _Kept = field(default_factory=_Kept, repr=False, compare=False)

    def __call__(self, site: Site) -> Tensor:
        """The mean `[feature...]`, or `[1, pos, feature...]` by position; float64.

        Raises:
            NotServed: scores or patterns, whose last axis is a prompt's own keys.
        """
        if site.point in _OVER_KEYS:
            raise NotServed(f"a mean of {site}", "its last axis is keys, which differ by prompt", "ablate z instead")
        if self._kept.missing(self.model, site):
            self._read(_same_point(self.model, site))
        return self._kept.values[site]

    def _read(self, sites: Sequence[Site]) -> None:
        sums: dict[Site, Tensor] = {}
        counts: dict[Site, Tensor] = {}
        for _, site, x in _captured(self.model, self.batch, range(self.batch.rows), sites, self.budget):
            sums[site] = _plus(sums.get(site), x.double())
            counts[site] = _plus(counts.get(site), torch.ones(len(x), dtype=torch.float64))
        for site, total in sums.items():
            if self.by_position:
                mean = total / counts[site].reshape(-1, *[1] * (total.dim() - 1))
                self._kept.values[site] = mean[None]
            else:
                self._kept.values[site] = total.sum(0) / counts[site].sum()


@dataclass(frozen=True)
class Resampled:
    """For each example, the values of one other prompt at the same positions. Made by `resample_from`.

    Attributes:
        donors: which prompt each example takes its values from, a row of `batch` per example.
        lengths: tokens of each example.
    """

    model: Model = field(repr=False)
    batch: Batch = field(repr=False)
    donors: tuple[int, ...]
    lengths: tuple[int, ...] = field(repr=False)
    budget: memory.Budget = None
    _kept: _Kept = field(default_factory=_Kept, repr=False, compare=False)

    def __call__(self, site: Site) -> Tensor:
        """The values `[example, pos, feature...]`, in the model's own precision.

        Raises:
            BudgetTooSmall: the values of all examples and layers do not fit.
        """
        if self._kept.missing(self.model, site):
            self._read(_same_point(self.model, site))
        return self._kept.values[site]

    def _read(self, sites: Sequence[Site]) -> None:
        needed = preflight.kept_bytes(self.model, self.batch.take(self.donors), sites, None)
        limit = memory.parse_budget(self.budget)
        if needed > limit:
            raise BudgetTooSmall(
                f"a budget of {memory.show(limit)}",
                f"the values of {len(self.donors)} examples in {len(sites)} layers need {memory.show(needed)}",
                "sweep fewer examples at a time, or raise budget=",
            )
        for row, site, x in _captured(self.model, self.batch, sorted(set(self.donors)), sites, self.budget):
            if site not in self._kept.values:
                width = max(self.lengths) or len(x)
                self._kept.values[site] = x.new_zeros(len(self.donors), width, *x.shape[1:])
            for example in (i for i, donor in enumerate(self.donors) if donor == row):
                n = self.lengths[example] or len(x)
                self._kept.values[site][example, :n] = x[:n]


def mean_of(model: Model, inputs: Inputs, *, by_position: bool = False, budget: memory.Budget = None) -> Mean:
    """The mean of each site over prompts, for mean ablation.

    Args:
        model: whose activations are averaged.
        inputs: the prompts; every real token counts once, padding not at all.
        by_position: one mean for each position, over the prompts that have it. The first position is often a sink
            with activations like no other's, which a mean over all positions mixes into the rest.
        budget: memory for what is captured at once.

    Raises:
        BadInput: no prompt, or a model that was not opened.
    """
    opened_model(model)
    return Mean(model, model.encode(inputs), by_position, budget)


def resample_from(
    model: Model, inputs: Inputs, seed: int = 0, *, examples: Inputs | None = None, budget: memory.Budget = None
) -> Resampled:
    """Another prompt's values for each example, for resample ablation.

    An example takes all its values from one prompt of at least as many tokens, drawn at random, never from the
    same tokens.

    Args:
        model: whose activations are taken.
        inputs: the prompts to take values from.
        seed: of the draw.
        examples: what is swept, in the same order; None where it is `inputs` themselves.
        budget: memory for the values of all examples and layers of one point.

    Raises:
        BadInput: an example for which there is no such prompt, or a seed that is no whole number.
    """
    opened_model(model)
    if whole(seed) is None:
        raise BadInput(f"seed={seed!r}", "it is not a whole number", "use seed=0")
    pool = model.encode(inputs)
    swept = pool if examples is None else model.encode(examples)
    frames = [(f, model.frames(pool)[tower]) for tower, f in model.frames(swept).items()]
    random, donors = Random(int(seed)), []
    for i in range(swept.rows):
        able = [
            row
            for row in range(pool.rows)
            if (examples is not None or row != i)
            and not (swept.tokens and pool.tokens and swept.tokens[i] == pool.tokens[row])
            and all(theirs.lengths[row] >= own.lengths[i] for own, theirs in frames)
        ]
        if not able:
            raise BadInput(
                f"example {i} of {swept.frame.lengths[i]} tokens",
                "there is no other prompt of at least as many tokens to take values from",
                "give more prompts, or prompts of equal token length",
            )
        donors.append(random.choice(able))
    return Resampled(model, pool, tuple(donors), swept.frame.lengths, budget)


def _same_point(model: Model, site: Site) -> list[Site]:
    """The site, and what the model serves of the same point in its other layers."""
    return [s for s in model.sites if (s.point, s.tower) == (site.point, site.tower)] or [site]


def _captured(
    model: Model, batch: Batch, rows: Sequence[int], sites: Sequence[Site], budget: memory.Budget
) -> Iterator[tuple[int, Site, Tensor]]:
    """Row, site and values `[pos, feature...]` of real tokens on the CPU, few rows and sites at a time."""
    limit = memory.parse_budget(budget)
    each = preflight.kept_bytes(model, batch.take([0]), sites[:1], None)
    group = memory.pieces(len(sites), each, limit, "row of a site")
    size = memory.pieces(max(1, _TOKENS_AT_ONCE // max(batch.frame.width, 1)), each * group, limit, "row")
    for some in (sites[i : i + group] for i in range(0, len(sites), group)):
        for part in (rows[i : i + size] for i in range(0, len(rows), size)):
            run = model.run(batch.take(part), capture=some, logits=False, to="cpu")
            for site in run.sites:
                values, frame = run.source(site)
                for i, row in enumerate(part):
                    yield row, site, values[i, frame.starts[i] : frame.starts[i] + frame.lengths[i]]


def _plus(total: Tensor | None, x: Tensor) -> Tensor:
    """Sums along the first axis, where either may be the longer."""
    if total is None or len(total) < len(x):
        grown = x.new_zeros(len(x), *x.shape[1:])
        if total is not None:
            grown[: len(total)] = total
        total = grown
    total[: len(x)] += x
    return total
