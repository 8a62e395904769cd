"""Metrics of dictionaries under versioned definitions, one long table of results, and fronts at matched L0."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.dictionaries.metrics.definitions import DEFINITIONS, Definition, definition, definitions_table
    from mechanome.dictionaries.metrics.evaluate import evaluate
    from mechanome.dictionaries.metrics.gradient_signal import GradientSignal, gsnr
    from mechanome.dictionaries.metrics.legacy import LegacySums
    from mechanome.dictionaries.metrics.loss_recovered import LossRecovered, ce_recovered
    from mechanome.dictionaries.metrics.matching import Match, match, nearest_stability, planted_mcc, seed_stability
    from mechanome.dictionaries.metrics.measure import Measure
    from mechanome.dictionaries.metrics.pareto import Front, Pareto, pareto
    from mechanome.dictionaries.metrics.probing import SparseProbe, pooled, probes_table, sparse_probing
    from mechanome.dictionaries.metrics.reconstruction import (
        ReconstructionSums,
        cosine,
        fvu,
        norm_ratio,
        reconstruction_measures,
    )
    from mechanome.dictionaries.metrics.results import COLUMNS, Result, read_results, results_table, write_results
    from mechanome.dictionaries.metrics.sparsity import FiringCounts, dead, density, l0, sparsity_measures
    from mechanome.dictionaries.metrics.splits import BY, splits
    from mechanome.dictionaries.metrics.suffix import Losses, Suffix
    from mechanome.dictionaries.metrics.wasserstein import class_distances, wasserstein

__all__ = [
    "BY",
    "COLUMNS",
    "DEFINITIONS",
    "Definition",
    "FiringCounts",
    "Front",
    "GradientSignal",
    "LegacySums",
    "LossRecovered",
    "Losses",
    "Match",
    "Measure",
    "Pareto",
    "ReconstructionSums",
    "Result",
    "SparseProbe",
    "Suffix",
    "ce_recovered",
    "class_distances",
    "cosine",
    "dead",
    "definition",
    "definitions_table",
    "density",
    "evaluate",
    "fvu",
    "gsnr",
    "l0",
    "match",
    "nearest_stability",
    "norm_ratio",
    "pareto",
    "planted_mcc",
    "pooled",
    "probes_table",
    "read_results",
    "reconstruction_measures",
    "results_table",
    "seed_stability",
    "sparse_probing",
    "sparsity_measures",
    "splits",
    "wasserstein",
    "write_results",
]

offer(__name__)
