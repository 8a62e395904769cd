"""Logit lens: what the model would say if it stopped after each layer.

The residual stream at the last position goes through the model's own last norm, unembedding and soft-cap, whatever
they are: it is written over the output of the last block, of a prompt of one token, and the model's own forward does
the rest. So the last row is the model's prediction itself, bit by bit up to batching. The earlier rows are a reading,
not a fact about the model: it never stops there, and early layers need not speak the language of the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import NotServed
from mechanome.engine import Model, Patch
from mechanome.explain.question import Question
from mechanome.explain.tokens import Token, rank


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
    depth, sites = model.n_layers, ["resid_pre.0", *(f"resid_post.{layer}" for layer in range(model.n_layers))]
    if why := model.why_not_edit(sites[-1]):
        raise NotServed("a logit lens", why, "none: this part is left out")
    run = model.run(question.clean, capture=sites, pos="last", logits=False)
    streams = torch.stack([run[site][0] for site in sites])
    carriers = model.encode([[int(question.clean.input_ids[0, 0])]] * (depth + 1), bos="none")
    logits = model.run(carriers, edits=[Patch(sites[-1], streams, pos="last")], logits="last").logits
    assert logits is not None
    log_probs = logits.float().cpu().log_softmax(-1)
    ranks = rank(log_probs, [question.answer.id, question.foil.id])
    return Lens(
        ("embedding", *map(str, range(depth))),
        log_probs[:, question.answer.id],
        log_probs[:, question.foil.id],
        tuple(ranks[:, 0].tolist()),
        tuple(ranks[:, 1].tolist()),
        tuple(Token.of(model, int(i)) for i in log_probs.argmax(-1)),
    )
