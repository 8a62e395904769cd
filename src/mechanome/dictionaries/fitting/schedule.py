"""How the learning rate goes up and down: a function of the step, so that nothing of it needs to be kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mechanome.core.errors import BadInput
from mechanome.engine.plain import number

RATE, RATE_WIDTH = 2e-4, 1 << 14
"""The automatic learning rate is `RATE` at `RATE_WIDTH` latents and falls with their square root (Gao et al. 2024)."""


_RATE = 'give a positive number, or "auto"'


def learning_rate(lr: float | str, width: int) -> float:
    """The peak learning rate of a dictionary of this width; "auto" is `2e-4 sqrt(16384 / width)`.

    Raises:
        BadInput: neither "auto" nor a positive number.
    """
    if lr == "auto":
        return RATE * math.sqrt(RATE_WIDTH / width)
    if not 0 < number(lr, f"lr = {lr!r}", _RATE) < math.inf:
        raise BadInput(f"lr = {lr!r}", "it is no learning rate", _RATE)
    return float(lr)


@dataclass(frozen=True)
class Schedule:
    """Up over the first steps, level, and down to zero over the last.

    Args:
        steps: of the fit.
        warmup: share of them to go up over.
        decay: share of them to come down over.

    Raises:
        BadInput: no steps, or shares that do not fit.
    """

    steps: int
    warmup: float = 0.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("warmup", "decay"):
            number(getattr(self, name), name, "give a share of the steps, 0 to 1")
        if self.steps < 1 or not min(self.warmup, self.decay) >= 0 or not self.warmup + self.decay <= 1:
            why = f"{self.steps} steps, warmup {self.warmup}, decay {self.decay}"
            raise BadInput("schedule", why, "give at least one step, and shares that add up to at most 1")

    def __call__(self, done: int) -> float:
        """The share of the peak rate for the next step, when so many are done."""
        up, down = self.warmup * self.steps, self.decay * self.steps
        return min(1.0, (done + 1) / up if up else 1.0, (self.steps - done) / down if down else 1.0)
