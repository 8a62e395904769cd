"""The linear decoder: a direction for each latent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mechanome.dictionaries.decoders.decoder import Decoder
from mechanome.dictionaries.norm import Affine


class LinearDecoder(Decoder):
    """`z W_dec + b_dec`.

    Args:
        width, d_out, groups: as :class:`Decoder`.
        parts: widths of the sites it writes, together `d_out`, where there are several.
        unit: keep each direction at length 1; the part of a gradient along a direction is removed, since the step it
            would take is undone.
    """

    def __init__(
        self, width: int, d_out: int, groups: tuple[int, ...] = (), *, parts: tuple[int, ...] = (), unit: bool = True
    ) -> None:
        super().__init__(width, d_out, groups)
        self.parts, self.unit = parts or (d_out,), unit
        self.W_dec = nn.Parameter(nn.functional.normalize(torch.randn(width, d_out), dim=1))

    @property
    def table(self) -> Tensor:
        return self.W_dec

    def expand(self, sums: Tensor) -> Tensor:
        return sums + self.b_dec

    def directions(self) -> Tensor:
        return self.W_dec

    def norms(self) -> Tensor:
        """Lengths summed over sites: a latent that writes to two is counted at both (Lindsey et al. 2024)."""
        lengths = [part.norm(dim=1) for part in self.W_dec.split(self.parts, dim=1)]
        return lengths[0] if len(lengths) == 1 else torch.stack(lengths).sum(0)

    @torch.no_grad()
    def fold(self, norm: Affine) -> None:
        self.unit = False
        self.W_dec.copy_(norm.directions(self.W_dec))
        self.b_dec.copy_(norm.invert(self.b_dec))

    @torch.no_grad()
    def before_step(self) -> None:
        if self.unit and self.W_dec.grad is not None:
            along = torch.bmm(self.W_dec.grad.unsqueeze(1), self.W_dec.unsqueeze(2)).squeeze(2)  # no temporary [F, d]
            self.W_dec.grad.addcmul_(self.W_dec, along, value=-1)

    @torch.no_grad()
    def after_step(self) -> None:
        if self.unit:
            self.W_dec.div_(self.W_dec.norm(dim=1, keepdim=True).clamp_min_(1e-12))
