"""The norm before attention or an MLP, folded into the weights that read behind it.

A reader sees `gain * normalized + shift`. With the gain moved into the weight, and for a LayerNorm its rows centred,
what is left as input is the normalized stream itself: there, directions can be compared with each other.

| block | attention reads | the MLP reads |
|---|---|---|
| norm before each part | norm of `resid_pre` | norm of `resid_mid` |
| parallel parts | norm of `resid_pre` | norm of `resid_pre` |
| norm after each part (BERT) | `resid_pre` as it is | `resid_mid` as it is |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from mechanome.engine import Model, Site
from mechanome.engine.parameters import effective_gain, epsilon

Reader = Literal["attention", "mlp"]


@dataclass(frozen=True)
class Fold:
    """The norm a part reads through.

    Args:
        stream: the site that is normalized.
        gain, shift: of the norm, `[d_model]`; None where there is no norm.
        centred: whether it takes the mean off.
        eps: what it adds to the variance.
        seen: the site of its output, what the part's matrices see.
    """

    stream: Site
    gain: Tensor | None = field(default=None, repr=False)
    shift: Tensor | None = field(default=None, repr=False)
    centred: bool = False
    eps: float = 0.0
    seen: Site | None = None

    @classmethod
    def of(cls, model: Model, layer: int, reader: Reader, tower: str | None = None) -> Fold:
        """The fold of one block.

        Raises:
            NotServed: a norm whose gain is not known (`mechanome.engine.parameters.gain`).
            UnknownSite: a layer that does not exist.
        """
        model.tap(Site("resid_pre", layer, tower=tower))  # an unknown layer is refused here
        block = model.architecture.tower(tower).blocks[layer]
        early = reader == "attention" or block.style == "parallel"
        stream = Site("resid_pre" if early else "resid_mid", layer, tower=tower)
        role = "ln1" if reader == "attention" or "ln2" not in block.roles else "ln2"
        norm = block.roles[role].module if block.style != "post" and role in block.roles else None
        if norm is None or isinstance(norm, nn.Identity):
            return cls(stream)
        shape = getattr(norm, "normalized_shape", None)
        bare = getattr(norm, "weight", None) is None
        gain = torch.ones(shape) if bare and shape is not None else effective_gain(norm).float()
        shift = getattr(norm, "bias", None)
        shift = None if shift is None else shift.detach().float()
        return cls(stream, gain, shift, _centres(norm, gain), epsilon(norm), Site(role, layer, tower=tower))

    def matrix(self, weight: Tensor) -> Tensor:
        """A weight `[d_model, out]` for the normalized stream instead of the norm's output."""
        if self.gain is None:
            return weight
        folded = weight * self.gain.to(weight)[:, None]
        return folded - folded.mean(0) if self.centred else folded

    def offset(self, weight: Tensor) -> Tensor:
        """What the norm's shift adds through a weight, `[out]`."""
        return weight.new_zeros(weight.shape[1]) if self.shift is None else self.shift.to(weight) @ weight

    def normalize(self, stream: Tensor) -> Tensor:
        """The normalized stream `[..., d_model]`, without gain and shift."""
        if self.gain is None:
            return stream
        x = stream - stream.mean(-1, keepdim=True) if self.centred else stream
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


def _centres(norm: nn.Module, gain: Tensor) -> bool:
    """Whether a norm takes the mean off, found by trying."""
    if isinstance(norm, nn.LayerNorm):
        return True
    like = next(norm.parameters(), gain)
    x = torch.randn(gain.shape, generator=torch.Generator().manual_seed(0)).to(like)
    with torch.no_grad():
        one, other = (type(norm).forward(norm, y) for y in (x, x + 1.0))
    return bool((one - other).abs().max() < 1e-2 * one.abs().max())
