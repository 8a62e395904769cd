"""Data in an order that can be left and found again.

A :class:`Stream` is iterated for batches, and knows where it is. The position is small (an epoch and a cursor, not a
permutation), because the order is a function of the seed: resuming costs nothing and is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from mechanome.core.errors import BadInput, CorruptFile


@runtime_checkable
class Stream(Protocol):
    """Batches with a position.

    Between two batches ``state()`` names the position of the next one, also where batches are prepared ahead.
    After ``seek(state)``, a new iteration yields exactly what would have followed.
    """

    def __iter__(self) -> Iterator[Any]:
        """Batches from the present position on."""

    def state(self) -> dict[str, Any]:
        """The position, as JSON."""

    def seek(self, state: Mapping[str, Any]) -> None:
        """Go to a position of :meth:`state`."""


class Batches:
    """Shuffled batches of row indices: each epoch visits every row once, in an order drawn from seed and epoch.

    Args:
        rows: how many rows there are.
        size: rows in a batch; the last batch of an epoch may be smaller.
        seed: of the order.
        epochs: how many passes; None goes on for ever.
        shuffle: False visits rows in order.

    Raises:
        BadInput: no rows, or batches without rows.
    """

    def __init__(self, rows: int, size: int, *, seed: int = 0, epochs: int | None = None, shuffle: bool = True) -> None:
        if rows < 1 or size < 1:
            raise BadInput("batches", f"{rows} rows in batches of {size}", "give at least one of each")
        self.rows, self.size, self.seed, self.epochs, self.shuffle = rows, size, seed, epochs, shuffle
        self._epoch = self._cursor = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yields indices ``[batch]``, int64."""
        while self.epochs is None or self._epoch < self.epochs:
            order = self._order(self._epoch)
            while self._cursor < self.rows:
                batch = order[self._cursor : self._cursor + self.size]
                self._cursor += self.size
                if self._cursor >= self.rows:
                    self._epoch, self._cursor = self._epoch + 1, 0
                    yield batch
                    break
                yield batch

    def state(self) -> dict[str, int]:
        """Position of the next batch, with what the order was made from."""
        return {"rows": self.rows, "size": self.size, "seed": self.seed, "epoch": self._epoch, "cursor": self._cursor}

    def seek(self, state: Mapping[str, int]) -> None:
        """Go to a position.

        Raises:
            BadInput: it is a position in other batches (rows, size or seed differ).
            CorruptFile: it is no position at all.
        """
        if state.keys() != self.state().keys():
            raise CorruptFile("stream position", f"it holds {sorted(state)}", "use a position of the same stream")
        for name, mine in (("rows", self.rows), ("size", self.size), ("seed", self.seed)):
            if state[name] != mine:
                raise BadInput("stream position", f"{name} was {state[name]}, now {mine}", "use the same settings")
        self._epoch, self._cursor = state["epoch"], state["cursor"]

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.rows)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.rows, generator=generator)
