"""The losses of sheaf repulsion (arXiv 2605.12671), as functions of a `Moment` and of what circuits say.

The metric is a difference of two logits, good minus bad; cross-entropy over the two labels depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import softplus

from mechanome.circuits.search.mask_training import Moment
from mechanome.circuits.search.objectives import Said
from mechanome.circuits.sheaves.recipe import SheafRecipe


def two_label(said: Said) -> Tensor:
    """Cross-entropy over good and bad with the good one as target, nats, `[circuit, example]`; an `Objective`."""
    return softplus(-said.values.double())


def undecided(said: Said) -> Tensor:
    """Cross-entropy over good and bad with half of each as target, nats, `[circuit, example]`; an `Objective`."""
    values = said.values.double()
    return (softplus(values) + softplus(-values)) / 2


def density(moment: Moment) -> Tensor:
    """Mean chance that an edge is open, of those that may be, `[circuit]`."""
    return moment.open / moment.allowed.sum((-2, -1))


def overlap(moment: Moment, references: Tensor, divide: str) -> Tensor:
    """Mean chance that an edge of a reference is open, mean over references, `[circuit]`; 0 without edges.

    Args:
        moment: of the training.
        references: edges to stay away from, `[reference, source, target]` of booleans.
        divide: by the edges of the "reference", or of the "graph".
    """
    chances = moment.gate.open(moment.logits, moment.progress) * moment.allowed
    shared = (chances[:, None] * references).sum((2, 3))
    sizes = references.sum((1, 2)) if divide == "reference" else moment.runner.graph.mask.sum().expand(len(references))
    return (shared / sizes.clamp(min=1)).sum(1) / max(1, len(references))


@dataclass(frozen=True, eq=False)
class SheafLosses:
    """The two steps.

    Args:
        recipe: weights and schedule.
        references: edges to stay away from, `[reference, source, target]` of booleans; may be none.
        sparsity, repel: weights of each circuit, `[circuit]`.
    """

    recipe: SheafRecipe
    references: Tensor = field(repr=False)
    sparsity: Tensor
    repel: Tensor

    def faithful(self, moment: Moment) -> Tensor:
        """Step A: fidelity, sparsity and repulsion, `[circuit]`."""
        scale = self.recipe.multiplier(self.recipe.epoch(moment.progress))
        apart = overlap(moment, self.references, self.recipe.divide)
        return moment.cost(moment.draw()) + scale * (self.sparsity * density(moment) + self.repel * apart)

    def complete(self, moment: Moment) -> Tensor | None:
        """Step B, in the last epochs: without the circuit, drawn anew, the model is to be undecided; `[circuit]`."""
        if not self.recipe.complete or not self.recipe.completing(self.recipe.epoch(moment.progress)):
            return None
        without = moment.runner.graph.mask.to(moment.logits) - moment.draw()
        return self.recipe.complete * undecided(moment.said(without)).mean(1)
