"""Two sheaves of a real language model on the indirect object: shown, not judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mechanome.circuits import Circuit, Graph
from mechanome.circuits.sheaves import SheafRecipe, SheafTrainer
from mechanome.core import TooFewRows
from mechanome.engine import Model
from mechanome.studies.papers.sheaf_repulsion import Settings
from mechanome.studies.papers.sheaf_repulsion.small import packed
from mechanome.tasks import Task, make


def sheaf(model: Model, seed: int, size: Settings, before: Sequence[Tensor]) -> dict[str, Any]:
    """One sheaf, away from those before it, `packed`; how many prompts were tried and right, and the graph's edges.

    Args:
        model: the model. seed: of prompts and masks. size: of everything.
        before: edges of sheaves found before, `[source, target]` each.
    """
    train, test, right = _prompts(model, seed, size)
    recipe = SheafRecipe(
        epochs=size.lm_epochs, batch=size.lm_batch, rate=size.lm_rate, start=size.lm_start, gate=size.lm_gate,
        sparsity=size.lm_sparsity, repel=size.lm_repel,
    )  # fmt: skip
    graph = Graph.of(model)
    trainer = SheafTrainer.of(graph, train, test=test, recipe=recipe, seed=seed, quiet=True)
    found = trainer.many(1, apart_from=[Circuit(graph, edges) for edges in before], seed=seed + len(before))
    return {**packed(found), "prompts": right, "total": graph.n_edges}


def _prompts(model: Model, seed: int, size: Settings) -> tuple[Task, Task, list[int]]:
    """Prompts of training and of testing, all done right by the model; and how many were tried and right.

    Raises:
        TooFewRows: the model does not do so many right.
    """
    drawn = make("ioi", size.lm_candidates, seed, model=model, quiet=True)
    done = drawn.filter(model, quiet=True)
    if done.kept < size.lm_train + size.lm_test:
        why = f"{model.name} does {done.kept} of {len(drawn)} right"
        raise TooFewRows(f"{size.lm_train + size.lm_test} prompts", why, "try more candidates")
    return done.task[: size.lm_train], done.task[size.lm_train :][: size.lm_test], [len(drawn), done.kept]
