"""Sheaves of the redundant transformer: by repulsion, by restarts, by other searches; and of very few edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits import Circuit, Graph, acdc, learned_mask, scores, top_n
from mechanome.circuits.sheaves import Row, SheafRecipe, SheafTrainer, Sheaves, two_label
from mechanome.core import TooFewRows
from mechanome.engine import LogitDiff, load
from mechanome.engine.metrics import measure
from mechanome.studies.papers.sheaf_repulsion import SEARCHES, Settings
from mechanome.zoo import RedundantRecipe, object_prompts, redundant_transformer


@dataclass(frozen=True)
class Small:
    """One small model and its prompts.

    Args:
        seed: of weights, prompts and masks. size: of everything.
    """

    seed: int
    size: Settings

    @cached_property
    def graph(self) -> Graph:
        """Of the model, which is trained on first use and kept in the cache."""
        model = redundant_transformer(self.seed, RedundantRecipe(steps=self.size.steps), quiet=True)
        return Graph.of(load(model, device="cpu"))

    @cached_property
    def prompts(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Prompts of training and of testing, all done right by the model, each with its metric.

        Raises:
            TooFewRows: the model does not do so many right.
        """
        wanted = self.size.train + self.size.test
        drawn = object_prompts(int(self.size.tried * wanted), seed=1000 + self.seed)
        logits = self.graph.opened().run(drawn.ids, [], logits="last").logits
        assert logits is not None
        metric = LogitDiff(drawn.good.tolist(), drawn.bad.tolist())
        right = (measure(metric, logits, torch.arange(len(drawn))) > 0).nonzero()[:wanted, 0]
        if len(right) < wanted:
            raise TooFewRows(
                f"{wanted} prompts", f"the model does {len(right)} of {len(drawn)} right", "train it for longer"
            )
        parts = drawn[right[: self.size.train]], drawn[right[self.size.train :]]
        train, test = ((p.ids, None, LogitDiff(p.good.tolist(), p.bad.tolist())) for p in parts)
        return train, test

    @cached_property
    def trainer(self) -> SheafTrainer:
        """With the prompts of training, measuring on the others."""
        train, test = self.prompts
        return SheafTrainer.of(self.graph, train, test=test, recipe=recipe_of(self.size), seed=self.seed, quiet=True)


def accuracy(seed: int, size: Settings) -> dict[str, Any]:
    """Of the model on prompts that were not chosen."""
    drawn = object_prompts(1000, seed=2000 + seed)
    logits = Small(seed, size).graph.opened().run(drawn.ids, [], logits="last").logits
    assert logits is not None
    rows = torch.arange(len(drawn))
    return {"right": logits[rows, drawn.good] > logits[rows, drawn.bad]}


def many(seed: int, size: Settings, reference: str) -> dict[str, Any]:
    """K sheaves, `packed`."""
    return packed(Small(seed, size).trainer.many(size.sheaves, reference=reference, seed=seed))


def others(seed: int, size: Settings, first: Tensor) -> dict[str, Any]:
    """Circuits of `SEARCHES`, those that take a size of that of the first sheaf; zero ablation throughout."""
    small = Small(seed, size)
    train, test = small.prompts
    few = train[0][: size.search], None, LogitDiff(train[2].answer[: size.search], train[2].foil[: size.search])
    wanted = int(first.sum())
    settings: dict[str, Any] = {"intervention": "zero", "quiet": True}
    steps = size.epochs * -(-size.train // size.batch)
    found = {
        "acdc": acdc(small.graph, few, threshold=size.threshold, objective=two_label, **settings),
        "eap": top_n(scores(small.graph, train, method="eap", **settings), wanted),
        "edge-pruning": learned_mask(
            small.graph, train, size=wanted, objective=two_label, batch=size.batch, steps=steps, **settings
        ),
    }
    return packed(Sheaves.measured([found[name].circuit for name in SEARCHES], test, seed=seed, quiet=True))


def few_edges(seed: int, size: Settings) -> dict[str, Any]:
    """Sheaves of rising sparsity; and for each edge of the best one of at most three, a sheaf that may not use it."""
    trainer = Small(seed, size).trainer
    ladder = trainer.together([Row(sparsity=level) for level in size.levels], seed=seed)
    chosen = ladder.few(3)
    others = None if chosen is None else trainer.without_each_edge(chosen, seed=seed)
    return {
        "ladder": packed(ladder),
        "chosen": [] if chosen is None else list(chosen),
        "others": None if others is None else packed(others),
    }


def trade_off(seed: int, size: Settings, first: Tensor) -> dict[str, Any]:
    """Second sheaves under rising repulsion from the first, `packed`."""
    small = Small(seed, size)
    rows = [Row(repel=level) for level in size.repulsions]
    return packed(small.trainer.together(rows, apart_from=[Circuit(small.graph, first)], seed=seed))


def packed(found: Sheaves) -> dict[str, Any]:
    """What is kept of sheaves: edges; and what each does right alone, the model without it, and a random circuit."""
    return {
        "edges": torch.stack([c.edges for c in found.circuits]),
        "right": found.done.values > 0,
        "without": found.without.values > 0,
        "random": found.random.values > 0,
        "notes": list(found.notes),
    }


def recipe_of(size: Settings) -> SheafRecipe:
    """The settings of the paper's code, but for these."""
    return SheafRecipe(epochs=size.epochs, batch=size.batch, rate=size.rate, sparsity=size.sparsity, repel=size.repel)
