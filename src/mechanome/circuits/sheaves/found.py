"""`Sheaves`: several circuits for one task, what each does alone, and what the model does without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.execution import Executed, execute
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import accuracy
from mechanome.circuits.search.mask_training import Training
from mechanome.circuits.sheaves.comparing import Shared, iou_matrix, mean_iou, shared_edges
from mechanome.core import BadInput, Table


@dataclass(frozen=True, eq=False)
class Sheaves:
    """Circuits, and how good they are.

    A circuit is complete only if the model fails without it, and it may fail because the task needs two parts; so both
    numbers belong together, beside those of random circuits of the same size.

    Args:
        circuits: without dangling edges.
        done: the circuits, run alone.
        without: the model without each of them.
        random: random circuits of the same sizes, run alone.
        trainings: of masks, where these were trained.
        notes: what a reader must know: circuits that are degenerate, edges that were left out.
    """

    circuits: tuple[Circuit, ...]
    done: Executed = field(repr=False)
    without: Executed = field(repr=False)
    random: Executed = field(repr=False)
    trainings: tuple[Training, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def measured(
        cls,
        circuits: Sequence[Circuit],
        data: Any,
        metric: Any = None,
        *,
        trainings: Sequence[Training] = (),
        seed: int = 0,
        **settings: Any,
    ) -> Sheaves:
        """Prune circuits, however they were found, and run them, their complements and random ones.

        Args:
            circuits: of one graph.
            data, metric: as `execute` has them. settings: the same; the intervention is "zero" where none is given.
            trainings: of the masks. seed: of random circuits.

        Raises:
            BadInput: no circuits, and as `execute`.
        """
        if not circuits:
            raise BadInput("sheaves", "there are no circuits", "give at least one")
        pruned = [circuit.pruned() for circuit in circuits]
        generator = torch.Generator().manual_seed(seed)
        sets = [*pruned, *(~c for c in pruned), *(_random(c, generator) for c in pruned)]
        ran = execute(sets, data, metric, **{"intervention": "zero", **settings})
        done, without, random = (_rows(ran, i * len(pruned), len(pruned)) for i in range(3))
        return cls(tuple(pruned), done, without, random, tuple(trainings), tuple(_notes(circuits, pruned)))

    @property
    def accuracy(self) -> tuple[Measured, ...]:
        """Of each circuit alone: share of examples with the good answer before the bad one."""
        return accuracy(self.done)

    @property
    def complement_accuracy(self) -> tuple[Measured, ...]:
        """Of the model without each circuit; 0.5 is chance, and near it the circuit is complete."""
        return accuracy(self.without)

    @property
    def random_accuracy(self) -> tuple[Measured, ...]:
        """Of a random circuit of each one's size."""
        return accuracy(self.random)

    @property
    def iou(self) -> Tensor:
        """IoU of every pair, `[circuit, circuit]` float64; NaN for two without edges."""
        return iou_matrix(self.circuits)

    @property
    def mean_iou(self) -> float:
        """Mean over pairs. Raises `BadInput` for a single circuit."""
        return mean_iou(self.circuits)

    @property
    def shared(self) -> tuple[Shared, ...]:
        """What the first one, two, ... circuits have in common."""
        return shared_edges(self.circuits)

    def few(self, most: int = 3) -> Circuit | None:
        """The circuit with the highest accuracy among those of one to `most` edges, None where there is none."""
        small = [(float(a), -i) for i, (c, a) in enumerate(zip(self.circuits, self.accuracy)) if 0 < len(c) <= most]
        return self.circuits[-max(small)[1]] if small else None

    def table(self) -> Table:
        """One row a circuit."""
        columns = ["circuit", "edges", "share", "accuracy", "without it", "random of its size"]
        measures = zip(self.circuits, self.accuracy, self.complement_accuracy, self.random_accuracy)
        rows = [(i, len(c), c.share, a.value, b.value, r.value) for i, (c, a, b, r) in enumerate(measures, 1)]
        return Table(columns, rows, "; ".join([repr(self), *self.notes]))

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(c)) for c in self.circuits)
        pairs = f", mean IoU {self.mean_iou:.3g}" if len(self.circuits) > 1 else ""
        return f"{len(self.circuits)} sheaves of {sizes} edges{pairs}"

    def _repr_html_(self) -> str:
        return self.table().html()


def _notes(circuits: Sequence[Circuit], pruned: Sequence[Circuit]) -> list[str]:
    """Degenerate circuits, and edges that were left out."""
    found, seen = [], list[Circuit]()
    for number, (whole, kept) in enumerate(zip(circuits, pruned), 1):
        if not len(whole):
            found.append(f"circuit {number} has no edges")
        elif not len(kept):
            found.append(f"circuit {number} is empty: its {len(whole)} edges lie on no path to the logits")
        elif len(kept) == kept.graph.n_edges:
            found.append(f"circuit {number} is the whole model")
        elif kept in seen:
            found.append(f"circuit {number} is the same as circuit {seen.index(kept) + 1}")
        elif len(whole) > len(kept):
            found.append(f"circuit {number}: {len(whole) - len(kept)} dangling edges were left out")
        seen.append(kept)
    return found


def _random(circuit: Circuit, generator: torch.Generator) -> Circuit:
    """A random circuit of the same size."""
    pairs = circuit.graph.mask.nonzero()
    chosen = pairs[torch.randperm(len(pairs), generator=generator)[: len(circuit)]]
    edges = torch.zeros_like(circuit.edges)
    edges[chosen[:, 0], chosen[:, 1]] = True
    return Circuit(circuit.graph, edges)


def _rows(ran: Executed, first: int, n: int) -> Executed:
    some = slice(first, first + n)
    return replace(
        ran,
        circuits=ran.circuits[some], values=ran.values[some], divergence=ran.divergence[some],
        agrees=ran.agrees[some], methods=ran.methods[some], logits=None,
    )  # fmt: skip
