"""`Prepared`: data on which circuits of a graph can be run, in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.data import Data, read_data
from mechanome.circuits.dense_execution import run_dense
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention, Means
from mechanome.circuits.masked_streams import Base
from mechanome.circuits.samples import sample, scored
from mechanome.circuits.wiring import Reads, Wiring
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces, show
from mechanome.engine.metrics import measure

if TYPE_CHECKING:
    from mechanome.tasks import Task

_ROW_TOKENS = 1024
"""Circuits times tokens of one pass: beyond, products get no faster and tensors only larger."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data on which circuits of a graph can be run; for soft masks, `logits` is differentiable in them.

    Args:
        wiring: of the graph.
        data: inputs, counterfactuals and metric.
        intervention: what edges outside a circuit carry.
        means: the means, where the intervention takes them.
        budget: bytes for what runs at once.
    """

    wiring: Wiring
    data: Data
    intervention: Intervention
    means: Means | None
    budget: int
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)
    _folded: dict[Reads, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        graph: Graph,
        data: Task | Sequence[Any],
        metric: Any = None,
        *,
        intervention: str | Intervention = "patch",
        budget: Budget = None,
    ) -> Prepared:
        """Data made ready; arguments and errors as `execute` has them."""
        change = Intervention.of(intervention)
        given = read_data(graph, data, metric, change)
        wiring = Wiring.of(graph)
        ready = cls(wiring, given, change, None, parse_budget(budget, wiring.model.device))
        if not change.means:
            return ready
        if change.reference is None:
            reference = [given.clean.take(part) for part in ready.parts()]
        else:
            reference = [wiring.model.encode(change.reference)]
        means = Means.over(wiring, reference, change.kind == "positional-mean")
        return cls(wiring, given, change, means, ready.budget)

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self.wiring.graph

    def parts(self, sources: int | None = None, edges: bool = False) -> Iterator[list[int]]:
        """The numbers of examples that are made ready together.

        Args:
            sources: whose changes a circuit holds; None for all, the units of an MLP as one.
            edges: whether each target has a mask of its own for the units of MLPs.

        Raises:
            BudgetTooSmall: not even one circuit on one example fits.
        """
        rows, width = self.data.clean.rows, self._width
        each = self._base_bytes(width) + self._circuit_bytes(width, 1, sources, edges)
        fits = pieces(rows, each, self.budget, "example" + " with edges between units" * (edges and self._units > 0))
        size = self._fitting(fits, min(rows, max(1, _ROW_TOKENS // width)))
        for first in range(0, rows, size):
            yield list(range(first, min(first + size, rows)))

    @cached_property
    def _width(self) -> int:
        """Tokens of the longest example; what makes them of an image or a sound only the model knows."""
        if self.data.clean.frame.width:
            return self.data.clean.frame.width
        site = self.wiring.writes[0].site
        return self.wiring.model.run(self.data.clean.take([0]), [site], logits=False).captured[site].shape[1]

    @cached_property
    def _d_model(self) -> int:
        return next(w.weight.shape[-1] for w in self.wiring.writes if w.weight is not None)

    @cached_property
    def _whole(self) -> int:
        """How many sources there are, the units of an MLP as one."""
        return sum(1 if w.thin else w.group.count for w in self.wiring.writes)

    @cached_property
    def _units(self) -> int:
        return sum(w.group.count for w in self.wiring.writes if w.thin)

    def _base_bytes(self, tokens: int) -> int:
        """About what a base holds: streams, queries, keys and values, and what sources carry, twice."""
        streams = nbytes(tokens, self._d_model, 12 * len(self.graph.layers), dtype=self.wiring.dtype)
        return streams + nbytes(tokens, 3, self._units, dtype=self.wiring.dtype)

    def _circuit_bytes(self, tokens: int, rows: int, sources: int | None = None, edges: bool = False) -> int:
        """About what a circuit holds: changes of sources, streams of a phase, the model's own pass, logits."""
        most = max(layer.heads + 2 * layer.kv + 1 for layer in self.graph.layers)
        widths = (self._whole if sources is None else sources) + 5 * most + 32
        unembed = self.wiring.model.architecture.unembed
        vocabulary = 0 if unembed is None else getattr(unembed.module, "weight", torch.empty(0)).shape[0]
        own = nbytes(tokens, self._d_model, widths, dtype=self.wiring.dtype)
        if edges and self._units:
            widest = max(w.group.count for w in self.wiring.writes if w.thin)
            own += nbytes(self._units, self.graph.shape[1], 2, dtype=self.wiring.dtype)
            own += nbytes(tokens, 2 * most * widest + self._units, dtype=self.wiring.dtype)
        return own + nbytes(rows, vocabulary, 4, dtype=torch.float64)

    def base(self, part: Sequence[int]) -> tuple[Base, Tensor, list[int]]:
        """Some examples with every source patched, the model's own logits `[example, vocab]`, and their numbers."""
        model, rows = self.wiring.model, list(part)
        clean = self.data.clean.take(rows)
        other = None if self.data.other is None else self.data.other.take(rows)
        run = model.run(clean, [w.site for w in self.wiring.writes], logits="last")
        known = run, scored(self.data.metric, run, torch.tensor(rows))
        found = sample(self.wiring, self.data.metric, clean, other, rows, self.intervention, self.means, known)
        assert run.logits is not None
        return Base.of(found, self._folded), run.logits, rows

    def at_once(self, base: Base, circuits: int, sources: int | None = None, edges: bool = False) -> int:
        """How many circuits run together on some examples; at least one, as `parts` saw to it.

        Args:
            base: the examples. circuits: how many there are. sources, edges: as `parts` has them.
        """
        rows = base.sample.batch.rows
        free = self.budget - self._base_bytes(self._width * rows)
        fits = free // self._circuit_bytes(base.n_tokens, rows, sources, edges)
        return self._fitting(max(1, fits), max(1, min(circuits, _ROW_TOKENS // max(base.n_tokens, 1))))

    def _fitting(self, fits: int, useful: int) -> int:
        """The smaller of two numbers; remembers whether memory was what made it so."""
        self._kept["cut"] = self._kept.get("cut", False) or fits < useful
        return min(fits, useful)

    def cut(self, parts: int, passes: int) -> tuple[str, ...]:
        """A note where memory allowed fewer rows at once than are useful: into how many pieces the work was cut."""
        if not self._kept.get("cut"):
            return ()
        made = f"{parts} groups of examples and {passes} passes"
        return (f"cut into {made} to fit {show(self.budget)} of memory; with a larger budget it takes fewer",)

    def measured(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """The metric of logits `[circuit, example, vocab]` of some examples, `[circuit, example]`; differentiable."""
        numbers = torch.tensor(list(rows), device=logits.device).repeat(len(logits))
        values = measure(self.data.metric, logits.flatten(0, 1), numbers).unflatten(0, logits.shape[:2])
        return values if values.requires_grad else values.float().cpu()

    def logits(self, masks: Tensor, part: Sequence[int] | None = None) -> Tensor:
        """Logits at the answer position of circuits given as soft masks, differentiable in the masks.

        Args:
            masks: how much of each edge is kept, `[circuit, source, target]`, or of each source, `[circuit, source]`: 1
                carries what the circuit's own run has there, 0 the patched value.
            part: numbers of examples, None for all.

        Returns:
            `[circuit, example, vocab]`.

        Raises:
            ShapeMismatch: masks of another graph.
        """
        return run_dense(self._base(tuple(range(self.data.clean.rows) if part is None else part)), masks)

    def _base(self, part: tuple[int, ...]) -> Base:
        """Kept for the examples of the last call: a search runs many masks on the same ones."""
        if self._kept.get("part") != part:
            self._kept.update(part=part, base=self.base(part)[0])
        return self._kept["base"]
