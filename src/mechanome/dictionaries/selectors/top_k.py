"""TopK: in each row the k largest pre-activations, where positive."""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly, Selector


def check_k(k: int, width: int) -> None:
    """Refuse a number of active latents that cannot be.

    Raises:
        BadInput: fewer than 1, or more than there are.
    """
    if not 1 <= k <= width:
        raise BadInput(f"k = {k}", f"there are {width} latents", f"choose 1 to {width}")


class TopKSelector(Selector):
    """The k largest of each row.

    Args:
        k: how many; a fit may start with more and come down to it.
        width: how many latents there are.

    Raises:
        BadInput: k below 1 or above the width.
    """

    def __init__(self, k: int, width: int) -> None:
        super().__init__()
        check_k(k, width)
        self.k = k

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        latents = torch.topk(scores, self.k, dim=1, sorted=False).indices
        pattern = Pattern.of_columns(latents, scores.shape[1])
        return pattern, exactly(pattern)
