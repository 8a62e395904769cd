"""How good circuits of nodes are: only they speak (faithfulness), or all but they do (completeness).

Faithfulness of `C` is `(m(C) - m(0)) / (m(M) - m(0))` with all other nodes at their means, completeness the same of the
complement: 1 and 0 where a circuit is all that matters. Whatever is no node is left alone: with nodes at `mlp_act`,
attention and embeddings are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from mechanome.circuits.measured import Measured, over_examples
from mechanome.circuits.neurons.node_circuit import Fill, NodeCircuit
from mechanome.core import BadInput, NotFinite, Table, track
from mechanome.engine import Edit
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric, measure

LEAST = 0.2
"""The smallest `abs(m(M) - m(0))` that ratios may be taken of: below it they are noise."""


@dataclass(frozen=True, eq=False)
class NodeRuns:
    """What circuits of nodes did.

    Args:
        circuits: which.
        values, without: the metric of each circuit and of its complement, `[circuit, example]`.
        clean, empty: of the model, and with no node speaking, `[example]`.
    """

    circuits: tuple[NodeCircuit, ...] = field(repr=False)
    values: Tensor = field(repr=False)
    without: Tensor = field(repr=False)
    clean: Tensor = field(repr=False)
    empty: Tensor = field(repr=False)

    @property
    def sizes(self) -> list[int]:
        """Nodes of each circuit."""
        return [len(c) for c in self.circuits]

    def faithfulness(self) -> tuple[Measured, ...]:
        """Of each circuit, a ratio of means over examples with a bootstrap interval over them; it can exceed 1."""
        return tuple(self._ratio("faithfulness", row) for row in self.values)

    def completeness(self) -> tuple[Measured, ...]:
        """Of each circuit: what its complement keeps."""
        return tuple(self._ratio("completeness", row) for row in self.without)

    def needed(self, level: float = 0.5) -> float:
        """Nodes from which on faithfulness is `level`, on a straight line in log size; infinite if it never is."""
        return nodes_needed(self.sizes, [float(m) for m in self.faithfulness()], level)

    def table(self) -> Table:
        """One row per circuit."""
        rows = [
            (n, str(f.interval or f.value), str(c.interval or c.value), abs(1 - float(f)))
            for n, f, c in zip(self.sizes, self.faithfulness(), self.completeness())
        ]
        return Table(("nodes", "faithfulness", "completeness", "|1 - faithfulness|"), rows)

    def _ratio(self, name: str, values: Tensor) -> Measured:
        return over_examples(name, torch.stack([values, self.clean, self.empty], 1).double().numpy(), ratio)


def ratio(rows: np.ndarray) -> float:
    """`(m(C) - m(0)) / (m(M) - m(0))` of means over rows `[row, (C, M, 0)]`; NaN where the effect is below `LEAST`."""
    circuit, model, empty = rows.mean(0)
    return float((circuit - empty) / (model - empty)) if abs(model - empty) >= LEAST else float("nan")


def nodes_needed(sizes: Sequence[int], faithful: Sequence[float], level: float) -> float:
    """The size at which a curve first reaches a level, on a straight line in log size between its points."""
    before: tuple[float, float] | None = None
    for size, value in sorted(zip(sizes, faithful)):
        if value >= level:
            if before is None:
                return float(size)
            share = (level - before[1]) / (value - before[1])
            return math.exp((1 - share) * math.log(before[0]) + share * math.log(size))
        before = (size, value)
    return math.inf


def run_edited(
    circuit: NodeCircuit, edits: Sequence[Edit], inputs: Inputs, metric: Metric, budget: Budget = None
) -> Tensor:
    """The metric `[example]` of prompts under edits of a circuit (`keep`, `set`, `scale`)."""
    model = circuit.nodes.model
    batch = model.encode(inputs)
    circuit.nodes.check(batch)
    logits = model.run(batch, edits=edits, logits="last", budget=budget).logits
    if logits is None or not bool(torch.isfinite(logits).all()):
        raise NotFinite(f"logits of {model.name}", "some are NaN or infinite", "load it in float32")
    return measure(metric, logits, torch.arange(batch.rows, device=logits.device)).float().cpu()


def evaluate(
    circuits: NodeCircuit | Iterable[NodeCircuit],
    inputs: Inputs,
    metric: Metric,
    fill: Fill,
    *,
    budget: Budget = None,
    quiet: bool = False,
) -> NodeRuns:
    """Run circuits and their complements.

    Args:
        circuits: of the same nodes.
        inputs: prompts.
        metric: `metric(logits [rows, vocab], rows [rows]) -> [rows]`, read at the last token.
        fill: what other nodes are set to: `Fill.means(nodes, prompts)`, or `Fill.zeros(nodes)`.
        budget: memory of one run. quiet: no progress bar.

    Raises:
        BadInput: no circuits, circuits of other nodes than the fill, prompts of other positions, or a metric that is
            the same with and without all nodes, so that ratios mean nothing.
        NotFinite: logits that are NaN or infinite.
    """
    given = (circuits,) if isinstance(circuits, NodeCircuit) else tuple(circuits)
    if not given:
        raise BadInput("circuits", "there are none", "give at least one")
    batch = fill.nodes.model.encode(inputs)
    none = NodeCircuit.of(fill.nodes, ())
    clean = run_edited(none, [], batch, metric, budget)
    empty = run_edited(none, none.keep(fill), batch, metric, budget)
    effect = abs(float(clean.mean() - empty.mean()))
    if effect < LEAST:
        why = f"it changes by {effect:.2g} when all nodes are replaced, and ratios below {LEAST} are noise"
        raise BadInput("the metric", why, "choose other prompts, or counterfactuals that are balanced")
    rows = [
        [run_edited(c, c.keep(fill), batch, metric, budget) for c in (circuit, ~circuit)]
        for circuit in track(given, "running circuits", quiet=quiet)
    ]
    values, without = (torch.stack(column) for column in zip(*rows))
    return NodeRuns(given, values, without, clean, empty)
