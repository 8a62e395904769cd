"""Activations that are already in memory, as a stream."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.activations import Activations
from mechanome.activations.permutation import Permutation
from mechanome.activations.stream import Segmented
from mechanome.core.errors import BadInput


class ArrayActivations(Segmented):
    """A stream over tensors in memory; each epoch gives every row once, in an order drawn from seed and epoch.

    Args:
        values: `[row, d]`, per site name; a bare tensor is the site "x".
        labels: per label, `[row]`; without "seq" each row is its own sequence.
        batch: rows in a batch; the last of an epoch may be smaller.
        seed: of the order.
        epochs: how many passes; None goes on for ever.
        shuffle: False keeps the rows in order.

    Raises:
        BadInput: no rows. ShapeMismatch: shapes that do not fit, see `Activations`.
    """

    def __init__(
        self,
        values: Tensor | Mapping[str, Tensor] | Activations,
        labels: Mapping[str, Tensor] | None = None,
        *,
        batch: int = 4096,
        seed: int = 0,
        epochs: int | None = None,
        shuffle: bool = True,
    ) -> None:
        if not isinstance(values, Activations):
            values = Activations({"x": values} if isinstance(values, Tensor) else values, labels or {})
        if not values.rows:
            raise BadInput("activations", "they have no rows", "give at least one")
        if "seq" not in values.labels:
            values = Activations(values.values, {"seq": torch.arange(values.rows), **values.labels})
        self.data, self.shuffle = values, shuffle
        super().__init__(batch, seed, epochs, {"rows": values.rows, "shuffle": shuffle})

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.data.sites

    @property
    def widths(self) -> dict[str, int]:
        """Per site, d."""
        return self.data.widths

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.data.rows

    def segments(self, epoch: int) -> int:
        """One segment per batch, so that a position costs one batch."""
        return -(-self.rows // self.batch)

    def segment(self, epoch: int, k: int) -> Activations:
        """The rows of batch `k` of an epoch."""
        wanted = np.arange(k * self.batch, min((k + 1) * self.batch, self.rows))
        if self.shuffle:
            wanted = Permutation(self.rows, self.seed, epoch)(wanted)
        return self.data.take(torch.from_numpy(wanted))
