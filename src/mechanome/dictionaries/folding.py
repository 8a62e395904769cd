"""Folding: the same dictionary without a norm, which is then part of its weights.

Codes stay as they are (values, thresholds and all), so only what reads activations and what writes them changes. The
result is proved on probe rows before it is returned.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, TooFewRows
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.norm import Affine

TOLERANCE = 1e-3
"""Largest difference of reconstructions, relative to the largest value; codes at a threshold may fall either way."""


@torch.no_grad()
def fold(dictionary: SparseAutoencoder, x: Tensor) -> SparseAutoencoder:
    """A dictionary that does the same with the norm in its weights.

    Args:
        dictionary: stays as it is.
        x: probe rows `[row, d_in]` of the activations it is for.

    Returns:
        one whose `norm` and `norm_out` are the identity; decoder rows are no longer of unit length.

    Raises:
        TooFewRows: no probe rows.
        BadInput: it does not reconstruct the probe rows as the original does.
    """
    if not len(x):
        raise TooFewRows("probe rows", "there are none", "give some activations of the dictionary's site")
    read, written = dictionary.norm, dictionary.norm_out
    folded = copy.deepcopy(dictionary)
    matrix = read.matrix()
    folded.W_enc.copy_(dictionary.W_enc @ matrix.T)
    folded.decoder.fold(written)
    offset = read.shift @ matrix
    lost = offset if not dictionary.centered else offset + dictionary.b_dec - folded.b_dec @ matrix
    folded.b_enc.sub_(dictionary.W_enc @ lost)
    folded.selector.bias_moved(-(dictionary.W_enc @ lost))
    if dictionary.W_skip is not None and folded.W_skip is not None:
        folded.b_dec.sub_(written.directions(dictionary.W_skip @ offset))
        folded.W_skip.copy_(written.directions((dictionary.W_skip @ matrix.T).T).T)
    folded.set_norms(Affine.none(dictionary.spec.d_in), Affine.none(dictionary.spec.d_out))
    _prove(dictionary, folded, x)
    return folded


def _prove(dictionary: SparseAutoencoder, folded: SparseAutoencoder, x: Tensor) -> None:
    expected, found = dictionary(x), folded(x)
    apart = float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
    if not apart <= TOLERANCE:
        raise BadInput("folding", f"reconstructions differ by {apart:.1e} of the largest value", "keep the norm")
