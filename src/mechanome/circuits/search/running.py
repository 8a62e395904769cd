"""`Runner`: examples made ready once, on which a search runs many circuits against one objective."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.dense_execution import run_dense
from mechanome.circuits.execution import Prepared
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import ROOTED, Intervention
from mechanome.circuits.search.behind import Behind, KnownBase, run_behind
from mechanome.circuits.search.objectives import Objective, Said
from mechanome.core import BadInput, NotFinite, ShapeMismatch
from mechanome.engine.asked import seeded_generator
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric


@dataclass(frozen=True, eq=False)
class Examples:
    """Some examples, made ready.

    Args:
        base: the run in which every source is patched.
        own: the model's logits at the answer position, `[example, vocab]`.
        rows: their numbers.
    """

    base: KnownBase
    own: Tensor = field(repr=False)
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Runner:
    """Runs circuits on the same examples again and again; all of these are kept in memory.

    Args:
        ready: the data.
        objective: what is kept low.
        parts: the examples, as many together as were asked for.
    """

    ready: Prepared
    objective: Objective
    parts: tuple[Examples, ...] = field(repr=False)

    @classmethod
    def of(
        cls,
        graph: Graph,
        data: Any,
        metric: Metric | None,
        objective: Objective,
        *,
        intervention: str | Intervention,
        budget: Budget = None,
        batch: int | None = None,
        seed: int = 0,
    ) -> Runner:
        """Make data ready.

        Args:
            graph, data, metric, intervention, budget: as `execute` has them.
            objective: what is kept low.
            batch: examples that run together, drawn at random; None for as many as fit, in order. seed: of the draw.

        Raises:
            BadInput, ShapeMismatch, BudgetTooSmall: as `execute`. NotFinite: the model's logits are NaN or infinite.
        """
        ready = Prepared.of(graph, data, metric, intervention=intervention, budget=budget)
        parts: Iterable[list[int]] = ready.parts()
        if batch is not None:
            generator = seeded_generator(seed)
            parts = (p.tolist() for p in torch.randperm(ready.data.clean.rows, generator=generator).split(batch))
        found = []
        for part in parts:
            base, own, rows = ready.base(part)
            _check(own, "the model's logits")
            found.append(Examples(KnownBase.like(base), own, tuple(rows)))
        if not found:
            raise BadInput("the data", "it has no examples", "give at least one")
        return cls(ready, objective, tuple(found))

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.ready.graph

    @property
    def rooted(self) -> bool:
        """Whether patched values are those of a run of the model."""
        return self.ready.intervention.kind in ROOTED

    def at_once(self, circuits: int) -> int:
        """How many circuits run together, of so many at most."""
        return min(self.ready.at_once(part.base, circuits) for part in self.parts)

    def said(self, part: Examples, logits: Tensor) -> Said:
        """What circuits said on some examples, from their logits `[circuit, example, vocab]`.

        Raises:
            NotFinite: logits that are NaN or infinite.
        """
        _check(logits, "logits of circuits")
        return Said(logits, self.ready.measured(logits, part.rows), part.own, part.base.sample.metric, part.rows)

    def soft(self, part: Examples, masks: Tensor) -> Said:
        """What circuits given as soft masks `[circuit, source, target]` say, differentiable in the masks."""
        return self.said(part, run_dense(part.base, masks))

    def cost(self, said: Said) -> Tensor:
        """The objective, `[circuit, example]`.

        Raises:
            ShapeMismatch: it is no number per circuit and example. BadInput: it is no tensor.
        """
        found = self.objective(said)
        if not isinstance(found, Tensor):
            raise BadInput("the objective", f"it returns {type(found).__name__}", "return a tensor [circuit, example]")
        if found.shape != said.values.shape:
            shape = list(said.values.shape)
            raise ShapeMismatch(f"an objective of shape {list(found.shape)}", f"there are {shape}", "return one each")
        return found

    def own(self) -> float:
        """The objective of the model itself, mean over examples."""
        return _mean(self.cost(self.said(part, part.own[None])) for part in self.parts)[0]

    def values(self, edges: Tensor, known: int = 0) -> list[float]:
        """The objective of circuits, means over examples.

        Args:
            edges: `[circuit, source, target]` of booleans.
            known: how many of the first sources carry what they carry in the model.
        """
        size = self.at_once(len(edges))
        return [value for some in edges.split(size) for value in self._values(some, known)]

    def _values(self, edges: Tensor, known: int) -> list[float]:
        live = Behind.of(self.graph, edges, self.rooted, known)
        return _mean(self.cost(self.said(part, run_behind(part.base, live))) for part in self.parts)


def _mean(parts: Iterable[Tensor]) -> list[float]:
    """Means over the examples of all parts, per circuit."""
    every = torch.cat([part.detach().double().cpu() for part in parts], 1)
    _check(every, "the objective")
    return every.mean(1).tolist()


def _check(found: Tensor, what: str) -> None:
    if not bool(torch.isfinite(found).all()):
        raise NotFinite(what, "some are NaN or infinite", "load the model in float32, or check the inputs")
