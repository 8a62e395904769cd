"""The sparse autoencoder family: an encoder, a selector, a decoder, and perhaps a skip connection.

Every architecture of :mod:`mechanome.dictionaries.architectures` is this one class with other parts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mechanome.core.errors import BadInput
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.decoders import Decoder, LinearDecoder, PolynomialDecoder
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.encoder import AffineEncoder
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.scores import Scorer
from mechanome.dictionaries.selectors import Selector
from mechanome.dictionaries.spec import DictionarySpec


class SparseAutoencoder(Dictionary):
    """`decode(select(encode(x)))`, in parts.

    Args:
        spec: what it is.
        selector: which latents are active.
        decoder: from codes back.
        centered: take `b_dec` from the input first (autoencoders do, transcoders do not).
        skip: add a linear map of the input.
        norm, norm_out: as :class:`Dictionary`.
    """

    def __init__(
        self,
        spec: DictionarySpec,
        selector: Selector,
        decoder: Decoder,
        *,
        centered: bool = True,
        skip: bool = False,
        norm: Affine | None = None,
        norm_out: Affine | None = None,
    ) -> None:
        super().__init__(spec, norm, norm_out)
        if centered and spec.d_in != spec.d_out:
            sizes = f"it reads {spec.d_in} and writes {spec.d_out}"
            raise BadInput("a centered autoencoder", sizes, "use a Transcoder")
        self.encoder = AffineEncoder(spec.d_in, spec.width)
        self.selector, self.decoder, self.centered = selector, decoder, centered
        self.W_skip = nn.Parameter(torch.zeros(spec.d_out, spec.d_in)) if skip else None

    @property
    def W_enc(self) -> nn.Parameter:
        """Encoder weights `[latent, d_in]`."""
        return self.encoder.W_enc

    @property
    def b_enc(self) -> nn.Parameter:
        """Encoder biases `[latent]`."""
        return self.encoder.b_enc

    @property
    def W_dec(self) -> nn.Parameter:
        """Decoder weights `[latent, d_out]`.

        Raises:
            AttributeError: the decoder is not linear.
        """
        if not isinstance(self.decoder, LinearDecoder):
            raise AttributeError("W_dec: this decoder is not linear; use atoms()")
        return self.decoder.W_dec

    @property
    def b_dec(self) -> nn.Parameter:
        """Output bias `[d_out]`."""
        return self.decoder.b_dec

    @property
    def thresholds(self) -> Tensor | None:
        """Above which pre-activations are active at inference, where the selector works so: `[latent]` or `[]`."""
        return getattr(self.selector, "threshold", None)

    @property
    def parts(self) -> dict[str, int] | None:
        """Width of each site written, where there are several."""
        return dict(zip(self.spec.sites_out, self.spec.site_widths)) if len(self.spec.sites_out) > 1 else None

    @property
    def shift(self) -> Tensor | None:
        """What is taken from the (normalized) input before the encoder `[d_in]`."""
        return self.decoder.b_dec if self.centered else None

    def chosen(self, x: Tensor, scorer: Scorer) -> tuple[Tensor, SparseCodes]:
        """Pre-activations `[nnz]` and codes of normalized rows `[row, d_in]`, differentiable in all weights and `x`."""
        pattern, pre = self.encoder.at_chosen(x, self.shift, self.selector, scorer)
        return pre, SparseCodes.at(pattern, self.selector.values(pre, pattern, self.b_enc))

    def pre(self, x: Tensor, latents: Tensor | None = None) -> Tensor:
        """Pre-activations `[row, latent]` of activations `[..., d_in]`, of some latents only where given; dense."""
        return self.encoder.pre(self.norm(self.rows_of(x)), self.shift, latents)

    def encode_normed(self, x: Tensor) -> SparseCodes:
        return self.chosen(x, Scorer())[1].nonzero()

    def decode_normed(self, codes: SparseCodes, x: Tensor | None) -> Tensor:
        return self.skipped(self.decoder(codes), x)

    def skipped(self, reconstruction: Tensor, x: Tensor | None) -> Tensor:
        """A reconstruction with the skip connection's part added, where there is one."""
        if self.W_skip is None:
            return reconstruction
        if x is None:
            raise BadInput("decode", "a skip connection reads the input too", "pass x")
        return reconstruction + x @ self.W_skip.T

    def directions(self) -> Tensor:
        return self.decoder.directions()


class PolynomialAutoencoder(SparseAutoencoder):
    """An autoencoder whose latents also act in pairs and triples (paper 42)."""

    decoder: PolynomialDecoder

    def pair_atoms(self, pairs: Tensor) -> Tensor:
        """What two latents add beyond their sum when both are 1 `[pair, d_out]`, raw space; `pairs [pair, 2]`."""
        return self.norm_out.directions(self.decoder.pair_atoms(pairs))

    def triple_atoms(self, triples: Tensor) -> Tensor:
        """What three different latents add beyond pairs when all are 1 `[triple, d_out]`, raw space."""
        return self.norm_out.directions(self.decoder.triple_atoms(triples))

    def interaction_strength(self, pairs: Tensor, codes: SparseCodes | None = None) -> Tensor:
        """Length of pair atoms `[pair]`; with codes, times the mean of `z_i z_j` over their rows."""
        strength = self.pair_atoms(pairs).norm(dim=1)
        if codes is None:
            return strength
        latents, at = torch.unique(pairs, return_inverse=True)
        z = codes.pick(latents)
        return strength * (z[:, at[:, 0]] * z[:, at[:, 1]]).mean(0)

    @torch.no_grad()
    def interaction_share(self, codes: SparseCodes) -> float:
        """Mean length of the interactions over mean length of the linear part, of some codes (paper 42, section 8)."""
        sums = codes.matmul(self.decoder.table)
        more = self.decoder.interactions(sums)
        linear = self.decoder.expand(sums) - self.decoder.b_dec - more
        return float(more.norm(dim=1).mean() / linear.norm(dim=1).mean())
