"""Norms in closed form: what they make of a vector, and of a small change of it.

Edge scores send one gradient per head through the norm in front of it. Autograd would need a pass per head; a layer
norm or root-mean-square norm has a Jacobian of rank one beside a diagonal, so one formula serves all heads at once.
Whether a module really is such a norm is measured, not read from its name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mechanome.core import NotServed
from mechanome.engine.architecture import Part
from mechanome.engine.parameters import effective_gain, epsilon
from mechanome.engine.plan import activate


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm `y = gain * (x - mean) * scale + bias`, with `scale` the inverse deviation; no mean in an RMS norm.

    Args:
        part: the module.
        gain: `[d_model]`.
        eps: added to the variance.
        centered: whether the mean is taken out.
    """

    part: Part
    gain: Tensor
    eps: float
    centered: bool

    @classmethod
    def of(cls, part: Part, dtype: torch.dtype) -> Norm:
        """The norm that a module computes.

        Args:
            part: the module.
            dtype: of the computations with it.

        Raises:
            NotServed: it is neither a layer norm nor a root-mean-square norm.
        """
        gain, eps = effective_gain(part.module), epsilon(part.module)
        x = torch.randn(4, len(gain), generator=torch.Generator().manual_seed(0)).to(gain) + 0.3
        for centered in (isinstance(part.module, nn.LayerNorm), not isinstance(part.module, nn.LayerNorm)):
            found = cls(part, gain.to(dtype), eps, centered)
            # What a norm adds is the same for every input, so differences of outputs show the rest.
            claimed, seen = found.normalized(x.to(dtype))[0] * found.gain, found(x)
            error = ((claimed - claimed[:1]) - (seen - seen[:1]).to(dtype)).abs().max()
            if error <= 1e-3 * claimed.abs().max() or gain.dtype in (torch.float16, torch.bfloat16):
                return found
        raise NotServed(
            f"{part.path}", f"{type(part.module).__name__} is no layer norm or root-mean-square norm", "score nodes"
        )

    def __call__(self, x: Tensor) -> Tensor:
        """What the module makes of `x [..., d_model]`."""
        parameter = next(self.part.module.parameters())
        with torch.no_grad(), activate(None):
            return self.part.module(x.to(parameter.dtype)).to(x.dtype)

    def normalized(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input without mean and length `[..., d_model]`, and the scale `[..., 1]` that it was multiplied by."""
        x = x - x.mean(-1, keepdim=True) if self.centered else x
        scale = (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()
        return x * scale, scale

    def readers(self, weight: Tensor) -> Tensor:
        """Maps behind this norm with its gain and centering folded in: `[..., d_model, width]` to the same."""
        weight = self.gain[:, None] * weight
        return weight - weight.mean(-2, keepdim=True) if self.centered else weight

    def change(self, x: Tensor, by: Tensor, linear: bool = False) -> Tensor:
        """The first-order change of the output at `x [token, d_model]` along `by [..., token, d_model]`.

        Args:
            x: where. by: along what. linear: with a constant scale.
        """
        flat, scale = self.normalized(x)
        by = by - by.mean(-1, keepdim=True) if self.centered else by
        if linear:
            return by * (scale * self.gain)
        along = torch.einsum("...td,td->...t", by, flat) / x.shape[-1]
        return (by - along[..., None] * flat) * (scale * self.gain)
