"""Matryoshka autoencoder: every prefix of groups must reconstruct too, so that early latents stay general
(Bussmann et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechanome.dictionaries.architectures.batch_top_k import BatchTopK
from mechanome.dictionaries.decoders import Decoder, LinearDecoder


def doubling(width: int, groups: int = 5) -> tuple[int, ...]:
    """Group sizes whose prefixes double: the whole, its first half, quarter, ..."""
    ends = sorted({max(1, width >> n) for n in range(groups)})
    return tuple(end - before for before, end in zip([0, *ends], ends))


@dataclass(frozen=True)
class Matryoshka(BatchTopK):
    """BatchTopK over all latents, with the loss averaged over prefixes.

    Args:
        width, k, ...: as :class:`BatchTopK`.
        groups: how many latents each group has, together the width; empty for prefixes of 1/16, 1/8, ... 1.

    Raises:
        BadInput: groups that do not add up to the width.
    """

    groups: tuple[int, ...] = ()

    architecture: ClassVar[str] = "matryoshka"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "groups", self.groups or doubling(self.width))
        self.try_parts()

    def decoder(self, d_out: int, parts: tuple[int, ...] = ()) -> Decoder:
        return LinearDecoder(self.width, d_out, self.groups, parts=parts)
