"""Reading directions of the stream as tokens: what a direction promotes in the logits, and which tokens lie along it.

The last norm's gain is folded into the unembedding, and the mean over the vocabulary taken off: what moves all logits
alike moves no prediction, and with tied tables that mean is a strong direction of its own. The norm's scale is left
out, so scores compare tokens, not prompts. Behind a head with layers of its own (BERT) this reading is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mechanome.core import NotServed, ShapeMismatch
from mechanome.engine import Model
from mechanome.engine.inputs import token_strings


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A model's vocabulary as directions of its stream; made by `Vocabulary.of`.

    Args:
        model: whose.
        writes: what promotes a token, `[d_model, token]`, centred over tokens.
        reads: the tokens as they enter, `[token, d_model]`, centred over tokens; None where there is no table.
        estimate: why readings are not exact, empty where they are.
    """

    model: Model = field(repr=False)
    writes: Tensor = field(repr=False)
    reads: Tensor | None = field(repr=False)
    estimate: str = ""

    @classmethod
    def of(cls, model: Model) -> Vocabulary:
        """The vocabulary of a language model.

        Raises:
            NotServed: no unembedding.
        """
        table = model.weight("W_U").value.float()
        try:
            table, why = table * model.weight("g_ln_final").value.float()[:, None], ""
        except NotServed:
            why = "the head's own layers between the stream and the unembedding are left out"
        try:
            entering = model.weight("W_E").value.float()
        except NotServed:
            entering = None
        centred = None if entering is None else entering - entering.mean(0)
        return cls(model, table - table.mean(1, keepdim=True), centred, why)

    def promoted(self, directions: Tensor) -> Tensor:
        """How much directions `[n, d_model]` move each logit against the mean of all, `[n, token]`.

        Raises:
            ShapeMismatch: directions of another width.
        """
        self._check(directions)
        return directions.to(self.writes) @ self.writes

    def along(self, directions: Tensor) -> Tensor:
        """How far each token's entry lies along directions `[n, d_model]`, `[n, token]`.

        Raises:
            NotServed: no token table. ShapeMismatch: directions of another width.
        """
        if self.reads is None:
            raise NotServed(f"tokens along a direction in {self.model.name}", "it has no token table", "give contexts")
        self._check(directions)
        return directions.to(self.reads) @ self.reads.T

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Readable tokens."""
        return tuple(token_strings(self.model.tokenizer, list(ids)))

    def coherence(self, scores: Tensor, k: int = 10) -> Tensor:
        """Mean cosine between the entries of the `k` tokens with the highest scores, `[n]`, float64.

        High where these tokens resemble each other. Tokens that one direction promotes have something in common by
        construction: compare with random directions.

        Args:
            scores: of every token, `[n, token]`, as `promoted` and `along` return them.
        """
        table = self.reads if self.reads is not None else self.writes.T
        entries = table[scores.topk(k, dim=1).indices].double()
        entries = entries / entries.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        total = entries.sum(1).square().sum(-1)
        return (total - k) / (k * (k - 1))

    def _check(self, directions: Tensor) -> None:
        if directions.dim() != 2 or directions.shape[1] != self.writes.shape[0]:
            raise ShapeMismatch(
                f"directions {list(directions.shape)}", f"the stream is {self.writes.shape[0]} wide", "give [n, d]"
            )


def kurtosis(scores: Tensor) -> Tensor:
    """Excess kurtosis of scores `[n, token]` over tokens, `[n]`, float64: high where few tokens stand out."""
    centred = scores.double() - scores.double().mean(1, keepdim=True)
    return centred.pow(4).mean(1) / centred.square().mean(1).square() - 3.0
