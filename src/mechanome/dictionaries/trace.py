"""One pass of a dictionary over rows, with all that losses ask for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.scores import Scorer


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened to a batch; everything in the dictionary's space, differentiable.

    Args:
        model: the dictionary.
        x: its input `[row, d_in]`.
        target: what its output should be `[row, d_out]`.
        pre: pre-activations at the code's places `[nnz]`.
        codes: `[row, latent]`.
        stages: reconstructions from growing prefixes of latents `[row, stage, d_out]`; the last is the whole.
    """

    model: SparseAutoencoder
    x: Tensor
    target: Tensor
    pre: Tensor
    codes: SparseCodes
    stages: Tensor

    @classmethod
    def of(cls, model: SparseAutoencoder, x: Tensor, target: Tensor, scorer: Scorer) -> Trace:
        """Run a dictionary on normalized rows."""
        pre, codes = model.chosen(x, scorer)
        stages = model.skipped(model.decoder.stages(codes), x.unsqueeze(1))
        return cls(model, x, target, pre, codes, stages)

    @property
    def error(self) -> Tensor:
        """What the whole reconstruction misses `[row, d_out]`, without gradient."""
        return (self.target - self.stages[:, -1]).detach()

    def reconstruction_loss(self) -> Tensor:
        """Squared error, summed over d, mean over rows and stages."""
        errors = self.target.unsqueeze(1) - self.stages
        return errors.square().sum() / (errors.shape[0] * errors.shape[1])

    def mean_over_rows(self, values: Tensor) -> Tensor:
        """Sum of something per place `[nnz]`, mean over rows."""
        return values.sum() / self.codes.rows
