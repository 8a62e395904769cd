"""Sparse codes: which latents are active in which rows, and how strongly.

Rows of a dictionary's code have a few active latents among many, so a code is kept as lists (CSR): the latents of row r
are `indices[offsets[r]:offsets[r + 1]]`, and their values beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.sparse_products import transposed_product, weighted_rows


@dataclass(frozen=True, eq=False)
class SparseCodes:
    """Codes of rows: the value of each active latent, all others zero.

    Args:
        indices: latents `[nnz]`, int64.
        values: their values `[nnz]`.
        offsets: where each row begins `[row + 1]`, int64.
        width: how many latents there are.

    Raises:
        ShapeMismatch: lists of different lengths, or offsets that do not end where the lists do.
    """

    indices: Tensor
    values: Tensor
    offsets: Tensor
    width: int

    def __post_init__(self) -> None:
        if self.indices.shape != self.values.shape or self.indices.dim() != 1:
            why = f"{list(self.indices.shape)} indices and {list(self.values.shape)} values"
            raise ShapeMismatch("sparse codes", why, "give one value for each index")
        if self.offsets.dim() != 1 or not len(self.offsets) or int(self.offsets[-1]) != len(self.indices):
            why = f"{len(self.indices)} values, and offsets that do not end there"
            raise ShapeMismatch("sparse codes", why, "let offsets go from 0 to the number of values")

    @classmethod
    def at(cls, pattern: Pattern, values: Tensor) -> SparseCodes:
        """Values `[nnz]` at the places of a pattern."""
        codes = cls(pattern.indices, values, pattern.offsets, pattern.width)
        codes.__dict__["pattern"] = pattern
        return codes

    @classmethod
    def of_topk(cls, latents: Tensor, values: Tensor, width: int) -> SparseCodes:
        """From latents and values `[row, k]`; zero values are left out."""
        if latents.shape != values.shape or latents.dim() != 2:
            why = f"{list(latents.shape)} latents and {list(values.shape)} values"
            raise ShapeMismatch("top-k codes", why, "give both as [row, k]")
        return cls.at(Pattern.of_columns(latents, width), values.reshape(-1)).nonzero()

    @classmethod
    def of_dense(cls, z: Tensor) -> SparseCodes:
        """From a dense code `[row, latent]`."""
        if z.dim() != 2:
            raise ShapeMismatch(f"a code of shape {list(z.shape)}", "it must be [row, latent]", "flatten its rows")
        pattern = Pattern.of_mask(z != 0)
        return cls.at(pattern, z.flatten()[pattern.flat])

    @classmethod
    def cat(cls, parts: Sequence[SparseCodes]) -> SparseCodes:
        """Codes of more rows, one after another."""
        if not parts or len({part.width for part in parts}) != 1:
            raise BadInput("codes to join", "none, or of different widths", "give codes of one dictionary")
        ends = torch.tensor([0, *(len(part.indices) for part in parts)]).cumsum(0).tolist()
        offsets = [part.offsets[:-1] + end for part, end in zip(parts, ends)]
        last = parts[0].offsets.new_tensor([ends[-1]])
        indices, values = (torch.cat([getattr(part, name) for part in parts]) for name in ("indices", "values"))
        return cls(indices, values, torch.cat([*offsets, last]), parts[0].width)

    @cached_property
    def pattern(self) -> Pattern:
        """Where the values are."""
        return Pattern(self.indices, self.offsets, self.width)

    @property
    def rows(self) -> int:
        """How many rows."""
        return len(self.offsets) - 1

    def nonzero(self) -> SparseCodes:
        """The same code without stored zeros."""
        mask = self.values != 0
        return self if bool(mask.all()) else SparseCodes.at(self.pattern.keep(mask), self.values[mask])

    def dense(self) -> Tensor:
        """The code as a matrix `[row, latent]`."""
        z = self.values.new_zeros(self.rows * self.width)
        return z.index_put((self.pattern.flat,), self.values).view(self.rows, self.width)

    def matmul(self, weight: Tensor) -> Tensor:
        """Code times a matrix `[latent, d]`: `[row, d]`; differentiable in both.

        Raises:
            ShapeMismatch: a matrix of another number of latents.
        """
        _check_rows(weight, self.width, "latents")
        return weighted_rows(self.values, weight, self.pattern)

    def t_matmul(self, x: Tensor) -> Tensor:
        """Transposed code times rows `[row, d]`: `[latent, d]`.

        Raises:
            ShapeMismatch: another number of rows.
        """
        _check_rows(x, self.rows, "rows")
        return transposed_product(self.pattern, self.values, x)

    def counts(self) -> Tensor:
        """In how many rows each latent is active `[latent]`, int64."""
        return torch.bincount(self.indices[self.values != 0], minlength=self.width)

    def l0(self) -> Tensor:
        """How many latents are active in each row `[row]`, int64."""
        return torch.bincount(self.pattern.rows[self.values != 0], minlength=self.rows)

    def pick(self, latents: Sequence[int] | Tensor) -> Tensor:
        """Dense values of a few latents `[row, len(latents)]`.

        Raises:
            BadInput: a latent that does not exist.
        """
        wanted = torch.as_tensor(latents, dtype=torch.int64, device=self.indices.device).reshape(-1)
        if bool(((wanted < 0) | (wanted >= self.width)).any()):
            raise BadInput(f"latents {wanted.tolist()[:5]}", f"there are {self.width}", "count from 0")
        unique, column = torch.unique(wanted, return_inverse=True)
        place = torch.full((self.width,), -1, device=wanted.device)
        place[unique] = torch.arange(len(unique), device=wanted.device)
        at = place[self.indices]
        hit = at >= 0
        picked = self.values.new_zeros(self.rows, len(unique))
        return picked.index_put((self.pattern.rows[hit], at[hit]), self.values[hit])[:, column]

    def take(self, rows: Sequence[int] | Tensor) -> SparseCodes:
        """The code of some rows, in the order asked for; rows may repeat. A mask `[row]` takes where it is true.

        Raises:
            BadInput: a row that does not exist, or a mask of another length.
        """
        wanted = torch.as_tensor(rows, device=self.offsets.device)
        if wanted.dtype == torch.bool:
            _check_rows(wanted, self.rows, "rows")
            wanted = wanted.nonzero().squeeze(1)
        if len(wanted) and (wanted.is_floating_point() or int(wanted.min()) < 0 or int(wanted.max()) >= self.rows):
            raise BadInput("rows of a code", f"there are {self.rows}", "give whole numbers, counted from 0")
        lengths = self.offsets.diff()[wanted]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        within = torch.arange(int(offsets[-1]), device=offsets.device)
        within = within + torch.repeat_interleave(self.offsets[wanted] - offsets[:-1], lengths)
        return SparseCodes(self.indices[within], self.values[within], offsets, self.width)

    def to(self, *args: Any, **kwargs: Any) -> SparseCodes:
        """As `Tensor.to`: a device moves everything, a dtype only changes the values."""
        values = self.values.to(*args, **kwargs)
        return SparseCodes(self.indices.to(values.device), values, self.offsets.to(values.device), self.width)


def _check_rows(x: Tensor, n: int, what: str) -> None:
    if not x.dim() or len(x) != n:
        raise ShapeMismatch(f"a tensor of shape {list(x.shape)}", f"the code has {n} {what}", "give a row for each")
