"""Autoencoders that normalize each row by itself, as several released ones do.

What a row's mean or length was is not in its code, so decoding needs the row too. The map is not affine in activations:
such a dictionary is no basis, and no direction of it means the same in every row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.scores import Scorer


def _layer(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    deviation = x.std(-1, keepdim=True)
    return x.mean(-1, keepdim=True), deviation + 1e-5, deviation


def _length(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unit = x.norm(dim=-1, keepdim=True) / math.sqrt(x.shape[-1])
    return x.new_zeros(len(x), 1), unit, unit


ROWS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]] = {"layer": _layer, "length": _length}
"""Of rows `[row, d]`: what is taken away, by what is divided, and by what a reconstruction is multiplied, `[row, 1]`.

"layer" gives mean 0 and deviation 1 (with the 1e-5 that SAELens adds on the way in only), "length" the length sqrt(d).
"""


class RowNormalizedAutoencoder(SparseAutoencoder):
    """An autoencoder of rows that were normalized one by one; how is in its spec's settings, `rows`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = ROWS[self.spec.settings["rows"]]

    def chosen(self, x: Tensor, scorer: Scorer) -> tuple[Tensor, SparseCodes]:
        return super().chosen(self._normalized(x), scorer)

    def pre(self, x: Tensor, latents: Tensor | None = None) -> Tensor:
        return self.encoder.pre(self._normalized(self.norm(self.rows_of(x))), self.shift, latents)

    def decode_normed(self, codes: SparseCodes, x: Tensor | None) -> Tensor:
        if x is None:
            raise BadInput("decode", "each row was normalized by itself", "pass x, which the codes came from")
        mean, _, factor = self.rows(x)
        return super().decode_normed(codes, self._normalized(x)) * factor + mean

    def _normalized(self, x: Tensor) -> Tensor:
        mean, divisor, _ = self.rows(x)
        return (x - mean) / divisor
