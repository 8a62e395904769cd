"""Gated autoencoder: which latents are active and how strongly are decided apart, so that the L1 penalty does not
shrink magnitudes (Rajamanoharan et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mechanome.dictionaries.architectures.relu import ReLU
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.decoders import Decoder, LinearDecoder
from mechanome.dictionaries.selectors import GateSelector, Selector
from mechanome.dictionaries.trace import Trace


@dataclass(frozen=True)
class Gated(ReLU):
    """The penalty falls on gates, and gates must reconstruct too, through a decoder held fixed.

    Args:
        width, dead_after, l1: as :class:`ReLU`.
    """

    architecture: ClassVar[str] = "gated"

    def selector(self) -> Selector:
        return GateSelector(self.width)

    def decoder(self, d_out: int, parts: tuple[int, ...] = ()) -> Decoder:
        return LinearDecoder(self.width, d_out, parts=parts)

    def penalties(self, trace: Trace) -> dict[str, Tensor]:
        decoder = trace.model.decoder
        gates = trace.pre.relu()
        through = decoder.expand(SparseCodes.at(trace.codes.pattern, gates).matmul(decoder.table.detach()))
        by_gates = trace.model.skipped(through - decoder.b_dec + decoder.b_dec.detach(), trace.x)
        return {
            "l1": self.l1 * trace.mean((gates * decoder.norms().detach()[trace.codes.indices]).sum()),
            "gate": trace.mean((trace.target - by_gates).square().sum()),
        }
