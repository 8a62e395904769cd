"""What some dictionaries can do beyond encoding and decoding: `isinstance(dictionary, Skip)` asks.

A capability is a list of attributes; whatever has them all, and not as None, has the capability. (A `Protocol` would
look at classes only, while the parts of a dictionary decide what it can.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Capability(type):
    """The class of capabilities: being an instance means having the attributes that the class annotates."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return all(getattr(instance, name, None) is not None for name in cls.__annotations__)


class LinearEncoder(metaclass=Capability):
    """Latents read a direction each: `W_enc [latent, d_in]`, `b_enc [latent]`, and `pre(x, latents)` of chosen ones."""

    W_enc: Tensor
    b_enc: Tensor
    pre: Callable[..., Tensor]


class Thresholded(metaclass=Capability):
    """A latent is active above its threshold, whatever the others do: `thresholds [latent]` or `[]`."""

    thresholds: Tensor


class MultiSite(metaclass=Capability):
    """Several sites at once: `atoms(site)` gives the part written to each, of these widths."""

    parts: dict[str, int]


class Skip(metaclass=Capability):
    """A linear map of the input is added: `W_skip [d_out, d_in]`; `decode` needs the input too."""

    W_skip: Tensor


class Interacting(metaclass=Capability):
    """Latents act in pairs too: `pair_atoms(pairs)` and `interaction_strength(pairs, codes)`."""

    pair_atoms: Callable[..., Tensor]
    interaction_strength: Callable[..., Tensor]
