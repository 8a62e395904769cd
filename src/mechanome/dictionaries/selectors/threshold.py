"""ReLU: every latent with a positive pre-activation is active."""

from __future__ import annotations

from torch import Tensor

from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly, Selector


class ReluSelector(Selector):
    """Latents with positive pre-activations."""

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        pattern = Pattern.of_mask(scores > 0)
        return pattern, exactly(pattern)
