"""The gate of a gated autoencoder: one bias decides whether a latent is active, another how strongly.

Both read the same direction: the pre-activation is that of the gate, and the magnitude is
`relu(exp(r_mag) (pre - b_enc) + b_mag)`, with the encoder's bias that of the gate (Rajamanoharan et al. 2024, tied).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly, Selector


class GateSelector(Selector):
    """Active where the gate is positive, with a magnitude of its own.

    Args:
        width: how many latents.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.r_mag = nn.Parameter(torch.zeros(width))
        self.b_mag = nn.Parameter(torch.zeros(width))

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        pattern = Pattern.of_mask(scores > 0)
        return pattern, exactly(pattern)

    def values(self, pre: Tensor, pattern: Pattern, bias: Tensor) -> Tensor:
        at = pattern.indices
        # Scores of low precision may have let a latent in whose gate is closed.
        return (self.r_mag[at].exp() * (pre - bias[at]) + self.b_mag[at]).relu() * (pre > 0)

    @torch.no_grad()
    def bias_moved(self, by: Tensor) -> None:
        self.b_mag.add_(self.r_mag.exp() * by)
