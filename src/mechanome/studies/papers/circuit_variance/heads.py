"""Statistics of paper 40 over effects of heads: everything here is a function of numbers `[input, head]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from mechanome.circuits.effects import Effects
from mechanome.circuits.resampling import Resamples, from_left_out, jackknifed, left_out
from mechanome.circuits.selecting import Select
from mechanome.circuits.similarity import jaccard
from mechanome.core import Interval, bootstrap


def median_cv(effects: Tensor, top: int) -> Interval:
    """Median CV over inputs of the heads with the largest |mean|, chosen anew in every resample of inputs."""

    def statistic(rows: np.ndarray) -> float:
        mean = np.abs(rows.mean(0))
        chosen = np.argsort(-mean, kind="stable")[:top]
        return float(np.median(rows[:, chosen].std(0, ddof=1) / mean[chosen]))

    return bootstrap(effects, statistic, resamples=2000)


def sign_consistency(effects: Tensor, top: int) -> Interval:
    """Share of inputs with the sign of the mean, mean over the heads with the largest |mean|."""

    def statistic(rows: np.ndarray) -> float:
        mean = rows.mean(0)
        chosen = np.argsort(-np.abs(mean), kind="stable")[:top]
        return float((np.sign(rows[:, chosen]) == np.sign(mean[chosen])).mean())

    return bootstrap(effects, statistic, resamples=2000)


def single_inputs(effects: Tensor, size: int) -> Interval:
    """Mean Jaccard index of the circuits of two different inputs."""
    pairs = torch.combinations(torch.arange(len(effects)))
    members = torch.zeros(len(pairs), len(effects), dtype=torch.bool).scatter_(1, pairs, True)
    return jackknifed(jaccard(_sets(effects, size), pairs), members)


class Resampled:
    """Circuits of bootstrap samples of n inputs, the same samples for every set of scores.

    Args:
        inputs: how many there are. n: of a sample. samples: how many.
    """

    def __init__(self, inputs: int, n: int, samples: int) -> None:
        self.again = Resamples.of(inputs, n, samples)

    def each(self, effects: Tensor, size: int) -> Tensor:
        """The Jaccard index of each pair of samples, `[pair]`."""
        return jaccard(_sets(self.again.estimates(effects), size), self.again.pairs)

    def mean(self, values: Tensor) -> Interval:
        """The mean over pairs of samples, with its interval over inputs."""
        return self.again.over_pairs(values)

    def without(self, values: Tensor) -> Tensor:
        """That mean without each input, `[input]`."""
        drawn, pairs = self.again.drawn, self.again.pairs
        return left_out(values, drawn[pairs[:, 0]] | drawn[pairs[:, 1]])


def rising(effects: Tensor, size: int, sizes: Sequence[int], samples: int) -> tuple[Interval, list[float]]:
    """Spearman's correlation of the number of inputs with the mean Jaccard index, and the indices."""
    curves = []
    for n in sizes:
        found = Resampled(len(effects), n, samples)
        values = found.each(effects, size)
        curves.append(torch.cat([values.mean()[None], found.without(values)]))
    curve = torch.stack(curves, 1)
    rank = torch.tensor([float(spearmanr(sizes, row).statistic) for row in curve.tolist()], dtype=torch.float64)
    return from_left_out(float(rank[0]), rank[1:]), curve[0].tolist()


def across_templates(effects: Mapping[str, Tensor], size: int, samples: int) -> tuple[Interval, Interval]:
    """Jaccard index of the circuits of two templates, and its difference from that of two samples of one template.

    Across templates, both circuits are from the same bootstrap sample of rows (every template has the same rows of
    nouns); within a template, from two. Samples are as large as there are inputs. Means over templates and samples.
    """
    found = list(effects.values())
    inputs = len(found[0])
    resampled = Resampled(inputs, inputs, samples)
    sets = torch.stack([_sets(resampled.again.estimates(x), size) for x in found])
    within = torch.stack([jaccard(chosen, resampled.again.pairs) for chosen in sets]).mean(0)
    same = torch.arange(samples)
    across = torch.stack(
        [jaccard(torch.cat([sets[a], sets[b]]), torch.stack([same, samples + same], 1))
         for a, b in combinations(range(len(found)), 2)]
    ).mean(0)  # fmt: skip
    without = left_out(across, resampled.again.drawn) - resampled.without(within)
    return resampled.again.over_samples(across), from_left_out(float(across.mean() - within.mean()), without)


def _sets(scores: Tensor, size: int) -> Tensor:
    return Select(size).sets(scores, Effects.of(scores).components)
