"""How much of a dictionary's gradient is the same in every batch, and whether two data sets pull alike.

A gradient that differs from batch to batch mostly moves weights to and fro. `gsnr` takes gradients of the training loss
over batches of one stream at one state of the weights, which do not change; the ratio of squared mean to variance is a
parameter's signal to noise (paper 50, 3.4). `GradientSignal.alignment` compares the mean gradients of two streams at
the same state: does training on one serve the other?

    blocks, alone = (gsnr(dictionary, stream, 24) for stream in (block_stream, dialogue_stream))
    blocks.median, alone.median, blocks.alignment(alone)
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.core import BadInput, NotFinite, ShapeMismatch, TooFewRows
from mechanome.dictionaries.architectures import Recipe, recipe_of
from mechanome.dictionaries.metrics.evaluate import joined
from mechanome.dictionaries.scores import Scorer
from mechanome.dictionaries.trace import Trace
from mechanome.engine.asked import count

if TYPE_CHECKING:
    from mechanome.activations import Activations, ActivationStream
    from mechanome.dictionaries.autoencoder import SparseAutoencoder


@dataclass(frozen=True, eq=False)
class GradientSignal:
    """Gradients over batches, at one state of a dictionary.

    Args:
        mean: over batches, all tensors flat in the order of `parameters()`, `[parameter]` float64.
        variance: likewise, unbiased.
        batches: how many. rows: in each.
    """

    mean: Tensor = field(repr=False)
    variance: Tensor = field(repr=False)
    batches: int
    rows: int

    @property
    def silent(self) -> int:
        """Parameters whose gradient does not vary, such as those of latents that no row used; they have no ratio."""
        return int((self.variance == 0).sum())

    @property
    def ratios(self) -> Tensor:
        """Squared mean over variance of each parameter that is not silent, `[parameter]`.

        Noise alone has about `1 / batches` on average, since a mean of few batches is not zero.
        """
        varies = self.variance > 0
        return self.mean[varies].square() / self.variance[varies]

    @property
    def average(self) -> float:
        """Mean ratio; a few parameters of large ones decide it. NaN if all are silent."""
        return float(self.ratios.mean())

    @property
    def median(self) -> float:
        """Median ratio; NaN if all are silent. Noise alone has about `0.46 / batches`."""
        found = self.ratios
        return float(found.median()) if len(found) else float("nan")

    def alignment(self, other: GradientSignal) -> float:
        """Cosine of the two mean gradients; 1 where both data sets ask for the same step.

        Raises:
            ShapeMismatch: gradients of another dictionary. NotFinite: one of the means is zero.
        """
        if self.mean.shape != other.mean.shape:
            sizes = f"{len(self.mean)} and {len(other.mean)} parameters"
            raise ShapeMismatch("alignment", sizes, "measure both streams at the same state of one dictionary")
        lengths = self.mean.norm() * other.mean.norm()
        if not lengths > 0:
            raise NotFinite(
                "alignment", "one of the mean gradients is zero", "measure before the dictionary is perfect"
            )
        return float(self.mean @ other.mean / lengths)


def gsnr(dictionary: SparseAutoencoder, stream: ActivationStream, batches: int = 32) -> GradientSignal:
    """Gradients of a dictionary's training loss over batches of a stream.

    The loss is what `fit` minimizes, its auxiliary loss for dead latents apart: squared error of normalized rows and
    the recipe's penalties. Where decoder directions have length 1, the part along them is removed, as in training.

    Args:
        dictionary: as it is; it is not changed.
        stream: batches of equal size; its position is left as it was.
        batches: how many to take, at least 2.

    Raises:
        BadInput: fewer than 2, or batches of different size, whose gradients have different noise.
        TooFewRows: the stream ends before. UnknownSite: it lacks what the dictionary reads.
        NotFinite: a gradient is.
    """
    if count("batches", batches) < 2:
        raise BadInput("batches=1", "one gradient has no variance", "take at least 2")
    model, form = deepcopy(dictionary).train().requires_grad_(), recipe_of(dictionary.spec).form
    scorer, here = Scorer(), stream.state()
    mean = squares = torch.zeros(())
    done = rows = 0
    for batch in stream:
        if done and batch.rows != rows:
            why = f"batch {done} has {batch.rows} rows, those before {rows}"
            raise BadInput("the stream", why, "choose a batch size that divides its rows, or fewer batches")
        rows, done = batch.rows, done + 1
        gradient = _gradient(model, batch, form, scorer)
        apart = gradient - mean
        mean = mean + apart / done
        squares = squares + apart * (gradient - mean)
        if done == batches:
            break
    stream.seek(here)
    if done < batches:
        raise TooFewRows("the stream", f"it ended after {done} of {batches} batches", "take fewer, or smaller ones")
    if not bool(torch.isfinite(mean).all()):
        raise NotFinite("gradients", "NaN or infinity among them", "check the rows and the weights")
    return GradientSignal(mean, squares / (done - 1), done, rows)


def _gradient(model: SparseAutoencoder, batch: Activations, form: Recipe, scorer: Scorer) -> Tensor:
    """The gradient of one batch, `[parameter]` float64."""
    spec = model.spec
    x, target = (joined(batch, sites, model) for sites in (spec.sites_in, spec.sites_out))
    trace = Trace.of(model, model.norm(x), model.norm_out(target), scorer)
    terms = (trace.reconstruction_loss(), *form.penalties(trace).values())
    model.zero_grad(set_to_none=True)
    torch.stack(terms).sum().backward()
    model.decoder.before_step()
    parts = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return torch.cat([part.flatten() for part in parts]).double().cpu()
