"""The small model of paper 28's study: when in training does an induction head's attention become a few terms?

Random tokens are written twice. Whoever finds what followed a token the first time can say what follows now, which
takes two heads in a row; the second one is the induction head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from mechanome.circuits.native import attention_terms, sparseness
from mechanome.core import Parts, fit, seeded
from mechanome.engine import load

PERIOD = 12
"""Tokens before they are repeated."""
VOCAB = 32
CHECKPOINTS = 10
"""Measured after the untrained model."""
_DRAWS = 8
_LAYER = 1


def sequences(n: int, generator: torch.Generator) -> Tensor:
    """Different random tokens, written twice, `[n, 2 * PERIOD]`; none of them is token 0, which comes first."""
    drawn = torch.rand(n, VOCAB - 1, generator=generator).argsort(1)[:, :PERIOD] + 1
    return torch.cat([torch.zeros(n, 1, dtype=torch.long), drawn, drawn], 1)


def measured(seed: int, steps: int, prompts: int) -> dict[str, Any]:
    """Train, and measure the induction head at every checkpoint.

    Args:
        seed: of weights, batches and prompts. steps: of training. prompts: to measure on.

    Returns:
        own, rotated: sparseness per checkpoint, means over prompts and positions; induction: attention to what
        followed, per checkpoint; accuracy: of the last; head: which.
    """
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=2 * PERIOD + 1, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    with seeded(seed):
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)

    def step(_: int) -> dict[str, Tensor]:
        ids = sequences(64, generator)
        logits = model(input_ids=ids).logits[:, PERIOD + 1 : -1]
        loss = cross_entropy(logits.flatten(0, 1), ids[:, PERIOD + 2 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss}

    state = Parts(model=model, optimizer=optimizer)
    saved = [_copy(model)]
    for checkpoint in range(CHECKPOINTS):
        some = steps * (checkpoint + 1) // CHECKPOINTS - steps * checkpoint // CHECKPOINTS
        fit(step, state, steps=some, seed=seed + checkpoint, quiet=True)
        saved.append(_copy(model))
    ids = sequences(prompts, torch.Generator().manual_seed(seed + 1))
    scores = [_looking(one, config, ids) for one in saved]
    head = int(scores[-1].argmax())
    terms = [_sparseness(one, config, ids, head, seed) for one in saved]
    with torch.no_grad():
        guess = model.eval()(input_ids=ids).logits[:, PERIOD + 1 : -1].argmax(-1)
    return {
        "own": [own for own, _ in terms],
        "rotated": [rotated for _, rotated in terms],
        "induction": [float(score[head]) for score in scores],
        "accuracy": float((guess == ids[:, PERIOD + 2 :]).double().mean()),
        "head": head,
    }


def _copy(model: GPT2LMHeadModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _opened(weights: dict[str, Tensor], config: GPT2Config) -> Any:
    model = GPT2LMHeadModel(config)
    model.load_state_dict(weights)
    return load(model.eval(), device="cpu", check="off")


def _looking(weights: dict[str, Tensor], config: GPT2Config, ids: Tensor) -> Tensor:
    """Per head of the second layer, mean attention from the repetition to what followed the same token, `[head]`."""
    pattern = _opened(weights, config).run(ids, capture=f"pattern.{_LAYER}")[f"pattern.{_LAYER}"]
    return pattern.diagonal(1 - PERIOD, -2, -1)[..., -PERIOD + 1 :].mean((0, 2))


def _sparseness(
    weights: dict[str, Tensor], config: GPT2Config, ids: Tensor, head: int, seed: int
) -> tuple[float, float]:
    """Of the head's terms for what followed, and of the rotated control; means over prompts and positions."""
    opened = _opened(weights, config)
    last = ids.shape[1] - 1
    cases = [(_LAYER, head, query, query - PERIOD + 1) for query in range(PERIOD + 1, last)]
    own, rotated = [], []
    for row in ids:
        found = attention_terms(opened, row[None], cases=cases, draws=_DRAWS, seed=seed)
        own.append(found.sparseness)
        rotated.append(sparseness(found.rotated).mean(1))
    return float(torch.cat(own).mean()), float(torch.cat(rotated).mean())
