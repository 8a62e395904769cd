"""Pre-activations of every latent, to choose the active ones by: the only dense product of a training step.

In `exact` they are float32. `bf16` and `int8` are cheaper estimates that only choose; the values of the chosen are then
computed exactly. The output buffer is kept between calls, since fresh pages for `[row, latent]` cost as much as
filling them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mechanome.core.errors import UnknownName, nearest


class Scorer:
    """Computes `x W^T + b` into a buffer it owns; the result holds until the next call.

    Args:
        precision: "exact", "bf16" or "int8".

    Raises:
        UnknownName: another precision.
    """

    def __init__(self, precision: str = "exact") -> None:
        if precision not in PRECISIONS:
            raise UnknownName(f"selection {precision!r}", "it does not exist", nearest(precision, PRECISIONS))
        self.precision = precision
        self._buffer = torch.empty(0)

    @property
    def exact(self) -> bool:
        """Whether scores are the values themselves."""
        return self.precision == "exact"

    @torch.no_grad()
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Scores `[row, latent]` of rows `x [row, d]` for `weight [latent, d]` and `bias [latent]`."""
        dtype = torch.bfloat16 if self.precision == "bf16" else torch.float32
        size = len(x) * len(weight)
        if self._buffer.numel() < size or self._buffer.dtype != dtype or self._buffer.device != x.device:
            self._buffer = torch.empty(size, dtype=dtype, device=x.device)
        out = self._buffer[:size].view(len(x), len(weight))
        return PRECISIONS[self.precision](x, weight, bias, out)


def _exact(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.T, out=out)


def _bf16(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    return torch.addmm(bias.bfloat16(), x.bfloat16(), weight.bfloat16().T, out=out)


def _int8(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    (rows, row_scale), (latents, latent_scale) = _quantized(x), _quantized(weight)
    torch.mul(torch._int_mm(rows, latents.T), latent_scale.T, out=out)
    return torch.addcmul(bias, out, row_scale, out=out)


def _quantized(w: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in eight bits, each with its own scale `[row, 1]`."""
    scale = w.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
    return (w / scale).round_().to(torch.int8), scale


PRECISIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "exact": _exact,
    "bf16": _bf16,
    "int8": _int8,
}
