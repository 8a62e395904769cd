"""The small model of paper 28's study: when in training does an induction head's attention become a few terms?

Random tokens are followed by the same from a random place on, around the end. Whoever finds what followed a token
the first time can say what follows now. The distance differs from prompt to prompt, so positions alone do not tell;
it takes two heads in a row, and the second one is the induction head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from mechanome.circuits.native import attention_terms, sparseness
from mechanome.core import fit
from mechanome.engine import load
from mechanome.zoo.repetition import Repetition

TASK = Repetition(period=10)
CHECKPOINTS = 10
"""Measured after the untrained model."""
_DRAWS = 4

Places = list[tuple[int, int, int]]
"""Prompt, query and the key that followed the query's token the first time."""


def places(start: Tensor) -> Places:
    """Where an induction head should look: every query of the repetition whose token is followed by another one."""
    rows = range(len(start))
    found = [
        (row, TASK.period + p, (int(start[row]) + p + 1) % TASK.period) for row in rows for p in range(TASK.period - 1)
    ]
    return [place for place in found if place[2]]


def measured(seed: int, steps: int, prompts: int) -> dict[str, Any]:
    """Train, and measure the induction head at every checkpoint.

    Args:
        seed: of weights, batches and prompts. steps: of training. prompts: to measure on.

    Returns:
        own, rotated: sparseness per checkpoint, means over prompts and positions; induction: attention to what
        followed, per checkpoint; accuracy: of the last; layer, head: which.
    """
    training = TASK.training(seed, steps)
    model, config = training.model, training.model.config
    saved = [_copy(model)]
    for checkpoint in range(CHECKPOINTS):
        some = steps * (checkpoint + 1) // CHECKPOINTS - steps * checkpoint // CHECKPOINTS
        fit(training.step, training.state, steps=some, seed=seed + checkpoint, quiet=True)
        saved.append(_copy(model))
    ids, start = TASK.sequences(prompts, torch.Generator().manual_seed(seed + 1))
    looked = places(start)
    scores = [_looking(one, config, ids, looked) for one in saved]
    layer, head = divmod(int(scores[-1].argmax()), config.n_head)
    terms = [_sparseness(one, config, ids, looked, (layer, head), seed) for one in saved]
    test = TASK.sequences(256, torch.Generator().manual_seed(seed + 2))[0]
    with torch.no_grad():
        guess = model.eval()(input_ids=test).logits[:, TASK.period : -1].argmax(-1)
    return {
        "own": [own for own, _ in terms],
        "rotated": [rotated for _, rotated in terms],
        "induction": [float(score[layer, head]) for score in scores],
        "accuracy": float((guess == test[:, TASK.period + 1 :]).double().mean()),
        "layer": layer,
        "head": head,
    }


def _copy(model: GPT2LMHeadModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _opened(weights: dict[str, Tensor], config: GPT2Config) -> Any:
    model = GPT2LMHeadModel(config)
    model.load_state_dict(weights)
    return load(model.eval(), device="cpu", check="off")


def _looking(weights: dict[str, Tensor], config: GPT2Config, ids: Tensor, looked: Places) -> Tensor:
    """Of every head, mean attention to what followed the same token, `[layer, head]`."""
    run = _opened(weights, config).run(ids, capture="pattern.*")
    rows, queries, keys = torch.tensor(looked).T
    return torch.stack([run[f"pattern.{i}"][rows, :, queries, keys].mean(0) for i in range(config.n_layer)])


def _sparseness(
    weights: dict[str, Tensor], config: GPT2Config, ids: Tensor, looked: Places, at: tuple[int, int], seed: int
) -> tuple[float, float]:
    """Of the head's terms for what followed, and of the rotated control; means over prompts and positions."""
    opened = _opened(weights, config)
    own, rotated = [], []
    for row in range(len(ids)):
        cases = [(*at, query, key) for r, query, key in looked if r == row]
        found = attention_terms(opened, ids[row][None], cases=cases, draws=_DRAWS, seed=seed)
        own.append(found.sparseness)
        rotated.append(sparseness(found.rotated).mean(1))
    return float(torch.cat(own).mean()), float(torch.cat(rotated).mean())
