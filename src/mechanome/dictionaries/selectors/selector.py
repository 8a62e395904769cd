"""What a selector is: it finds the places of a code from dense scores, and gives them values.

Places include every latent that is active or that gets a gradient; their values are a function, place by place, of the
pre-activations there, so that everything after the scores is sparse.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from mechanome.dictionaries.pattern import Pattern

Exactly = Callable[[Pattern], Tensor]
"""Exact pre-activations `[nnz]` at the places of a pattern."""


class Selector(nn.Module):
    """Base of all selectors."""

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        """Where the code may be other than zero.

        Args:
            scores: `[row, latent]`, perhaps of low precision; only read.
            exactly: gives exact pre-activations at places.

        Returns:
            the places, and the exact pre-activations `[nnz]` there.
        """
        raise NotImplementedError

    def values(self, pre: Tensor, pattern: Pattern, bias: Tensor) -> Tensor:
        """Values `[nnz]` of pre-activations `[nnz]` at the places of a pattern; differentiable.

        `bias [latent]` is the encoder's, which the pre-activations include.
        """
        return pre.relu()

    def bias_moved(self, by: Tensor) -> None:
        """The encoder's bias was changed by so much `[latent]`, and its input so that pre-activations are the same."""

    def after_step(self) -> None:
        """Mend what an optimizer step may have broken."""
