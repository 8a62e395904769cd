"""Resamples: which inputs a score is estimated from when the experiment is repeated, and what moves with them.

`bootstrap` draws inputs with replacement: what would happen with other inputs of the same kind, judged by these.
`fresh` draws pairs of samples that share no input: what would happen with another sample, seen directly; it needs twice
as many inputs as a sample has.

A number made of many resamples (a mean similarity of circuits, say) gets its interval by the jackknife after the
bootstrap (Efron 1992): the resamples that happen to lack an input say what the number were without it, so nothing is
drawn again. The noise of finitely many resamples is part of it, so intervals are conservative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from scipy.special import ndtri
from torch import Tensor

from mechanome.core import BadInput, Interval, TooFewRows
from mechanome.engine.asked import count, one_of, seeded_generator

Draw = Literal["bootstrap", "fresh"]
Aggregate = Literal["mean", "median", "absolute"]

_CELLS = 2**24
"""How many numbers are gathered at once."""


AGGREGATES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "mean": lambda x: x,
    "absolute": lambda x: x.abs(),
    "median": None,
}
"""How the scores of inputs become one: the mean of this of each, or (None) the median."""


@dataclass(frozen=True, eq=False)
class Resamples:
    """Samples of inputs.

    Args:
        rows: which inputs each sample holds, `[sample, n]`.
        inputs: how many there are.
        draw: how samples were drawn.
    """

    rows: Tensor = field(repr=False)
    inputs: int
    draw: Draw = "bootstrap"

    @classmethod
    def of(
        cls, inputs: int, n: int | None = None, samples: int = 200, draw: Draw = "bootstrap", seed: int = 0
    ) -> Resamples:
        """Draw samples.

        Args:
            inputs: how many there are.
            n: inputs of a sample; None takes as many as there are, for `fresh` a third of them: with half, no pair
                would lack an input, and no interval over inputs would exist.
            samples: how many samples; an even number for `fresh`.
            draw: "bootstrap" or "fresh".
            seed: of the draw.

        Raises:
            TooFewRows: one input, or fewer than two fresh samples need. BadInput: another draw, counts below 1.
        """
        one_of("draw", draw, ("bootstrap", "fresh"))
        if inputs < 2:
            raise TooFewRows(f"samples of {inputs} inputs", "one input shows no variation", "score at least two")
        n = (inputs if draw == "bootstrap" else max(1, inputs // 3)) if n is None else count("n", n)
        if draw == "fresh" and 2 * n > inputs:
            why = f"fresh samples of {n} need {2 * n} inputs, as no two share one"
            raise TooFewRows(f"{inputs} inputs", why, "score more inputs, or draw='bootstrap'")
        if count("samples", samples) < 2 or (draw == "fresh" and samples % 2):
            raise BadInput(f"{samples} samples", "they are compared in pairs", "draw an even number of them")
        generator = seeded_generator(seed)
        if draw == "bootstrap":
            return cls(torch.randint(inputs, (samples, n), generator=generator), inputs, draw)
        order = torch.rand(samples // 2, inputs, generator=generator).argsort(1)
        return cls(order[:, : 2 * n].reshape(samples, n), inputs, draw)

    @property
    def n(self) -> int:
        """Inputs of a sample, repeated ones counted as often as they are drawn."""
        return self.rows.shape[1]

    @cached_property
    def drawn(self) -> Tensor:
        """Which inputs each sample holds, `[sample, input]` of booleans."""
        return torch.zeros(len(self.rows), self.inputs, dtype=torch.bool).scatter_(1, self.rows, True)

    @cached_property
    def pairs(self) -> Tensor:
        """Which samples are compared, `[pair, 2]`: all, or those that share no input."""
        if self.draw == "fresh":
            return torch.arange(len(self.rows)).reshape(-1, 2)
        return torch.combinations(torch.arange(len(self.rows)))

    def some_pairs(self, most: int) -> Tensor:
        """At most so many pairs, `[pair, 2]`, every sample in about as many."""
        if len(self.pairs) <= most:
            return self.pairs
        if self.draw == "fresh":
            return self.pairs[:most]
        first, total = torch.arange(most), len(self.rows)
        # Round after round, each sample meets one that is further away.
        return torch.stack([first % total, (first + 1 + first // total) % total], 1)

    def estimates(self, values: Tensor, aggregate: Aggregate = "mean") -> Tensor:
        """Scores estimated from each sample.

        Args:
            values: `[input, component]`.
            aggregate: a name of `AGGREGATES`.

        Returns:
            `[sample, component]`, in the precision of `values`, summed in float64.
        """
        one_of("aggregate", aggregate, AGGREGATES)
        size = AGGREGATES[aggregate]
        if size is None:
            pieces = self.rows.split(_fit(values.shape[1] * self.n))
            return torch.cat([_median(values[piece].double()).to(values) for piece in pieces])
        given = size(values).double()
        weights = torch.zeros(len(self.rows), self.inputs, dtype=torch.float64)
        weights.scatter_add_(1, self.rows, torch.full(self.rows.shape, 1 / self.n, dtype=torch.float64))
        return torch.cat([(piece @ given).to(values) for piece in weights.split(_fit(values.shape[1]))])

    def over_samples(self, values: Tensor, which: Tensor | None = None, level: float = 0.95) -> Interval:
        """The mean of a number of each sample `[sample]` (or of some, `which [sample]`), with its interval."""
        members = self.drawn if which is None else self.drawn[which]
        return jackknifed(values, members, level)

    def over_pairs(self, values: Tensor, pairs: Tensor | None = None, level: float = 0.95) -> Interval:
        """The mean of a number of each pair of samples `[pair]`, with its interval.

        Args:
            values: one a pair. pairs: which ones, `[pair, 2]`; None for all.
            level: nominal coverage.
        """
        pairs = self.pairs if pairs is None else pairs
        return jackknifed(values, self.drawn[pairs[:, 0]] | self.drawn[pairs[:, 1]], level)


def left_out(values: Tensor, members: Tensor) -> Tensor:
    """The mean of those values that do not depend on an input, for each input, `[input]`.

    Args:
        values: `[value]`. members: which inputs each depends on, `[value, input]` of booleans.

    Raises:
        TooFewRows: an input that every value depends on.
    """
    without = ~members
    kept = without.sum(0)
    if bool((kept == 0).any()):
        raise TooFewRows(
            f"{len(values)} resampled values",
            f"{int((kept == 0).sum())} of {members.shape[1]} inputs are in all of them, so nothing says what they do",
            "draw more samples, or smaller ones",
        )
    values = values.double()
    return torch.stack([values[column].mean() for column in without.T])


def jackknifed(values: Tensor, members: Tensor, level: float = 0.95) -> Interval:
    """The mean of resampled values with its interval over inputs, by the jackknife after the bootstrap.

    Args:
        values: `[value]`. members: which inputs each depends on, `[value, input]`. level: nominal coverage.
    """
    return from_left_out(float(values.double().mean()), left_out(values, members), level)


def from_left_out(estimate: float, without: Tensor, level: float = 0.95) -> Interval:
    """An interval from a number and what it is without each input.

    Args:
        estimate: the number. without: `[input]`. level: nominal coverage of the normal approximation.

    Raises:
        BadInput: a level outside 0 to 1.
    """
    if not 0 < level < 1:
        raise BadInput("level", f"{level} is not between 0 and 1", "use 0.95")
    n = len(without)
    spread = math.sqrt((n - 1) / n * float((without - without.mean()).square().sum()))
    reach = float(ndtri((1 + level) / 2)) * spread
    return Interval(estimate, estimate - reach, estimate + reach, n, level, "jackknife")


def _median(x: Tensor) -> Tensor:
    """The median over inputs, `[sample, input, component]` to `[sample, component]`; of two middle ones their mean."""
    ordered, n = x.sort(1).values, x.shape[1]
    return (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2


def _fit(width: int) -> int:
    return max(1, _CELLS // max(width, 1))
