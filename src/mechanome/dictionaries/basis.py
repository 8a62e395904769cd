"""Latents as coordinates: what lets edits and circuits speak of a dictionary's latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.dictionary import Dictionary


@dataclass(frozen=True, eq=False)
class LatentBasis:
    """Values of latents `[..., k]` as coordinates of activations `[..., d]`; a `Basis` of the engine.

    `decode` is linear in the coordinates up to a constant, the reconstruction of an empty code; latents that were not
    chosen are silent in it.

    Args:
        dictionary: reads and writes one site.
        latents: which, in order; None for all.

    Raises:
        BadInput: the dictionary writes elsewhere than it reads, or a latent does not exist or occurs twice.
    """

    dictionary: Dictionary
    latents: Sequence[int] | Tensor | None = None
    _atoms: Tensor = field(init=False, repr=False)
    _constant: Tensor = field(init=False, repr=False)
    _chosen: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        spec = self.dictionary.spec
        if spec.sites_in != spec.sites_out or len(spec.sites_in) > 1:
            raise BadInput("basis", "the dictionary writes elsewhere than it reads", "use an autoencoder of one site")
        every = torch.arange(spec.width)
        chosen = every if self.latents is None else torch.as_tensor(self.latents, dtype=torch.int64).reshape(-1)
        inside = bool(((chosen >= 0) & (chosen < spec.width)).all())
        if not inside or len(chosen.unique()) != len(chosen) or not len(chosen):
            why = f"latents must be different and from 0 to {spec.width - 1}"
            raise BadInput(f"latents {chosen.tolist()[:5]}", why, "check them")
        object.__setattr__(self, "_chosen", chosen)
        with torch.no_grad():
            object.__setattr__(self, "_atoms", self.dictionary.atoms()[chosen])
            silent = SparseCodes.of_dense(self._atoms.new_zeros(1, spec.width))
            object.__setattr__(self, "_constant", self.dictionary.decode(silent)[0])

    def encode(self, x: Tensor) -> Tensor:
        """Values `[..., k]` of the latents in activations `[..., d]`."""
        return self.dictionary.encode(x).pick(self._chosen).view(*x.shape[:-1], len(self._chosen)).to(x.dtype)

    def decode(self, c: Tensor) -> Tensor:
        """Activations `[..., d]` of values `[..., k]`."""
        if c.shape[-1] != len(self._chosen):
            why = f"{c.shape[-1]} coordinates, the basis has {len(self._chosen)}"
            raise ShapeMismatch("coordinates", why, "give one a latent")
        return c @ self._atoms.to(c) + self._constant.to(c)
