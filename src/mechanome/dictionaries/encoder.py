"""The linear encoder: a pre-activation for each latent, all of them only as scores to choose by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.scores import Scorer
from mechanome.dictionaries.selectors.selector import Selector
from mechanome.dictionaries.sparse_products import affine_at, sampled_product


class AffineEncoder(nn.Module):
    """`(x - shift) W_enc^T + b_enc`.

    Args:
        d_in: what it reads.
        width: how many latents.
    """

    def __init__(self, d_in: int, width: int) -> None:
        super().__init__()
        self.W_enc = nn.Parameter(nn.functional.normalize(torch.randn(width, d_in), dim=1))
        self.b_enc = nn.Parameter(torch.zeros(width))

    def pre(self, x: Tensor, shift: Tensor | None, latents: Tensor | None = None) -> Tensor:
        """Pre-activations `[row, latent]`, of some latents only where given; differentiable, dense."""
        centered = x if shift is None else x - shift
        if latents is None:
            return nn.functional.linear(centered, self.W_enc, self.b_enc)
        return nn.functional.linear(centered, self.W_enc[latents], self.b_enc[latents])

    def at_chosen(self, x: Tensor, shift: Tensor | None, selector: Selector, scorer: Scorer) -> tuple[Pattern, Tensor]:
        """The places a selector chooses, and the exact pre-activations `[nnz]` there; differentiable."""
        with torch.no_grad():
            centered = x if shift is None else x - shift
            scores = scorer(centered, self.W_enc, self.b_enc)

            def exactly(pattern: Pattern) -> Tensor:
                if scorer.exact:
                    return scores.flatten()[pattern.flat]
                return sampled_product(pattern, centered, self.W_enc) + self.b_enc[pattern.indices]

            pattern, known = selector.places(scores, exactly)
        return pattern, affine_at(x, self.W_enc, self.b_enc, shift, pattern, known)
