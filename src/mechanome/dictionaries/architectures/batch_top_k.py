"""BatchTopK autoencoder: rows of a batch share B k active latents (Bussmann et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechanome.dictionaries.architectures.top_k import TopK
from mechanome.dictionaries.selectors import BatchTopKSelector, Selector


@dataclass(frozen=True)
class BatchTopK(TopK):
    """The B k largest of a batch; arguments as :class:`TopK`, k being the mean."""

    architecture: ClassVar[str] = "batchtopk"

    def selector(self) -> Selector:
        return BatchTopKSelector(self.k, self.width)
