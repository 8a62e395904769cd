"""TopK autoencoder: exactly the k largest latents of a row are active, no penalty (Gao et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechanome.core.errors import BadInput
from mechanome.dictionaries.architectures.recipe import Recipe
from mechanome.dictionaries.selectors import Selector, TopKSelector
from mechanome.dictionaries.selectors.top_k import check_k


@dataclass(frozen=True)
class TopK(Recipe):
    """The k largest of each row.

    Args:
        width, dead_after: as :class:`Recipe`.
        k: active latents per row.
        aux_k: dead latents each row may use to explain what is missed; None for half of d, 0 for no auxiliary loss.
        aux_weight: of the auxiliary loss.
        aux_every: steps from one auxiliary loss to the next.
        k_start: active latents at the start of a fit, coming down to k by `anneal`; None starts at k.
        anneal: share of the fit's steps over which k comes down.

    Raises:
        BadInput: k below 1 or above the width; k_start below k; weights or steps out of range.
    """

    k: int = 32
    aux_k: int | None = None
    aux_weight: float = 1 / 32
    aux_every: int = 1
    k_start: int | None = None
    anneal: float = 0.2

    architecture: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_k(self.k, self.width)
        if self.k_start is not None and not self.k <= self.k_start <= self.width:
            raise BadInput(f"k_start = {self.k_start}", "k only comes down", f"choose {self.k} to {self.width}")
        if self.aux_every < 1 or self.aux_weight < 0 or (self.aux_k or 0) < 0 or not 0 <= self.anneal <= 1:
            why = f"aux_k {self.aux_k}, aux_weight {self.aux_weight}, aux_every {self.aux_every}, anneal {self.anneal}"
            raise BadInput(self.architecture, why, "give counts of at least 0 (1 for aux_every), and a share")

    def selector(self) -> Selector:
        return TopKSelector(self.k, self.width)

    def k_at(self, done: float) -> int:
        """Active latents when this share of a fit's steps is done."""
        if self.k_start is None or done >= self.anneal:
            return self.k
        return round(self.k_start + (self.k - self.k_start) * done / self.anneal)
