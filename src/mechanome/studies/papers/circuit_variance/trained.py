"""The small model of paper 40's study: two layers that learn to continue a pattern, trained on the spot.

Eight different tokens, then the same eight from a random place on, around the end: whoever knows what followed a token
the first time can say what follows now. The counterfactual puts another token behind the one that decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel

from mechanome.circuits import Circuit, Graph, scores
from mechanome.circuits.execution import execute
from mechanome.circuits.metrics import faithfulness
from mechanome.circuits.stability import stability_report
from mechanome.core import fit
from mechanome.engine import LogitDiff, load
from mechanome.zoo.repetition import Repetition

TASK = Repetition(period=8)
SCORES = ("exact", "eap", "eap-ig", "clean-corrupted")
INTERVENTIONS = ("patch", "zero", "mean", "noise")
GRID = tuple((score, change) for score in SCORES for change in INTERVENTIONS)
"""The hyperparameters: how edges are scored, and what a patched one carries."""
_BEHIND = 4
"""Tokens of the repetition that a prompt shows."""


def prompts(n: int, seed: int) -> tuple[Tensor, Tensor, LogitDiff]:
    """Prompts, counterfactuals `[n, pos]`, and the logit difference between what follows in the two."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.rand(n, TASK.vocabulary, generator=generator).argsort(1)
    first, foil = whole[:, : TASK.period], whole[:, TASK.period]
    last = torch.randint(TASK.period - 1, (n,), generator=generator)  # what follows it the first time is no wrap
    shown = first.gather(1, TASK.around((last + 1 - _BEHIND) % TASK.period)[:, :_BEHIND])
    clean = torch.cat([first, shown], 1)
    other = clean.clone()
    rows = torch.arange(n)
    answer = clean[rows, last + 1]
    other[rows, last + 1] = foil
    return clean, other, LogitDiff(answer.tolist(), foil.tolist())


def train(seed: int, steps: int) -> GPT2LMHeadModel:
    """The model of a seed."""
    training = TASK.training(seed, steps)
    fit(training.step, training.state, steps=steps, seed=seed, quiet=True)
    return training.model.eval()


def measured(seed: int, steps: int, inputs: int, sizes: Sequence[int], samples: int) -> dict[str, Any]:
    """Train, score every edge in every way, and run the circuits that bootstrap samples lead to.

    Args:
        seed: of initial weights, training and prompts. steps: of training. inputs: prompts.
        sizes: of the circuits that are run. samples: bootstrap samples of the exact scores.

    Returns:
        accuracy on prompts and counterfactuals; scores: per row of `GRID` ("exact patch") those of every input
        `[input, edge]`; quality: per circuit size what `done` measures, as mean and standard deviation over samples.
    """
    graph = Graph.of(load(train(seed, steps), device="cpu"))
    data = prompts(inputs, seed)
    found = {
        f"{score} {change}": scores(graph, data, method=score, intervention=change, per_input=True, quiet=True)
        for score, change in GRID
    }
    exact = found["exact patch"]
    assert exact.corrupted is not None
    report = stability_report(exact, sizes=sizes, samples=samples, measure=partial(done, graph, data), quiet=True)
    return {
        "accuracy": float((torch.cat([exact.clean, -exact.corrupted]) > 0).double().mean()),
        "scores": {name: each.each[:, graph.mask] for name, each in found.items() if each.each is not None},
        "quality": {
            point.named: {name: [spread.mean.estimate, spread.sd] for name, spread in point.quality.items()}
            for point in report.points
        },
    }


def done(graph: Graph, data: tuple[Tensor, Tensor, LogitDiff], sets: Tensor) -> dict[str, list[float]]:
    """What circuits do, on the prompts they were found on.

    Args:
        graph: theirs. data: prompts, counterfactuals, metric. sets: `[circuit, source, target]` of booleans.

    Returns:
        per circuit: error, the share of prompts on which it prefers another of answer and foil than the model does;
        faithfulness; KL, of the model's next token and its own, in nats.
    """
    ran = execute([Circuit(graph, edges) for edges in sets], data, quiet=True)
    return {
        "error": ((ran.values > 0) != (ran.clean > 0)).double().mean(1).tolist(),
        "faithfulness": [float(f) for f in faithfulness(ran)],
        "KL": ran.divergence.double().mean(1).tolist(),
    }
