"""WeightedTopK: in each row the k largest pre-activations times a fixed weight for each latent, where positive.

With the lengths of decoder directions as weights, latents are chosen by how far they move the reconstruction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly
from mechanome.dictionaries.selectors.top_k import TopKSelector


class WeightedTopKSelector(TopKSelector):
    """The k largest of each row by weight; `weight [latent]` is set by whoever builds it, 1 before.

    Args and raises as :class:`TopKSelector`.
    """

    weight: Tensor

    def __init__(self, k: int, width: int) -> None:
        super().__init__(k, width)
        self.register_buffer("weight", torch.ones(width))

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        latents = torch.topk(scores * self.weight, self.k, dim=1, sorted=False).indices
        pattern = Pattern.of_columns(latents, scores.shape[1])
        return pattern, exactly(pattern)
