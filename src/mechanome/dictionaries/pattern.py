"""Where a sparse code is not zero: places in a `[row, latent]` matrix, listed row after row (CSR).

Where is kept apart from how much, because training needs the same places several times: to decode, and for the
gradients of both weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transposed:
    """The same places, sorted by latent.

    Args:
        order: places `[nnz]`, in order of latents; within a latent, in order of rows.
        rows: their rows `[nnz]`.
        offsets: where each latent's places begin `[width + 1]`.
    """

    order: Tensor
    rows: Tensor
    offsets: Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """Places in a `[row, latent]` matrix, row after row.

    Args:
        indices: latents `[nnz]`, int64; no latent twice in a row.
        offsets: where each row begins `[row + 1]`, int64, from 0 to nnz.
        width: how many latents there are.
    """

    indices: Tensor
    offsets: Tensor
    width: int

    @classmethod
    def of_mask(cls, mask: Tensor) -> Pattern:
        """Where a `[row, latent]` mask is true."""
        return cls.of_flat(mask.flatten().nonzero().squeeze(1), len(mask), mask.shape[1])

    @classmethod
    def of_flat(cls, places: Tensor, rows: int, width: int) -> Pattern:
        """Ascending places `row * width + latent` as a pattern."""
        row = torch.div(places, width, rounding_mode="floor")
        pattern = cls(places - row * width, group_offsets(row, rows), width)
        pattern.__dict__["rows"] = row
        return pattern

    @classmethod
    def of_columns(cls, latents: Tensor, width: int) -> Pattern:
        """The same number of latents in each row `[row, k]`."""
        n, k = latents.shape
        offsets = torch.arange(0, n * k + 1, max(k, 1), device=latents.device) if k else latents.new_zeros(n + 1)
        return cls(latents.reshape(-1), offsets, width)

    @property
    def nnz(self) -> int:
        """How many places."""
        return len(self.indices)

    @property
    def height(self) -> int:
        """How many rows."""
        return len(self.offsets) - 1

    @cached_property
    def rows(self) -> Tensor:
        """The row of each place `[nnz]`."""
        rows = torch.arange(self.height, device=self.offsets.device)
        return torch.repeat_interleave(rows, self.offsets.diff(), output_size=self.nnz)

    @cached_property
    def flat(self) -> Tensor:
        """Each place as `row * width + latent` `[nnz]`."""
        return self.rows * self.width + self.indices

    @cached_property
    def transposed(self) -> Transposed:
        """The places by latent; computed once, used by the gradient of each weight."""
        latents, order = torch.sort(self.indices, stable=True)
        return Transposed(order, self.rows[order], group_offsets(latents, self.width))

    def keep(self, mask: Tensor) -> Pattern:
        """Only the places where the mask `[nnz]` is true."""
        rows = self.rows[mask]
        kept = Pattern(self.indices[mask], group_offsets(rows, self.height), self.width)
        kept.__dict__["rows"] = rows
        return kept


def group_offsets(ascending: Tensor, size: int) -> Tensor:
    """Where each of `size` groups begins in a list of group numbers `[nnz]`, sorted: `[size + 1]`."""
    counts = torch.bincount(ascending, minlength=size)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
