"""A small model that learns to continue a repetition: the task that makes induction heads.

Different random tokens are followed by the same from a random place on, around the end. Whoever finds what followed a
token the first time can say what follows now. The distance differs from sequence to sequence, so positions alone do
not tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from mechanome.core import Parts, seeded

_RATE, _BATCH = 3e-3, 64


@dataclass(frozen=True)
class Repetition:
    """The task.

    Args:
        period: tokens before they are repeated. vocabulary: what they are drawn from, each at most once.
    """

    period: int
    vocabulary: int = 24

    def around(self, start: Tensor) -> Tensor:
        """Places of the first half, in the order in which they are repeated, `[sequence, period]`."""
        return (start[:, None] + torch.arange(self.period)) % self.period

    def sequences(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Tokens `[sequence, 2 * period]`, and where the repetition starts, `[sequence]`."""
        first = torch.rand(n, self.vocabulary, generator=generator).argsort(1)[:, : self.period]
        start = torch.randint(self.period, (n,), generator=generator)
        return torch.cat([first, first.gather(1, self.around(start))], 1), start

    def training(self, seed: int, steps: int) -> RepetitionTraining:
        """An untrained GPT-2 of two layers and four heads, and how it is trained on fresh sequences with AdamW.

        Args:
            seed: of weights and sequences. steps: for `mechanome.core.fit`, in all.
        """
        config = GPT2Config(
            vocab_size=self.vocabulary, n_embd=64, n_layer=2, n_head=4, n_positions=2 * self.period, bos_token_id=0,
            eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        with seeded(seed):
            model = GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps, pct_start=0.1)
        generator = torch.Generator().manual_seed(seed)

        def step(_: int) -> dict[str, Tensor]:
            ids = self.sequences(_BATCH, generator)[0]
            logits = model(input_ids=ids).logits[:, self.period : -1]
            loss = cross_entropy(logits.flatten(0, 1), ids[:, self.period + 1 :].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            return {"loss": loss}

        return RepetitionTraining(model, step, Parts(model=model, optimizer=optimizer, schedule=schedule))


@dataclass(frozen=True, eq=False)
class RepetitionTraining:
    """What `mechanome.core.fit` needs.

    Args:
        model: what is trained. step: one step. state: all of it.
    """

    model: GPT2LMHeadModel
    step: Callable[[int], dict[str, Tensor]]
    state: Parts
