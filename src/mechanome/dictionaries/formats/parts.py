"""What every foreign file boils down to: weights in one orientation, a recipe for the code, scales, and sites.

A reader turns a file into :class:`Parts`, a writer turns them into a file; the dictionary itself is built here alone.
Two conventions differ among tools and are converted here, exactly:

- `centered`: whether `b_dec` is taken from the input first. `W (x - b_dec) + b` is `W x + (b - W b_dec)`, so either
  convention holds any dictionary. Ours center autoencoders and leave transcoders.
- norms: tools that cannot keep a norm get it folded into the weights (:meth:`Parts.folded`); codes stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import NotServed
from mechanome.dictionaries.architectures import Recipe, RowNormalized, SkipTranscoder, Transcoder, recipe_of
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.decoders import LinearDecoder
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.norm import Affine


@dataclass(frozen=True, eq=False)
class Parts:
    """A dictionary of one encoder and one linear decoder, taken apart.

    Args:
        recipe: what chooses latents; never wrapped.
        w_enc: `[latent, d_in]`.
        b_enc: `[latent]`; of a gated dictionary the gate's.
        w_dec: `[latent, d_out]`.
        b_dec: `[d_out]`.
        centered: whether the encoder reads `x - b_dec`.
        selector: tensors of the selector, by name: `threshold`, `r_mag`, `b_mag`, `weight`.
        transcoder: whether it writes another place than it reads.
        skip: `[d_out, d_in]`, a linear map of the (normalized) input that is added to the output; None for none.
        norm, norm_out: from activations to the space of the weights; None for none.
        rows: "layer" or "length" where each row is normalized by itself; "" where not.
        sites_in, sites_out: where it reads and writes; empty where the file does not say.
        provenance: as in the spec.
    """

    recipe: Recipe
    w_enc: Tensor
    b_enc: Tensor
    w_dec: Tensor
    b_dec: Tensor
    centered: bool
    selector: Mapping[str, Tensor] = field(default_factory=dict)
    transcoder: bool = False
    skip: Tensor | None = None
    norm: Affine | None = None
    norm_out: Affine | None = None
    rows: str = ""
    sites_in: tuple[str, ...] = ()
    sites_out: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, dictionary: Dictionary) -> Parts:
        """A dictionary taken apart; its own tensors, not copies.

        Raises:
            NotServed: it is of another kind (a polynomial decoder, several sites).
        """
        spec = dictionary.spec
        linear = isinstance(dictionary, SparseAutoencoder) and isinstance(dictionary.decoder, LinearDecoder)
        if not linear or len(spec.site_widths) > 1:
            raise NotServed(
                f"a dictionary of architecture '{spec.architecture}' in this format",
                "it holds one linear encoder and decoder of one site only",
                "write format='mechanome'",
            )
        assert isinstance(dictionary, SparseAutoencoder)
        recipe = recipe_of(spec)
        return cls(
            recipe.form,
            dictionary.W_enc.detach(),
            dictionary.b_enc.detach(),
            dictionary.W_dec.detach(),
            dictionary.b_dec.detach(),
            centered=dictionary.centered,
            selector=dictionary.selector.state_dict(),
            transcoder=isinstance(recipe, Transcoder),
            skip=None if dictionary.W_skip is None else dictionary.W_skip.detach(),
            norm=dictionary.norm,
            norm_out=dictionary.norm_out,
            rows=recipe.rows if isinstance(recipe, RowNormalized) else "",
            sites_in=spec.sites_in,
            sites_out=spec.sites_out,
            provenance=spec.provenance,
        )

    def dictionary(self) -> SparseAutoencoder:
        """The dictionary, in `eval()` mode."""
        own = self.centering(not self.transcoder)
        recipe = own.recipe
        if own.transcoder:
            recipe = Transcoder(recipe) if own.skip is None else SkipTranscoder(recipe)
        elif own.rows:
            recipe = RowNormalized(recipe, own.rows)
        spec = recipe.spec(
            own.w_enc.shape[1],
            own.w_dec.shape[1],
            sites_in=own.sites_in,
            sites_out=own.sites_out,
            provenance=own.provenance,
        )
        built = recipe.assemble(spec, own.norm, own.norm_out)
        weights = {"encoder.W_enc": own.w_enc, "encoder.b_enc": own.b_enc, "decoder.W_dec": own.w_dec}
        weights |= {"decoder.b_dec": own.b_dec, **{f"selector.{name}": t for name, t in own.selector.items()}}
        weights |= {} if own.skip is None else {"W_skip": own.skip}
        norms = {name: t for name, t in built.state_dict().items() if name.startswith("norm")}
        built.load_state_dict({**norms, **weights})
        return built.eval().requires_grad_(False)

    def centering(self, centered: bool) -> Parts:
        """The same dictionary in the other convention."""
        if centered == self.centered:
            return self
        return replace(self._moved(self.b_dec if centered else -self.b_dec), centered=centered)

    def folded(self) -> Parts:
        """The same dictionary on activations as they are: norms move into weights and biases, which are then not
        centered. Without norms it stays as it is."""
        norm, out = self.norm or Affine.none(self.w_enc.shape[1]), self.norm_out or Affine.none(self.w_dec.shape[1])
        if norm.kind == out.kind == "none":
            return replace(self, norm=None, norm_out=None)
        plain = self.centering(False)
        norm, out = norm.to(torch.float64), out.to(torch.float64)
        scale = norm.matrix()
        w_enc = plain.w_enc.double() @ scale.T
        b_dec = out.invert(plain.b_dec.double().unsqueeze(0)).squeeze(0)
        skip = None
        if plain.skip is not None:
            skip = out.directions(scale @ plain.skip.double().T).T
            b_dec = b_dec - skip @ norm.shift
        moved = replace(plain, w_enc=w_enc)._moved(-norm.shift)
        return replace(
            moved,
            w_enc=w_enc.float(),
            w_dec=out.directions(plain.w_dec.double()).float(),
            b_dec=b_dec.float(),
            skip=None if skip is None else skip.float(),
            norm=None,
            norm_out=None,
        )

    def _moved(self, by: Tensor) -> Parts:
        """With `W by` added to the pre-activation, wherever a bias has a part in it."""
        offset = self.w_enc.double() @ by.double()
        selector = dict(self.selector)
        if "b_mag" in selector:
            selector["b_mag"] = (selector["b_mag"].double() + selector["r_mag"].double().exp() * offset).float()
        return replace(self, b_enc=(self.b_enc.double() + offset).float(), selector=selector)
