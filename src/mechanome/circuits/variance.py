"""Where the variance of circuit scores comes from: inputs, approximation, sampling, method, and the cut to a set.

A method's score of component c on input x is `IE_c(x) + b_c + e_c(x)`: the exact effect, a bias, an error (paper 40,
section 3.5). For a random sample of n inputs and a random one of the methods, the mean squared distance of a score from
the exact effect over all inputs is then a sum, and each term is known from scores per input, without resampling:

| part | of each component |
|---|---|
| intrinsic | `Var_x IE / n`: what sampling costs the exact effect |
| error | mean over methods of `Var_x e / n` |
| covariance | mean over methods of `2 Cov_x(IE, e) / n`; below 0 where approximations shrink effects |
| method | variance over methods of `b`: the choice of a method |
| bias | square of the mean `b` |

Resampling then measures the total itself, so that the sum can be checked, and a two-way analysis of variance over
(sample x method) with components as repeated units says how much is due to samples, to methods, and to both together.
The cut to the k largest is judged by simulation: vectors are drawn from N(mean, cov / n), cut, and compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.effects import Effects
from mechanome.circuits.resampling import Resamples
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.selecting import By, Select
from mechanome.circuits.similarity import jaccard, weighted_jaccard
from mechanome.core import BadInput, NotFinite, Table, TooFewRows
from mechanome.engine.asked import count, seeded_generator

PARTS = ("intrinsic", "error", "covariance", "method", "bias")
"""What the total is the sum of."""

_CELLS = 2**24
"""How many scores of samples and methods are held at once."""
_PAIRS = 2000
"""Pairs of simulated vectors that are compared whole."""


@dataclass(frozen=True)
class Approximation:
    """One method beside the exact effects.

    Args:
        bias: root mean square over components of `b`, in units of the metric.
        error: square root of the mean over components of `Var_x e`.
        pearson: correlation over components of mean scores with mean exact effects; NaN where one does not vary.
        per_input: the same on single inputs, mean over inputs.
    """

    bias: float
    error: float
    pearson: float
    per_input: float


@dataclass(frozen=True)
class Structural:
    """What the cut to the k largest costs, under the noise of n inputs.

    Args:
        size: k.
        simulated: mean Jaccard index of the k largest of two vectors from N(mean, cov / n).
        measured: of two bootstrap samples.
        whole: weighted Jaccard index of the two simulated vectors, uncut.
    """

    size: int
    simulated: float
    measured: float
    whole: float

    @property
    def noise(self) -> float:
        """Loss before the cut: 1 - the weighted Jaccard index of whole vectors."""
        return 1 - self.whole

    @property
    def cut(self) -> float:
        """What the cut adds to it; below 0 where the largest components are the stable ones."""
        return self.whole - self.simulated

    @property
    def rest(self) -> float:
        """What is measured beyond the simulation: effects of single inputs that are not normal."""
        return self.simulated - self.measured


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The variance of scores, by where it comes from.

    Args:
        n: inputs of a sample. inputs: how many there are. samples: how many were drawn.
        methods: names.
        intrinsic: mean over components of `Var_x IE`, of one input.
        parts: name of `PARTS` to its term, mean over components, in squared units of the metric.
        total: the same quantity measured over samples and methods.
        anova: "sampling", "method", "interaction": their shares of the variance over (sample x method).
        sampling: variance over samples of the exact effects, mean over components; near `intrinsic / n`.
        approximations: per method.
        structural: per circuit size.
    """

    n: int
    inputs: int
    samples: int
    methods: tuple[str, ...]
    intrinsic: float
    parts: Mapping[str, float]
    total: float
    anova: Mapping[str, float]
    sampling: float
    approximations: Mapping[str, Approximation] = field(repr=False)
    structural: tuple[Structural, ...] = field(repr=False)

    @property
    def explained(self) -> float:
        """Sum of the parts over the total that was measured; 1 but for the noise of finitely many samples."""
        return sum(self.parts.values()) / self.total

    def table(self) -> Table:
        """The parts, their share of the measured total, and the two-way analysis of variance."""
        rows: list[tuple[str, float | None, float]] = []
        rows += [(f"part: {name}", value, value / self.total) for name, value in self.parts.items()]
        rows += [("sum of the parts", sum(self.parts.values()), self.explained), ("total, measured", self.total, 1.0)]
        rows += [(f"analysis of variance: {name}", None, share) for name, share in self.anova.items()]
        return Table(["source", "mean square", "share"], rows, repr(self))

    def structural_table(self) -> Table:
        """The cut, at every circuit size."""
        columns = ["size", "Jaccard, simulated", "Jaccard, measured", "loss by noise", "by the cut", "by the rest"]
        rows = [(s.size, s.simulated, s.measured, s.noise, s.cut, s.rest) for s in self.structural]
        return Table(columns, rows, "What the cut to the k largest costs")

    def approximation_table(self) -> Table:
        """Every method beside the exact effects."""
        columns = ["method", "bias (rms)", "error (sd)", "Pearson of means", "Pearson per input"]
        rows = [(name, a.bias, a.error, a.pearson, a.per_input) for name, a in self.approximations.items()]
        return Table(columns, rows, "Methods beside the exact effects")

    def record(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "n": self.n,
            "inputs": self.inputs,
            "samples": self.samples,
            "methods": list(self.methods),
            "intrinsic": self.intrinsic,
            "sampling": self.sampling,
            "parts": dict(self.parts),
            "total": self.total,
            "explained": self.explained,
            "anova": dict(self.anova),
            "approximations": self.approximation_table().records(),
            "structural": self.structural_table().records(),
        }

    def __repr__(self) -> str:
        return f"Variance of scores from {self.n} of {self.inputs} inputs by one of {len(self.methods)} methods"

    def _repr_html_(self) -> str:
        return self.table().html()


def variance_decomposition(
    exact: Scores | Tensor | Effects,
    methods: Mapping[str, Scores | Tensor | Effects],
    n: int | None = None,
    *,
    sizes: Iterable[int] = (),
    by: By = "absolute",
    samples: int = 1000,
    seed: int = 0,
) -> Decomposition:
    """Split the variance of mean scores by where it comes from.

    Args:
        exact: exact effects per input, `[input, component]`.
        methods: scores per input of the same components on the same inputs, in the same units, by name: other ways to
            score, other interventions; the exact one may be among them.
        n: inputs of a sample; None for as many as there are.
        sizes: circuit sizes at which the cut is judged.
        by: what circuits are ranked by; see `Select`.
        samples: bootstrap samples, and simulated vectors.
        seed: of both.

    Returns:
        a `Decomposition`; variances over inputs divide by their number, because samples are drawn from these inputs.

    Raises:
        TooFewRows: a single input. BadInput: no method, sizes that leave nothing out.
        ShapeMismatch: scores of other components or inputs. NotFinite: all scores are equal, so nothing varies.
    """
    truth = Effects.of(exact)
    if truth.inputs < 2:
        raise TooFewRows("a decomposition of variance", "one input shows none", "score at least two")
    if not methods:
        raise BadInput("methods", "there are none", "give scores by name, such as {'eap': scores(...)}")
    found = {name: truth.matching(scores, f"method '{name}'").values.double() for name, scores in methods.items()}
    n = truth.inputs if n is None else count("n", n)
    again = Resamples.of(truth.inputs, n, samples, "bootstrap", seed)
    x = truth.values.double()
    stacked = torch.stack(list(found.values()))
    total, anova = _measured(again, stacked, x.mean(0))
    if not total > 0:
        raise NotFinite("the shares of variance", "all scores are equal, so nothing varies", "check the scores")
    rules = [Select(count("size", size), by) for size in sizes]
    return Decomposition(
        n,
        truth.inputs,
        samples,
        tuple(found),
        float(x.var(0, correction=0).mean()),
        _parts(x, stacked, n),
        total,
        anova,
        float(again.estimates(x).var(0, correction=0).mean()),
        {name: _approximation(x, s) for name, s in found.items()},
        tuple(_structural(truth, again, rule, seed) for rule in rules),
    )


def _parts(x: Tensor, methods: Tensor, n: int) -> dict[str, float]:
    """The terms, from exact effects `[input, component]` and scores `[method, input, component]`."""
    off = methods - x
    bias = off.mean(1)
    error = off - bias[:, None]
    centered = x - x.mean(0)
    terms = (
        centered.square().mean(0) / n,
        error.square().mean((0, 1)) / n,
        2 * (error * centered).mean((0, 1)) / n,
        bias.var(0, correction=0),
        bias.mean(0).square(),
    )
    return {name: float(term.mean()) for name, term in zip(PARTS, terms)}


def _measured(again: Resamples, methods: Tensor, target: Tensor) -> tuple[float, dict[str, float]]:
    """The total, and the shares of samples, methods and both, from scores `[method, input, component]`."""
    width = max(1, _CELLS // (len(again.rows) * len(methods)))
    total, squares = 0.0, dict.fromkeys(("sampling", "method", "interaction"), 0.0)
    for first in range(0, methods.shape[2], width):
        part = slice(first, first + width)
        y = torch.stack([again.estimates(scores[:, part]) for scores in methods], 1)  # sample method component
        total += float((y - target[part]).square().mean((0, 1)).sum())
        grand = y.mean((0, 1))
        by_sample, by_method = y.mean(1) - grand, y.mean(0) - grand
        rest = y - grand - by_sample[:, None] - by_method
        for name, value in zip(
            squares, (by_sample.square().mean(0), by_method.square().mean(0), rest.square().mean((0, 1)))
        ):
            squares[name] += float(value.sum())
    whole = sum(squares.values())
    return total / methods.shape[2], {name: value / whole if whole > 0 else 0.0 for name, value in squares.items()}


def _approximation(x: Tensor, scores: Tensor) -> Approximation:
    off = scores - x
    per_input = torch.stack([_pearson(a, b) for a, b in zip(x, scores)])
    return Approximation(
        float(off.mean(0).square().mean().sqrt()),
        float(off.var(0, correction=0).mean().sqrt()),
        float(_pearson(x.mean(0), scores.mean(0))),
        float(per_input.mean()),
    )


def _pearson(a: Tensor, b: Tensor) -> Tensor:
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()


def simulated(effects: Scores | Tensor | Effects, n: int, samples: int = 1000, seed: int = 0) -> Tensor:
    """Mean scores that samples of n inputs would have if they were normal: draws from N(mean, cov / n).

    Args:
        effects: scores per input, whose mean and covariance (dividing by the number of inputs) are taken.
        n: inputs of a sample. samples: how many draws. seed: of the draws.

    Returns:
        `[sample, component]` float64. The covariance of more components than inputs has no full rank, and is never
        formed: a normal mixture of the centered inputs has it.
    """
    x = Effects.of(effects).values.double()
    generator = seeded_generator(seed)
    mixture = torch.randn(samples, len(x), generator=generator, dtype=torch.float64)
    return x.mean(0) + mixture @ (x - x.mean(0)) / (n * len(x)) ** 0.5


def _structural(truth: Effects, again: Resamples, rule: Select, seed: int) -> Structural:
    assert rule.size is not None
    drawn = simulated(truth, again.n, len(again.rows), seed)
    estimates = again.estimates(truth.values)
    cut, observed = (jaccard(rule.sets(scores, truth.components), again.pairs) for scores in (drawn, estimates))
    whole = weighted_jaccard(drawn, again.some_pairs(_PAIRS))
    return Structural(rule.size, float(cut.mean()), float(observed.mean()), float(whole.mean()))
