"""What every metric is, word for word and with a version: a number means nothing without its definition.

A definition never changes. A better one gets the next version, and old results keep saying what they are. Definitions
that other tools use, or used, are here to compare with their numbers; they are marked and computed only on request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mechanome.core import Table, UnknownName, nearest


@dataclass(frozen=True)
class Definition:
    """One metric in one version.

    Args:
        name: `metric.version`.
        text: the formula, and what is done at its edges.
        better: which way is good; "neither" for what only describes.
        legacy: why it is for comparison only; empty for our own.
    """

    name: str
    text: str
    better: Literal["lower", "higher", "neither"] = "neither"
    legacy: str = ""

    @property
    def metric(self) -> str:
        """The name without its version."""
        return self.name.rpartition(".")[0] if not self.legacy else self.name

    def __str__(self) -> str:
        return f"{self.name} = {self.text}"


_ROWS = (
    # Reconstruction; a row is one activation x and what the dictionary makes of it, x'.
    Definition("fvu.v1", "sum ||x - x'||^2 / sum ||x - mean||^2, mean over all rows of the split, float64", "lower"),
    Definition("mse.v1", "sum ||x - x'||^2 / (rows * d), float64", "lower"),
    Definition("log2_mse.v1", "log2 of mse.v1", "lower"),
    Definition("cosine.v1", "mean over rows of cos(x, x'), 0 where one of them is 0", "higher"),
    Definition("norm_ratio.v1", "sum ||x'|| / sum ||x||"),
    # Sparsity.
    Definition("l0.v1", "mean over rows of the number of latents that are not 0"),
    Definition("l0_p5.v1", "5 % of rows have at most so many latents that are not 0"),
    Definition("l0_p50.v1", "half of the rows have at most so many latents that are not 0"),
    Definition("l0_p95.v1", "95 % of rows have at most so many latents that are not 0"),
    Definition("dead.v1", "share of latents that are 0 on all n rows", "lower"),
    Definition("density_p50.v1", "half of the latents are not 0 on at most this share of rows"),
    Definition("dense.v1", "share of latents that are not 0 on more than a tenth of the rows", "lower"),
    # What the model says when the dictionary stands in its place; loss is the mean cross-entropy in nats.
    Definition("ce_clean.v1", "loss of the model as it is", "lower"),
    Definition("ce_recon.v1", "loss with x' for x", "lower"),
    Definition("ce_zero.v1", "loss with 0 for x"),
    Definition("ce_mean.v1", "loss with the mean of x for x"),
    Definition("ce_recovered_zero.v1", "(ce_zero - ce_recon) / (ce_zero - ce_clean), ratio of means", "higher"),
    Definition("ce_recovered_mean.v1", "(ce_mean - ce_recon) / (ce_mean - ce_clean), ratio of means", "higher"),
    Definition("delta_loss.v1", "(ce_recon - ce_clean) / ce_clean, ratio of means", "lower"),
    Definition("kl.v1", "mean over tokens of KL(model as it is || with x' for x), nats", "lower"),
    Definition("top1.v1", "share of tokens for which both say the same most likely next token", "higher"),
    # Concepts.
    Definition(
        "probe_accuracy.v1",
        "held-out groups: logistic regression (L2, C = 1, standardized) on the k latents with the largest difference "
        "of class means on the other groups; one class against the rest, mean over classes",
        "higher",
    ),
    Definition("probe_f1.v1", "as probe_accuracy.v1, F1 of each class, mean over classes", "higher"),
    Definition("probe_control.v1", "probe_accuracy.v1 with labels shuffled over groups, mean of the shuffles"),
    Definition(
        "wasserstein.v1",
        "per latent, W1 between its values on rows of a class and on all others, over its standard deviation on all "
        "rows (0 for a constant latent); mean over classes and latents",
        "higher",
    ),
    # Known answers and other dictionaries; cosines are of unit atoms, signed.
    Definition(
        "planted_mcc.v1",
        "one-to-one match of features to atoms with the largest sum of cosines; mean cosine over features, 0 for a "
        "feature without atom",
        "higher",
    ),
    Definition("planted_recall.v1", "share of features whose matched atom has a cosine of at least 0.9", "higher"),
    Definition(
        "seed_stability.v1",
        "one-to-one match of atoms of two dictionaries with the largest sum of cosines; mean cosine over the smaller "
        "dictionary",
        "higher",
    ),
    Definition(
        "nearest_stability.v1", "mean over atoms of the largest cosine to an atom of the other dictionary", "higher"
    ),
    # Those of others.
    Definition("fvu.zero", "sum ||x - x'||^2 / sum ||x||^2", "lower", "about 0, so a mean of x counts as explained"),
    Definition(
        "fvu.tokenmean",
        "mean over rows of ||x - x'||^2 / ||x - mean of the batch||^2",
        "lower",
        "depends on the batch size, and rows near the mean dominate",
    ),
    Definition(
        "fvu.batchmean",
        "mean over batches of sum ||x - x'||^2 / sum ||x - mean of the batch||^2",
        "lower",
        "depends on the batch size",
    ),
    Definition(
        "fvu.saebench-0.6",
        "mean ||x - x'||^2 / (mean ||x||^2 - m^2), m = mean over rows and dimensions of x^2",
        "lower",
        "m^2 stands where the squared length of the mean belongs; the value moves with scale and mean",
    ),
)

DEFINITIONS: dict[str, Definition] = {row.name: row for row in _ROWS}
"""Name with version to definition."""


def definition(name: str) -> Definition:
    """A definition by its name with version.

    Raises:
        UnknownName: there is none.
    """
    if name not in DEFINITIONS:
        raise UnknownName(f"metric '{name}'", "it has no definition", nearest(name, DEFINITIONS))
    return DEFINITIONS[name]


def definitions_table() -> Table:
    """All definitions."""
    rows = [(d.name, d.text, d.better, d.legacy) for d in DEFINITIONS.values()]
    return Table(["definition", "text", "better", "for comparison only, because"], rows)
