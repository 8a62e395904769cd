"""Dead latents start again where the dictionary is worst (resampling, Bricken et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.crew import Crew
from mechanome.dictionaries.decoders import LinearDecoder

ENCODER_SHARE = 0.2
"""Length of a revived encoder row, in mean lengths of all: weak at first, so that it disturbs little."""


@torch.no_grad()
def revive(
    model: SparseAutoencoder, optimizer: torch.optim.Adam, dead: Tensor, x: Tensor, error: Tensor, crew: Crew
) -> None:
    """Point dead latents at rows drawn by their squared error, and forget their gradients.

    Args:
        model: its encoder rows take the direction of what the row's input is, its linear decoder's what is missed.
        optimizer: whose moments of these rows become zero.
        dead: latents `[dead]`.
        x: normalized rows `[row, d_in]`.
        error: what the reconstruction misses `[row, d_out]`.
        crew: the first process draws for all.
    """
    # A row that is no number is not drawn; the fit refuses the loss of this step right after.
    weights = error.square().sum(1).nan_to_num(0.0, 0.0).clamp_max(1e30) + 1e-12
    rows = torch.multinomial(weights, len(dead), replacement=True)
    seen = x[rows] if model.shift is None else x[rows] - model.shift
    missed = error[rows]
    crew.agree((seen, missed))
    # An autoencoder reads what it writes, so there the missed part is the better thing to read, too.
    reads = missed if model.centered else seen
    length = ENCODER_SHARE * model.W_enc.norm(dim=1).mean()
    model.W_enc[dead] = functional.normalize(reads, dim=1) * length
    model.b_enc[dead] = 0
    changed = [model.W_enc, model.b_enc]
    if isinstance(model.decoder, LinearDecoder):
        model.W_dec[dead] = functional.normalize(missed, dim=1)
        changed.append(model.W_dec)
    for parameter in changed:
        for name in ("exp_avg", "exp_avg_sq"):
            optimizer.state[parameter][name][dead] = 0
