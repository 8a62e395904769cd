"""GroupMax: latents stand in k groups of equal size, and the largest of each group is active, where positive."""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly
from mechanome.dictionaries.selectors.top_k import TopKSelector


class GroupMaxSelector(TopKSelector):
    """The largest of each of k groups of neighboring latents.

    Args:
        k: how many groups.
        width: how many latents there are.

    Raises:
        BadInput: k below 1, above the width, or no divisor of it.
    """

    def __init__(self, k: int, width: int) -> None:
        super().__init__(k, width)
        if width % k:
            raise BadInput(f"k = {k}", f"{width} latents do not make {k} equal groups", "choose a divisor")

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        size = scores.shape[1] // self.k
        starts = torch.arange(0, scores.shape[1], size, device=scores.device)
        pattern = Pattern.of_columns(scores.unflatten(1, (self.k, size)).argmax(2) + starts, scores.shape[1])
        return pattern, exactly(pattern)
