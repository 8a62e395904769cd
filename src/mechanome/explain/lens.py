"""Where in the layers the answer appears: `attribution.logit_lens` at the last position, asked about answer and foil.

The lens reads the residual stream after each layer as a prediction. That is a reading, not a fact about the model: it
never stops there, and early layers need not speak the language of the last one. Added here are the ranks of answer and
foil, and the layer from which on the answer stays on top.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from mechanome.attribution import logit_lens
from mechanome.engine import Model
from mechanome.explain.question import Question
from mechanome.explain.tokens import Token


@dataclass(frozen=True)
class Lens:
    """A reading after the embedding and after each block.

    Args:
        layers: "embedding", "0", "1" ...: after which block.
        answer: log-probability of the answer, in nats, `[layer]`.
        foil: of the foil, `[layer]`.
        answer_rank: how many tokens are at least as likely as the answer, `[layer]`; 1 is the top.
        foil_rank: likewise for the foil.
        top: the likeliest token, `[layer]`.
    """

    layers: tuple[str, ...]
    answer: Tensor = field(repr=False)
    foil: Tensor = field(repr=False)
    answer_rank: tuple[int, ...] = field(repr=False)
    foil_rank: tuple[int, ...] = field(repr=False)
    top: tuple[Token, ...] = field(repr=False)

    @property
    def settled(self) -> int | None:
        """Index of the first layer from which on the answer stays the top token, None if it never is."""
        last_other = max((i for i, r in enumerate(self.answer_rank) if r > 1), default=-1)
        return last_other + 1 if last_other + 1 < len(self.layers) else None


def lens(model: Model, question: Question) -> Lens:
    """Read every layer at the prompt's last position.

    Raises:
        NotServed: a residual stream that cannot be read or written.
    """
    read = logit_lens(model, question.clean)
    answer, foil = question.answer.id, question.foil.id
    return Lens(
        ("embedding", *map(str, range(model.n_layers))),
        read.of(answer)[:, 0].cpu(),
        read.of(foil)[:, 0].cpu(),
        tuple(read.rank(answer)[:, 0].tolist()),
        tuple(read.rank(foil)[:, 0].tolist()),
        tuple(Token.of(model, i) for i in read.logits[:, 0].argmax(-1).tolist()),
    )
