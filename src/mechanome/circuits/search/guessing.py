"""Guesses: what ACDC will decide next, and how many decisions ahead it pays to guess."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

_RECENT = 1000
"""Decisions that the cut is fitted to."""
_WEIGHT = 0.02
"""Of the newest guess in the running share of right ones."""


@dataclass
class Guesser:
    """Guesses that edges with large scores stay, and learns from each decision what is large.

    Attributes:
        scores: sizes of the scores of all edges, `[source, target]`.
        cut: edges of at least this score are guessed to stay; at first none is.
        chance: that a guess is right, a running share.
    """

    scores: Tensor
    cut: float = math.inf
    chance: float = 0.9
    _recent: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def stays(self, source: int, target: int) -> bool:
        """Whether an edge is guessed to stay."""
        return float(self.scores[source, target]) >= self.cut

    def learn(self, source: int, target: int, kept: bool, right: bool) -> None:
        """Take note of a decision, and of whether it was guessed."""
        self._recent.append((float(self.scores[source, target]), kept))
        self.chance += _WEIGHT * (right - self.chance)

    def fit(self) -> None:
        """Choose the cut that would have been right most often of late."""
        if not self._recent:
            return
        scores, kept = (torch.tensor(column, dtype=torch.float64) for column in zip(*self._recent))
        order = scores.argsort(descending=True, stable=True)
        # After the m largest scores: edges among them that went, and edges behind them that stayed.
        gain = (2 * kept[order] - 1).cumsum(0)
        best = int(gain.argmax())
        self.cut = float(scores[order[best]]) if gain[best] > 0 else math.inf

    def length(self, at_most: int) -> int:
        """How many decisions to guess: so many that the last one is still as likely needed as not."""
        if self.chance >= 1:
            return at_most
        return max(1, min(at_most, int(math.log(0.5) / math.log(self.chance))))
