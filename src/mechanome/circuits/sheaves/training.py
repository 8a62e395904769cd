"""Training sheaves: masks of whole circuits against fidelity, density and the overlap with circuits found before.

One after the other, each stays away from those before it (Overlap-Aware Sheaf Repulsion); random restarts, levels of
sparsity or of repulsion, and trainings that may not use some edge need not wait for each other and are rows of one
training.

| reference | a sheaf stays away from |
|---|---|
| `union` | the union of those before it |
| `each` | each of them; the overlap is the mean |
| `none` | nothing: random restarts, the control |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import torch

from mechanome.circuits.circuit import Circuit, stack
from mechanome.circuits.graph import Graph, same_graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.search.gates import GATES
from mechanome.circuits.search.mask_training import Training, train_masks
from mechanome.circuits.search.running import Runner
from mechanome.circuits.sheaves.found import Sheaves
from mechanome.circuits.sheaves.losses import SheafLosses, two_label
from mechanome.circuits.sheaves.recipe import SheafRecipe, signed
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task

REFERENCES: dict[str, Callable[[Sequence[Circuit]], list[Circuit]]] = {
    "union": lambda found: [reduce(or_, found)] if found else [],
    "each": list,
    "none": lambda found: [],
}
"""From circuits found before to those to stay away from."""


@dataclass(frozen=True)
class Row:
    """How one of several sheaves that train together differs from the recipe.

    Args:
        sparsity, repel: weights in place of the recipe's.
        forbidden: names of edges that it may not use.
    """

    sparsity: float | None = None
    repel: float | None = None
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class SheafTrainer:
    """Examples made ready once, on which sheaves are trained.

    Args:
        runner: the examples of training.
        recipe: settings.
        held: what sheaves are measured on, as `execute` has it: data, metric and settings.
        quiet: no progress.
    """

    runner: Runner = field(repr=False)
    recipe: SheafRecipe
    held: tuple[Any, Metric | None, dict[str, Any]] = field(repr=False)
    quiet: bool = False

    @classmethod
    def of(
        cls,
        graph: Graph,
        data: Task | Sequence[Any],
        metric: Metric | None = None,
        *,
        test: Any = None,
        recipe: SheafRecipe | None = None,
        intervention: str | Intervention = "zero",
        budget: Budget = None,
        seed: int = 0,
        quiet: bool = False,
    ) -> SheafTrainer:
        """Make data ready.

        Args:
            graph: of an opened model.
            data, metric: as `execute` has them; the metric is a difference of logits, good minus bad.
            test: other data to measure sheaves on, which brings its own metric; None for the same.
            recipe: None for the paper's.
            intervention: what edges outside a sheaf carry.
            budget: memory for what is measured at once; it does not bound the training.
            seed: of the draw of batches. quiet: no progress.

        Raises:
            BadInput, ShapeMismatch, NotFinite, BudgetTooSmall: as `execute`.
        """
        chosen = recipe or SheafRecipe()
        runner = Runner.of(
            graph, data, metric, two_label, intervention=intervention, budget=budget, batch=chosen.batch, seed=seed
        )
        settings = {"intervention": intervention, "budget": budget, "quiet": quiet}
        return cls(runner, chosen, (data, metric, settings) if test is None else (test, None, settings), quiet)

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.runner.graph

    def many(
        self, k: int = 2, *, reference: str = "union", apart_from: Sequence[Circuit] = (), seed: int = 0
    ) -> Sheaves:
        """Sheaves, each away from those before it.

        Args:
            k: how many.
            reference: a name of `REFERENCES`.
            apart_from: circuits to stay away from beside those, however they were found.
            seed: of initial logits and gates; each sheaf has its own.

        Raises:
            BadInput: a name that does not exist, circuits of another graph, repulsion from nothing that is possible
                ("none" with `apart_from`). NotFinite: a loss that is NaN or infinite.
        """
        k, of = count("k", k), REFERENCES[one_of("reference", reference, REFERENCES)]
        if reference == "none":
            if apart_from:
                raise BadInput("apart_from=", "reference='none' stays away from nothing", "use 'union' or 'each'")
            return self.together([Row()] * k, seed=seed)
        found, trainings = list[Circuit](), list[Training]()
        for number in range(k):
            training = self._trained([Row()], of([*apart_from, *found]), seed + number)
            trainings.append(training)
            found.append(Circuit(self.graph, training.edges()[0]).pruned())
        return self._measured([Circuit(self.graph, t.edges()[0]) for t in trainings], trainings, seed)

    def together(self, rows: Sequence[Row], *, apart_from: Sequence[Circuit] = (), seed: int = 0) -> Sheaves:
        """Sheaves that train at once and do not see each other.

        Args:
            rows: how each differs from the recipe.
            apart_from: circuits that all stay away from.
            seed: of initial logits, in which rows differ, and gates.

        Raises:
            BadInput: no rows, weights that make no sense, no edge left, circuits of another graph.
            UnknownName: a forbidden edge that does not exist. NotFinite: a loss that is NaN or infinite.
        """
        training = self._trained(rows, apart_from, seed)
        return self._measured([Circuit(self.graph, edges) for edges in training.edges()], [training], seed)

    def without_each_edge(self, circuit: Circuit, *, seed: int = 0) -> Sheaves:
        """For each edge of a circuit, a sheaf that may not use it and stays away from the circuit.

        If each is faithful, no edge of the circuit is indispensable. Cost grows with the number of edges.

        Args:
            circuit: a small one. seed: as for `together`.

        Raises:
            BadInput: a circuit without edges or of another graph.
        """
        if not len(circuit):
            raise BadInput("a circuit without edges", "there is no edge to leave out", "give one with edges")
        return self.together([Row(forbidden=(edge,)) for edge in circuit], apart_from=[circuit], seed=seed)

    def _trained(self, rows: Sequence[Row], references: Sequence[Circuit], seed: int) -> Training:
        if not rows:
            raise BadInput("rows=[]", "there is nothing to train", "give at least one Row()")
        same_graph([self.graph, *(c.graph for c in references)])
        recipe, allowed = self.recipe, torch.stack([self.graph.mask] * len(rows))
        for mask, row in zip(allowed, rows):
            for edge in row.forbidden:
                mask[self.graph.index(edge)] = False
            if not mask.any():
                raise BadInput("forbidden=", "no edge is left", "forbid fewer")
        away = stack(references) if references else torch.zeros(0, *self.graph.shape, dtype=torch.bool)
        weights = [
            [signed(recipe_weight if own is None else own, name) for own in owns]
            for name, recipe_weight, owns in (
                ("sparsity", recipe.sparsity, [row.sparsity for row in rows]),
                ("repel", recipe.repel, [row.repel for row in rows]),
            )
        ]
        device = self.runner.parts[0].own.device
        sparsity, repel = torch.tensor(weights, dtype=torch.float64, device=device)
        losses = SheafLosses(recipe, away.to(device), sparsity, repel)
        return train_masks(
            self.runner,
            GATES[recipe.gate],
            [losses.faithful, losses.complete],
            circuits=len(rows),
            steps=recipe.epochs * len(self.runner.parts),
            rate=recipe.rate,
            start=recipe.start,
            allowed=allowed,
            seed=seed,
            quiet=self.quiet,
        )

    def _measured(self, circuits: Sequence[Circuit], trainings: Sequence[Training], seed: int) -> Sheaves:
        data, metric, settings = self.held
        return Sheaves.measured(circuits, data, metric, trainings=trainings, seed=seed, **settings)


def discover_many(
    graph: Graph,
    data: Task | Sequence[Any],
    metric: Metric | None = None,
    k: int = 2,
    *,
    reference: str = "union",
    apart_from: Sequence[Circuit] = (),
    test: Any = None,
    recipe: SheafRecipe | None = None,
    intervention: str | Intervention = "zero",
    budget: Budget = None,
    seed: int = 0,
    quiet: bool = False,
) -> Sheaves:
    """Several circuits for one task, each trained to stay away from those before it (arXiv 2605.12671).

    Args:
        graph, data, metric, test, recipe, intervention, budget, quiet: as `SheafTrainer.of` has them.
        k, reference, apart_from: as `SheafTrainer.many` has them.
        seed: of batches, initial logits and gates.

    Returns:
        the sheaves, with what each does alone, and the model without it.

    Raises:
        As `SheafTrainer.of` and `SheafTrainer.many`.
    """
    trainer = SheafTrainer.of(
        graph, data, metric, test=test, recipe=recipe, intervention=intervention, budget=budget, seed=seed, quiet=quiet
    )
    return trainer.many(k, reference=reference, apart_from=apart_from, seed=seed)
