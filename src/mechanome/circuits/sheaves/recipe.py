"""How sheaves are trained: weights of the losses, and how they rise and fall from epoch to epoch.

Numbers are those of the paper's code for GPT-2 small (arXiv 2605.12671). Two things differ: weights are moved by Adam
without decay, and step B shares its optimizer with step A.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from mechanome.circuits.search.gates import GATES
from mechanome.circuits.search.limits import worth
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of
from mechanome.engine.plain import number

Divisor = Literal["reference", "graph"]
DIVISORS: tuple[Divisor, ...] = ("reference", "graph")


@dataclass(frozen=True)
class SheafRecipe:
    """Settings of a training.

    Args:
        epochs: passes over the examples. batch: examples of a step. rate: of Adam.
        start: logits at the start; at 0.1 about half of all edges are drawn.
        gate: a name of `mechanome.circuits.GATES`.
        sparsity: weight of the density (mean chance that an edge is open).
        repel: weight of the overlap with other circuits; negative attracts, 0 lets be.
        divide: the overlap by the edges of the "reference" (as the paper's code) or of the "graph" (as its text).
        complete: weight of step B, which makes the model undecided where the circuit is taken out.
        most, least: what the weights of sparsity and repulsion are multiplied by after the rise, and in the end.
        rise: share of the epochs in which they rise from 1; step B begins after it.

    Raises:
        BadInput: a number that makes no sense, a name that does not exist.
    """

    epochs: int = 40
    batch: int = 32
    rate: float = 0.07
    start: float = 0.1
    gate: str = "gumbel"
    sparsity: float = 1.0
    repel: float = 1.04
    divide: Divisor = "reference"
    complete: float = 0.007
    most: float = 20.0
    least: float = 0.01
    rise: float = 0.8

    def __post_init__(self) -> None:
        count("epochs", self.epochs)
        count("batch", self.batch)
        one_of("gate", self.gate, GATES, "there is no such gate")
        one_of("divide", self.divide, DIVISORS)
        worth(self.rate, "rate")
        for name in ("sparsity", "complete", "most", "least"):
            worth(getattr(self, name), name, zero=True)
        for name in ("start", "repel"):
            signed(getattr(self, name), name)
        if not 0 < number(self.rise, "rise") <= 1:
            raise BadInput(f"rise={self.rise!r}", "it is a share of the epochs", "give a number above 0, up to 1")

    def epoch(self, progress: float) -> int:
        """The epoch in which a share of the steps, from 0 up to below 1, is done."""
        return min(self.epochs - 1, int(progress * self.epochs + 1e-6))  # rounding must not hold an epoch back

    def multiplier(self, epoch: int) -> float:
        """What the weights of sparsity and repulsion are multiplied by in an epoch."""
        turn = self.rise * self.epochs
        if epoch < turn:
            return 1 + (self.most - 1) * epoch / turn
        return self.most + (self.least - self.most) * (epoch - turn) / (self.epochs - turn)

    def completing(self, epoch: int) -> bool:
        """Whether an epoch has a step B."""
        return epoch >= self.rise * self.epochs


def signed(value: Any, what: str) -> float:
    """A finite number of either sign.

    Raises:
        BadInput: anything else.
    """
    found = number(value, what)
    if not isfinite(found):
        raise BadInput(f"{what}={value!r}", "it must be a finite number", "give one such as 1.04")
    return float(found)
