"""Recipes around recipes: the same codes, read or written elsewhere.

A transcoder writes another site than it reads (Dunefsky et al. 2024), a skip transcoder adds a linear map of its input
(Paulo et al. 2025), a crosscoder reads and writes several sites at once (Lindsey et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.dictionaries.architectures.recipe import Recipe
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.decoders import Decoder
from mechanome.dictionaries.selectors import Selector
from mechanome.dictionaries.trace import Trace


@dataclass(frozen=True)
class Wrapped(Recipe):
    """Base of recipes around another.

    Args:
        inner: decides about codes and penalties.

    Raises:
        BadInput: the inner one is no recipe, or itself wrapped.
    """

    width: int = field(init=False)
    dead_after: int = field(init=False)
    inner: Recipe

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Recipe):
            raise BadInput(f"{self.architecture} of {self.inner!r}", "it is no recipe", "give one such as TopK(4096)")
        if isinstance(self.inner, Wrapped):
            why = f"{self.inner.architecture} is wrapped itself"
            raise BadInput(f"{self.architecture} of {self.inner.architecture}", why, "wrap a plain recipe")
        for name in ("width", "dead_after"):
            object.__setattr__(self, name, getattr(self.inner, name))

    @property
    def form(self) -> Recipe:
        return self.inner

    def kind(self) -> type[SparseAutoencoder]:
        return self.inner.kind()

    def selector(self) -> Selector:
        return self.inner.selector()

    def decoder(self, d_out: int, parts: tuple[int, ...] = ()) -> Decoder:
        return self.inner.decoder(d_out, parts)

    def penalties(self, trace: Trace) -> dict[str, Tensor]:
        return self.inner.penalties(trace)

    def rates(self, model: SparseAutoencoder) -> dict[str, float]:
        return self.inner.rates(model)


@dataclass(frozen=True)
class Transcoder(Wrapped):
    """Reads one site, writes another; nothing is taken from the input first."""

    architecture: ClassVar[str] = "transcoder"
    centered: ClassVar[bool] = False


@dataclass(frozen=True)
class SkipTranscoder(Transcoder):
    """A transcoder that adds a linear map of its input."""

    architecture: ClassVar[str] = "skip_transcoder"
    skip: ClassVar[bool] = True


@dataclass(frozen=True)
class Crosscoder(Wrapped):
    """Reads and writes several sites (or one site of several models) with one code."""

    architecture: ClassVar[str] = "crosscoder"
