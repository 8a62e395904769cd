"""Reading in another process: what harvests send to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanome.activations.activations import Activations
from mechanome.activations.drop import Drop
from mechanome.activations.policy import kept_rows
from mechanome.activations.reader import Reader
from mechanome.engine import attention


@dataclass(frozen=True)
class KeptRows:
    """The rows of some sequences that the policy keeps, and how many it left out; with the model, it can be pickled.

    Args:
        reader: with its model. drop: the policy. medians: per site, the norm it compares with.
    """

    reader: Reader
    drop: Drop
    medians: Mapping[str, float]

    def __call__(self, wanted: np.ndarray) -> tuple[Activations, int]:
        """As `policy.kept_rows`."""
        return kept_rows(self.reader, wanted, self.drop, self.medians)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same in this process, where Transformers may not know our attention, and configs have other ids."""
        self.__dict__.update(state)
        for backend in attention.BACKENDS:
            attention.key_for(backend)
        model = self.reader.model
        model.backends = attention.install(model.module)
