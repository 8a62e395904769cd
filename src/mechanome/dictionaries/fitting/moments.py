"""Mean and variance of the rows seen so far, in float64: what the running FVU is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Moments:
    """Running moments of rows `[row, d]`; batches are merged as by Chan et al., so a large mean costs no digits."""

    def __init__(self, d: int, device: torch.device) -> None:
        self.count = 0
        self.mean = torch.zeros(d, dtype=torch.float64, device=device)
        self.squares = torch.zeros((), dtype=torch.float64, device=device)

    def update(self, x: Tensor) -> None:
        """Take in a batch."""
        n = len(x)
        mean = x.mean(0)
        within = (x - mean).square().sum()
        apart, total = mean.double() - self.mean, self.count + n
        self.squares += within + apart.square().sum() * (self.count * n / total)
        self.mean += apart * (n / total)
        self.count = total

    @property
    def variance(self) -> float:
        """Summed over d; 0 before a batch."""
        return float(self.squares) / self.count if self.count else 0.0

    def state_dict(self) -> dict[str, Any]:
        """What to keep."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.count = state["count"]
        self.mean.copy_(state["mean"])
        self.squares.copy_(state["squares"])
