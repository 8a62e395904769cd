"""What a decoder is: a table with a row for each latent, and what is made of the code's sum of rows.

The linear decoder's table is `W_dec` and nothing more is made of the sum; the polynomial one's is narrower, and its
sums enter a polynomial. Prefixes of latents (Matryoshka) are prefixes of the sum, so every decoder has them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mechanome.core.errors import BadInput
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.pattern import Pattern, group_offsets
from mechanome.dictionaries.sparse_products import weighted_rows


class Decoder(nn.Module):
    """Base of all decoders.

    Args:
        width: how many latents.
        d_out: what it writes.
        groups: how many latents each group has, first group first; together `width`. Empty for a single group.

    Raises:
        BadInput: groups that do not add up to the width.
    """

    b_dec: nn.Parameter

    def __init__(self, width: int, d_out: int, groups: tuple[int, ...] = ()) -> None:
        super().__init__()
        if groups and (min(groups) < 1 or sum(groups) != width):
            raise BadInput(f"groups {list(groups)}", f"they must be positive and add up to {width}", "change them")
        self.groups = tuple(groups)
        self.b_dec = nn.Parameter(torch.zeros(d_out))

    @property
    def table(self) -> Tensor:
        """Rows that the code sums `[latent, r]`."""
        raise NotImplementedError

    def expand(self, sums: Tensor) -> Tensor:
        """Sums of rows `[..., r]` as activations `[..., d_out]`, bias included."""
        raise NotImplementedError

    def directions(self) -> Tensor:
        """What each latent writes, to first order `[latent, d_out]`."""
        raise NotImplementedError

    def norms(self) -> Tensor:
        """Length of what each latent writes alone, at value 1 `[latent]`; differentiable."""
        raise NotImplementedError

    def fold(self, norm: Affine) -> None:
        """Write raw activations from now on, instead of what `norm` maps them to."""
        raise NotImplementedError

    def before_step(self) -> None:
        """Change gradients before the optimizer sees them."""

    def after_step(self) -> None:
        """Mend constraints that the optimizer's step broke."""

    def forward(self, codes: SparseCodes) -> Tensor:
        """Activations `[row, d_out]` of codes."""
        return self.expand(codes.matmul(self.table))

    def stages(self, codes: SparseCodes) -> Tensor:
        """Activations from the first group only, the first two, ... all: `[row, stage, d_out]`."""
        if not self.groups:
            return self(codes).unsqueeze(1)
        return self.expand(_prefix_sums(codes, self.table, self.groups))


def _prefix_sums(codes: SparseCodes, table: Tensor, groups: tuple[int, ...]) -> Tensor:
    """Sums of rows over growing prefixes of latents `[row, stage, r]`, in one pass: places sorted by row and group."""
    pattern, stages = codes.pattern, len(groups)
    ends = torch.tensor(groups, device=codes.indices.device).cumsum(0)
    bags = pattern.rows * stages + torch.bucketize(pattern.indices, ends, right=True)
    bags, order = torch.sort(bags, stable=True)
    grouped = Pattern(pattern.indices[order], group_offsets(bags, codes.rows * stages), codes.width)
    grouped.__dict__["rows"] = bags
    sums = weighted_rows(codes.values.index_select(0, order), table, grouped)
    return sums.view(codes.rows, stages, -1).cumsum(1)
