"""PolySAE: latents also act in pairs and triples, through a polynomial decoder (Koromilas et al. 2026, paper 42)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mechanome.core.errors import BadInput, UnknownName, nearest
from mechanome.dictionaries.architectures.top_k import TopK
from mechanome.dictionaries.autoencoder import PolynomialAutoencoder, SparseAutoencoder
from mechanome.dictionaries.decoders import Decoder, PolynomialDecoder
from mechanome.dictionaries.decoders.polynomial import check_ranks
from mechanome.dictionaries.selectors import BatchTopKSelector, Selector, TopKSelector

SELECTIONS: dict[str, Callable[[int, int], Selector]] = {"topk": TopKSelector, "batchtopk": BatchTopKSelector}


@dataclass(frozen=True)
class PolySAE(TopK):
    """TopK codes, decoded by powers of their sums in a low-rank space.

    Args:
        width, k, ...: as :class:`TopK`.
        ranks: columns each power uses, descending, one a power; for GPT-2 small (768, 64, 64). Empty for the like of
            it: as many columns as the output is wide (as the width, if that is smaller), a twelfth for higher powers.
        order: highest power, 1 to 3; 1 is a factorized linear autoencoder, the control.
        selection: "topk" or "batchtopk".
        groups: of a Matryoshka loss, as there; empty for none.
        shared: one U for all powers.
        retract_every: steps between retractions of U.
        power_rate: learning rate of the ways out of squares and cubes, relative to the others: U has small rows, so
            their gradients start tiny.

    Raises:
        BadInput: ranks that no decoder can have, groups that do not add up to the width.
        UnknownName: another selection. BadInput: a rate that is not positive.
    """

    ranks: tuple[int, ...] = ()
    order: int = 3
    selection: str = "topk"
    groups: tuple[int, ...] = ()
    shared: bool = True
    retract_every: int = 1
    power_rate: float = 1.0

    architecture: ClassVar[str] = "poly"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks:
            check_ranks(self.ranks, self.order, self.width)
        if self.selection not in SELECTIONS:
            why = "it does not exist"
            raise UnknownName(f"selection {self.selection!r}", why, nearest(self.selection, SELECTIONS))
        if self.power_rate <= 0:
            raise BadInput(f"power_rate = {self.power_rate}", "it is no learning rate", "give a positive number")
        self.try_parts()

    def kind(self) -> type[SparseAutoencoder]:
        return PolynomialAutoencoder

    def selector(self) -> Selector:
        return SELECTIONS[self.selection](self.k, self.width)

    def decoder(self, d_out: int, parts: tuple[int, ...] = ()) -> Decoder:
        ranks = self.ranks or self._ranks(d_out)
        shared, every = self.shared, self.retract_every
        return PolynomialDecoder(self.width, d_out, ranks, self.groups, shared=shared, retract_every=every)

    def _ranks(self, d_out: int) -> tuple[int, ...]:
        """The paper's proportions."""
        first = min(d_out, self.width if self.shared else self.width // self.order)
        return (first, *[max(1, first // 12)] * (self.order - 1))

    def rates(self, model: SparseAutoencoder) -> dict[str, float]:
        return {f"decoder.C.{n}": self.power_rate for n in range(1, self.order)}
