"""AbsTopK: in each row the k pre-activations largest in size, signs kept, so that a latent may be negative."""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly
from mechanome.dictionaries.selectors.top_k import TopKSelector


class AbsTopKSelector(TopKSelector):
    """The k largest in size of each row; arguments as :class:`TopKSelector`."""

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        latents = torch.topk(scores.abs(), self.k, dim=1, sorted=False).indices
        pattern = Pattern.of_columns(latents, scores.shape[1])
        return pattern, exactly(pattern)

    def values(self, pre: Tensor, pattern: Pattern, bias: Tensor) -> Tensor:
        return pre
