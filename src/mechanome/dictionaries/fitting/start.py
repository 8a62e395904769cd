"""Where a fit starts: weights from the first rows, so that what is the same in every row need not be learned."""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.dictionaries.architectures import Recipe
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.decoders import LinearDecoder, PolynomialDecoder
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.spec import DictionarySpec


@torch.no_grad()
def started(
    recipe: Recipe, spec: DictionarySpec, norm: Affine, norm_out: Affine, x: Tensor, target: Tensor, seed: int
) -> SparseAutoencoder:
    """A dictionary with starting weights.

    The output bias is the mean of the output. Encoder and decoder rows are the same random directions where both live
    in one space (a polynomial decoder's linear part comes as near to that as its rank allows).

    Args:
        recipe, spec, norm, norm_out: of the dictionary.
        x: normalized input `[row, d_in]`, of which the mean is used.
        target: normalized output `[row, d_out]`, likewise.
        seed: of the directions.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = recipe.assemble(spec, norm, norm_out).to(x.device)
    model.b_dec.copy_(target.mean(0))
    if model.shift is None:
        model.b_enc.copy_(-(model.W_enc @ x.mean(0)))
        return model
    if isinstance(model.decoder, LinearDecoder):
        model.W_dec.copy_(model.W_enc)
    elif isinstance(model.decoder, PolynomialDecoder):
        model.decoder.C[0].copy_(model.W_enc.T @ model.decoder.blocks()[0])
    return model
