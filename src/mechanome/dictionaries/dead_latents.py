"""AuxK: latents that no row has used for long try to explain what the others miss (Gao et al. 2024).

Their pre-activations are computed alone, so the cost grows with how many are dead; the gradient reaches their encoder
rows too, which is what brings them back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.trace import Trace


def auxiliary_loss(trace: Trace, dead: Tensor, k: int) -> Tensor:
    """Squared error of the dead latents' guess at the error, summed over d, mean over rows.

    Args:
        trace: of the batch; its error is taken without gradient.
        dead: indices `[dead]`, at least one.
        k: how many of them each row may use; scaled down by `dead / k` where there are fewer.

    Returns:
        `[]`; differentiable in the encoder and decoder rows of the dead latents (and what the decoder makes of sums).
    """
    model, few = trace.model, min(k, len(dead))
    weight, bias = model.W_enc[dead], model.b_enc[dead]
    shift = None if model.shift is None else model.shift.detach()
    pre = torch.nn.functional.linear(trace.x if shift is None else trace.x - shift, weight, bias)
    values, latents = torch.topk(pre, few, dim=1, sorted=False)
    codes = SparseCodes.at(Pattern.of_columns(latents, len(dead)), values.relu().reshape(-1))
    decoder = model.decoder
    guess = decoder.expand(codes.matmul(decoder.table[dead])) - decoder.b_dec
    return (few / k) * trace.mean((trace.error - guess).square().sum())
