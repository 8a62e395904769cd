"""ReLU autoencoder: an L1 penalty, weighted by decoder norms, makes codes sparse (Bricken et al. 2023; April 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.dictionaries.architectures.recipe import Recipe
from mechanome.dictionaries.decoders import Decoder, LinearDecoder
from mechanome.dictionaries.selectors import ReluSelector, Selector
from mechanome.dictionaries.trace import Trace


@dataclass(frozen=True)
class ReLU(Recipe):
    """`|x - x'|^2 + l1 sum_j z_j |W_dec,j|`.

    Args:
        width, dead_after: as :class:`Recipe`.
        l1: weight of the penalty, for activations of mean norm sqrt(d).

    Raises:
        BadInput: a negative weight.
    """

    l1: float = 5.0

    architecture: ClassVar[str] = "relu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1 < 0:
            raise BadInput(f"l1 = {self.l1}", "a penalty is not negative", "use 0 or more")

    def selector(self) -> Selector:
        return ReluSelector()

    def decoder(self, d_out: int, parts: tuple[int, ...] = ()) -> Decoder:
        # The penalty counts a latent's length, so the length is free: shrinking a direction gains nothing.
        return LinearDecoder(self.width, d_out, unit=False, parts=parts)

    def penalties(self, trace: Trace) -> dict[str, Tensor]:
        norms = trace.model.decoder.norms()[trace.codes.indices]
        return {"l1": self.l1 * trace.mean((trace.codes.values * norms).sum())}
