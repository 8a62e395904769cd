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
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from mechanome.circuits import Circuit, Graph, scores
from mechanome.circuits.execution import execute
from mechanome.circuits.metrics import faithfulness
from mechanome.circuits.stability import stability_report
from mechanome.core import Parts, fit, seeded
from mechanome.engine import LogitDiff, load

PERIOD = 8
"""Tokens before they are repeated."""
VOCAB = 24
SCORES = ("exact", "eap", "eap-ig", "clean-corrupted")
INTERVENTIONS = ("patch", "zero", "mean", "noise")
GRID = tuple((score, change) for score in SCORES for change in INTERVENTIONS)
"""The hyperparameters: how edges are scored, and what a patched one carries."""
_BEHIND = 4
"""Tokens of the repetition that a prompt shows."""


def sequences(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Training sequences `[n, 2 * PERIOD]`, and where the repetition starts, `[n]`."""
    first = torch.rand(n, VOCAB, generator=generator).argsort(1)[:, :PERIOD]
    start = torch.randint(PERIOD, (n,), generator=generator)
    return torch.cat([first, first.gather(1, _around(start))], 1), start


def _around(start: Tensor) -> Tensor:
    """Places of the first half, in the order in which they are repeated, `[n, PERIOD]`."""
    return (start[:, None] + torch.arange(PERIOD)) % PERIOD


def prompts(n: int, seed: int) -> tuple[Tensor, Tensor, LogitDiff]:
    """Prompts, counterfactuals `[n, pos]`, and the logit difference between what follows in the two."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.rand(n, VOCAB, generator=generator).argsort(1)
    first, foil = whole[:, :PERIOD], whole[:, PERIOD]
    last = torch.randint(PERIOD - 1, (n,), generator=generator)  # what follows it the first time is no wrap
    shown = first.gather(1, _around((last + 1 - _BEHIND) % PERIOD)[:, :_BEHIND])
    clean = torch.cat([first, shown], 1)
    other = clean.clone()
    rows = torch.arange(n)
    answer = clean[rows, last + 1]
    other[rows, last + 1] = foil
    return clean, other, LogitDiff(answer.tolist(), foil.tolist())


def train(seed: int, steps: int) -> GPT2LMHeadModel:
    """The model of a seed, trained with AdamW on fresh sequences."""
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=64, n_layer=2, n_head=4, n_positions=2 * PERIOD, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    with seeded(seed):
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)

    def step(_: int) -> dict[str, Tensor]:
        ids = sequences(64, generator)[0]
        logits = model(input_ids=ids).logits[:, PERIOD:-1]
        loss = cross_entropy(logits.flatten(0, 1), ids[:, PERIOD + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    fit(step, Parts(model=model, optimizer=optimizer), steps=steps, seed=seed, quiet=True)
    return model.eval()


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
