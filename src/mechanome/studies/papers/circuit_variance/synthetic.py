"""Scores whose answer is known: does resampling find the Jaccard index that their means and variances imply?"""

from __future__ import annotations

import torch

from mechanome.circuits.resampling import Resamples
from mechanome.circuits.selecting import Select
from mechanome.circuits.similarity import jaccard
from mechanome.circuits.stability import bootstrap_circuits
from mechanome.circuits.variation import variation

COMPONENTS = 270
SIZE = 10
INPUTS = 64
DRAWN = 16
LEVELS = (0.5, 1.0, 2.0)
"""Coefficients of variation of every component's effect."""


def known(cv: float, seed: int, samples: int) -> dict[str, float]:
    """One set of inputs whose effects have this coefficient of variation.

    Args:
        cv: of every component. seed: of means and effects. samples: resamples, and independent samples.

    Returns:
        predicted: mean Jaccard index of samples of `DRAWN` inputs from the true distribution; bootstrap, fresh: from
        `INPUTS` inputs; ratio: median estimated over true coefficient of variation.
    """
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(COMPONENTS, generator=generator, dtype=torch.float64)
    sd = cv * mean.abs()
    truth = mean + sd / DRAWN**0.5 * torch.randn(samples, COMPONENTS, generator=generator, dtype=torch.float64)
    each = mean + sd * torch.randn(INPUTS, COMPONENTS, generator=generator, dtype=torch.float64)
    again = bootstrap_circuits(each, DRAWN, SIZE, samples=samples, seed=seed)
    fresh = bootstrap_circuits(each, DRAWN, SIZE, samples=samples, draw="fresh", seed=seed)
    independent = Select(SIZE).sets(truth, again.components)
    pairs = Resamples.of(2, 1, samples).pairs
    return {
        "predicted": float(jaccard(independent, pairs).mean()),
        "bootstrap": float(again.jaccard().mean()),
        "fresh": float(fresh.jaccard().mean()),
        "ratio": float((variation(each).cv / cv).quantile(0.5)),
    }
