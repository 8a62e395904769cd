"""What a recipe is: the sizes and settings of a dictionary to be fitted, and how to build one.

A recipe chooses a selector, a decoder and penalties; the rest (encoder, loss, steps) is the same for all. Its fields
are JSON, kept in the dictionary's spec, so that a saved dictionary can be built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.core.formats import plain
from mechanome.dictionaries.architectures.settings import canonical
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.decoders import Decoder, LinearDecoder
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.selectors import Selector
from mechanome.dictionaries.spec import DictionarySpec
from mechanome.dictionaries.trace import Trace


@dataclass(frozen=True)
class Recipe:
    """Base of all recipes.

    Args:
        width: how many latents.
        dead_after: a latent that no row has used for so many rows counts as dead; by name only.

    Raises:
        BadInput: a field of another kind than its annotation says, NaN, or sizes below 1.
    """

    width: int
    dead_after: int = field(default=100_000, kw_only=True)

    architecture: ClassVar[str]
    centered: ClassVar[bool] = True
    skip: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value = canonical(self.architecture, each.name, str(each.type), getattr(self, each.name))
            object.__setattr__(self, each.name, value)
        if self.width < 1 or self.dead_after < 1:
            why = f"width {self.width}, dead_after {self.dead_after}"
            raise BadInput(self.architecture, why, "both must be at least 1")

    @property
    def form(self) -> Recipe:
        """The recipe that decides about codes: this one, or the one it is wrapped around."""
        return self

    def try_parts(self) -> None:
        """Make selector and decoder without memory, for what they refuse.

        Raises:
            BadInput: as they do.
        """
        with torch.device("meta"):
            self.selector()
            self.decoder(1)

    def kind(self) -> type[SparseAutoencoder]:
        """The class of its dictionaries."""
        return SparseAutoencoder

    def selector(self) -> Selector:
        """A new selector."""
        raise NotImplementedError

    def decoder(self, d_out: int, parts: tuple[int, ...] = ()) -> Decoder:
        """A new decoder; `parts` are the widths of the sites it writes, where there are several."""
        return LinearDecoder(self.width, d_out, parts=parts)

    def penalties(self, trace: Trace) -> dict[str, Tensor]:
        """Terms added to the reconstruction loss, by name; each `[]`, already weighted."""
        return {}

    def rates(self, model: SparseAutoencoder) -> dict[str, float]:
        """Learning rates relative to the common one, by parameter name, where other than 1."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The fields as JSON."""
        return {f.name: _as_json(getattr(self, f.name)) for f in fields(self) if f.init}

    def spec(
        self,
        d_in: int,
        d_out: int | None = None,
        *,
        sites_in: tuple[str, ...] = (),
        sites_out: tuple[str, ...] | None = None,
        site_widths: tuple[int, ...] = (),
        provenance: Mapping[str, Any] | None = None,
    ) -> DictionarySpec:
        """The spec of a dictionary of this recipe.

        Raises:
            ShapeMismatch: it writes where it reads, and the two widths differ.
        """
        if self.centered and d_out not in (None, d_in):
            raise ShapeMismatch(
                f"{self.architecture} from width {d_in} to {d_out}", "it writes what it reads", "wrap it in Transcoder"
            )
        return DictionarySpec(
            architecture=self.architecture,
            d_in=d_in,
            d_out=d_in if d_out is None else d_out,
            width=self.width,
            sites_in=sites_in,
            sites_out=sites_in if sites_out is None else sites_out,
            site_widths=site_widths,
            settings=self.settings(),
            provenance=dict(provenance or {}),
        )

    def assemble(
        self, spec: DictionarySpec, norm: Affine | None = None, norm_out: Affine | None = None
    ) -> SparseAutoencoder:
        """A new dictionary with random weights, from torch's generator."""
        decoder = self.decoder(spec.d_out, spec.site_widths)
        recipe = {"centered": self.centered, "skip": self.skip}
        return self.kind()(spec, self.selector(), decoder, **recipe, norm=norm, norm_out=norm_out)

    def build(self, d_in: int, d_out: int | None = None, **spec: Any) -> SparseAutoencoder:
        """:meth:`spec` and :meth:`assemble` in one."""
        return self.assemble(self.spec(d_in, d_out, **spec))


def _as_json(value: Any) -> Any:
    if isinstance(value, Recipe):
        return {"architecture": value.architecture, **value.settings()}
    return plain(value)
