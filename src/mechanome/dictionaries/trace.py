"""One pass of a dictionary over rows, with all that losses ask for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.crew import ALONE, Crew
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
        rows: of the whole batch, of which this may be one process's part.
        crew: the processes that have the other parts.
    """

    model: SparseAutoencoder
    x: Tensor
    target: Tensor
    pre: Tensor
    codes: SparseCodes
    stages: Tensor
    rows: int
    crew: Crew = ALONE

    @classmethod
    def of(
        cls,
        model: SparseAutoencoder,
        x: Tensor,
        target: Tensor,
        scorer: Scorer,
        rows: int | None = None,
        crew: Crew = ALONE,
    ) -> Trace:
        """Run a dictionary on normalized rows; `rows` as above, all that are given if None."""
        pre, codes = model.chosen(x, scorer)
        stages = model.skipped(model.decoder.stages(codes), x.unsqueeze(1))
        return cls(model, x, target, pre, codes, stages, len(x) if rows is None else rows, crew)

    @property
    def error(self) -> Tensor:
        """What the whole reconstruction misses `[row, d_out]`, without gradient."""
        return (self.target - self.stages[:, -1]).detach()

    def reconstruction_loss(self) -> Tensor:
        """Squared error, summed over d, mean over rows and stages."""
        return self.mean((self.target.unsqueeze(1) - self.stages).square().sum() / self.stages.shape[1])

    def mean(self, total: Tensor) -> Tensor:
        """A sum over these rows as the mean over all of the batch; gradients are this part's share."""
        part = total / self.rows
        return part if self.crew.alone else part + (self.crew.total(part) - part).detach()
