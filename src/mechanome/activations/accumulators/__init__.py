"""Mergeable statistics over rows: any split of the rows and any order of merging gives the same result."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.activations.accumulators.accumulator import Accumulator
    from mechanome.activations.accumulators.coactivation import CoActivation
    from mechanome.activations.accumulators.correlation import Correlation
    from mechanome.activations.accumulators.density import Density
    from mechanome.activations.accumulators.diff_mean import DiffMean
    from mechanome.activations.accumulators.fired import Fired
    from mechanome.activations.accumulators.moments import Moments
    from mechanome.activations.accumulators.per_site import PerSite
    from mechanome.activations.accumulators.quantiles import Quantiles
    from mechanome.activations.accumulators.top_examples import TopExamples

__all__ = [
    "Accumulator",
    "CoActivation",
    "Correlation",
    "Density",
    "DiffMean",
    "Fired",
    "Moments",
    "PerSite",
    "Quantiles",
    "TopExamples",
]

offer(__name__)
