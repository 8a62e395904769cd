"""Minimality: whether a circuit needs all its edges (Wang et al. 2023).

Edges, or random sets of them, are taken out one at a time, and the circuit without them is run. An edge that changes
nothing is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.execution import Executed, execute
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import faithfulness
from mechanome.core import BadInput, Table, binomial
from mechanome.engine.asked import count, seeded_generator


@dataclass(frozen=True, eq=False)
class Minimality:
    """What a circuit loses without some of its edges.

    Args:
        circuit: the circuit.
        removed: the sets of edges that were taken out.
        whole: the circuit's faithfulness.
        without: the faithfulness without each set.
        found: the runs: first the circuit, then without each set.
    """

    circuit: Circuit
    removed: tuple[Circuit, ...] = field(repr=False)
    whole: Measured
    without: tuple[Measured, ...] = field(repr=False)
    found: Executed = field(repr=False)

    @property
    def losses(self) -> tuple[float | None, ...]:
        """By how much faithfulness falls without each set; negative where it rises, None where it is not defined."""
        whole = self.whole.value
        return tuple(None if whole is None or w.value is None else whole - w.value for w in self.without)

    def needless(self, within: float) -> Measured:
        """The share of sets without which faithfulness stays within `within` of the circuit's; 0 for a minimal one.

        Args:
            within: in units of faithfulness, so 0.01 is a hundredth of the total effect.
        """
        losses = [loss for loss in self.losses if loss is not None]
        if not losses:
            return Measured("needless sets of edges", None, note=self.whole.note)
        interval = binomial(sum(abs(loss) <= within for loss in losses), len(losses))
        note = f"over {len(losses)} sets of {len(self.removed[0])} edges"
        return Measured("needless sets of edges", interval.estimate, interval, note)

    def table(self, k: int | None = 20) -> Table:
        """The sets that are needed most."""
        pairs = sorted(zip(self.losses, self.removed), key=lambda pair: -(pair[0] or 0.0))
        rows = [(", ".join(list(edges)[:3]) + (" ..." if len(edges) > 3 else ""), loss) for loss, edges in pairs[:k]]
        return Table(["edges taken out", "loss of faithfulness"], rows, f"{self.circuit!r}: {self.whole}")


def minimality(
    circuit: Circuit,
    data: Any,
    metric: Any = None,
    *,
    sets: int | None = None,
    size: int = 1,
    seed: int = 0,
    **settings: Any,
) -> Minimality:
    """Run a circuit without each of its edges, or without random sets of them.

    Args:
        circuit: not empty.
        data, metric, settings: as `execute` has them.
        sets: how many sets to draw, without repeating an edge within one; None for every edge once (`size` 1).
        size: edges in a set.
        seed: of the draw.

    Raises:
        BadInput: an empty circuit, sets larger than it, or larger than one edge without saying how many.
    """
    size = count("size", size)
    edges = circuit.edges.nonzero()
    if size > len(edges):
        raise BadInput(f"sets of {size} edges", f"the circuit has {len(edges)}", "choose a smaller size")
    if sets is None and size > 1:
        raise BadInput(f"sets of {size} edges", "there are too many to run them all", "say how many: sets=100")
    chosen: Sequence[torch.Tensor]
    if sets is None:
        chosen = list(edges.split(1))
    else:
        generator = seeded_generator(seed)
        draws = [torch.randperm(len(edges), generator=generator)[:size] for _ in range(count("sets", sets))]
        chosen = [edges[draw] for draw in draws]
    removed = []
    for pairs in chosen:
        out = torch.zeros_like(circuit.edges)
        out[pairs[:, 0], pairs[:, 1]] = True
        removed.append(Circuit(circuit.graph, out))
    found = execute([circuit, *(circuit - out for out in removed)], data, metric, **settings)
    whole, *without = faithfulness(found)
    return Minimality(circuit, tuple(removed), whole, tuple(without), found)
