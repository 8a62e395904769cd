"""Mix rows that come segment by segment, in bounded memory, so that a position stays exact and cheap.

A half-refilled buffer (paper 50, 3.2) trains on half of what it holds and refills that half; a row may stay there for
ever, so whoever goes on from a position must replay everything. Here half of each segment waits for the next round,
and not longer: round k gives out, in random order, the half of segment k - 1 that waited and half of segment k. A
position is the number of a round, and costs two segments.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mechanome.activations.activations import Activations
from mechanome.activations.permutation import Permutation
from mechanome.activations.stream import Segmented
from mechanome.core.errors import BadInput
from mechanome.engine.plain import whole

_SPLIT, _ORDER = 1, 2


class Mixed(Segmented):
    """A stream whose source makes pieces of rows, in order; mixed over two pieces at a time if `mix` is not 0.

    A source gives `pieces(epoch)` and `piece(epoch, k)`, which must return the same rows whenever it is asked.

    Args:
        mix: most rows that are held back for mixing; 0 leaves the rows in their order.
        batch, seed, epochs, identity, dtype: as in `Segmented`.

    Raises:
        BadInput: a negative number of rows.
    """

    def __init__(
        self,
        mix: int,
        batch: int,
        seed: int,
        epochs: int | None,
        identity: Mapping[str, Any],
        dtype: torch.dtype | None,
    ) -> None:
        if whole(mix) is None or mix < 0:
            raise BadInput(f"mix={mix!r}", "it is no number of rows", "give e.g. 65536, or 0 to keep the order")
        super().__init__(batch, seed, epochs, {"mix": mix, **identity}, dtype)
        self.mix = mix
        self._waiting: tuple[tuple[int, int], Activations] | None = None

    @abstractmethod
    def pieces(self, epoch: int) -> int:
        """How many pieces an epoch has."""

    @abstractmethod
    def piece(self, epoch: int, k: int) -> Activations:
        """The rows of a piece."""

    @property
    def piece_rows(self) -> int:
        """Rows of a piece, so that a whole one beside the waiting half of the last stays within `mix`."""
        return max(1, 2 * self.mix // 3)

    def segments(self, epoch: int) -> int:
        """Rounds: one more than pieces, for what waits at the end."""
        return self.pieces(epoch) + bool(self.mix)

    def segment(self, epoch: int, k: int) -> Activations:
        """The rows of a round."""
        if not self.mix:
            return self.piece(epoch, k)
        parts = []
        if k > 0:
            if self._waiting is None or self._waiting[0] != (epoch, k - 1):
                self._split(epoch, k - 1)
            assert self._waiting is not None
            parts.append(self._waiting[1])
        if k < self.pieces(epoch):
            parts.append(self._split(epoch, k))
        rows = Activations.cat(parts)
        return rows.take(self._order(rows.rows, epoch, k, _ORDER))

    def _split(self, epoch: int, k: int) -> Activations:
        """The half of a piece that is given out at once; the other half waits."""
        rows = self.piece(epoch, k)
        order, half = self._order(rows.rows, epoch, k, _SPLIT), (rows.rows + 1) // 2
        self._waiting = ((epoch, k), rows.take(order[half:]))
        return rows.take(order[:half])

    def _order(self, n: int, *key: int) -> torch.Tensor:
        return torch.from_numpy(Permutation(n, self.seed, *key)(np.arange(n)))
