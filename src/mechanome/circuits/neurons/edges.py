"""Edges among a circuit's neurons: how much of a neuron's activation another one makes, directly.

In the replacement model of `relp_rules` a neuron `t` is linear in the stream, so what `s` gives to it is
`v_s * dv_t / dv_s`. Edges are direct: MLPs between the two pass no gradient, only the stream and attention do. A gated
neuron counts as the product it is, with half of its gradient to each factor, so that what arrives at it sums to it. One
more target, the metric, gets what each node gives to it directly. (Paper 20, section on edges.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.attribution import relp_rules
from mechanome.circuits.neurons.node_circuit import NodeCircuit
from mechanome.core import BadInput, NotServed, Table, track, write_json
from mechanome.engine import Batch, Edit
from mechanome.engine.edits import Custom
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces
from mechanome.engine.metrics import Metric
from mechanome.engine.operations import take_positions

_EPS = 1e-6


@dataclass(frozen=True, eq=False)
class NodeEdges:
    """Direct edges among nodes.

    Args:
        circuit: whose nodes. members: their numbers, sources and targets in this order; the metric is one more target.
        values: what a source gives to a target, mean over examples, `[source, target]`.
        relative: the same over the target's own value.
    """

    circuit: NodeCircuit
    members: tuple[int, ...] = field(repr=False)
    values: Tensor = field(repr=False)
    relative: Tensor = field(repr=False)

    def names(self) -> tuple[str, ...]:
        """Of the targets; all but the last are sources too."""
        return (*map(self.circuit.nodes.name, self.members), "metric")

    def strongest(self, share: float) -> Tensor:
        """The share of all edges that is largest by size, relative to its target, booleans `[source, target]`.

        Raises:
            BadInput: a share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise BadInput(f"share={share}", "it is no share", "give a number above 0, up to 1")
        sizes = self.relative.abs()
        n = round(share * int((sizes > 0).sum()))
        kept = torch.zeros(sizes.numel(), dtype=torch.bool)
        kept[sizes.flatten().topk(n).indices] = True
        return kept.view_as(sizes)

    def connected(self, share: float) -> NodeCircuit:
        """The nodes that still have an edge when only the strongest are left."""
        kept = self.strongest(share)
        touched = kept.any(1) | kept[:, :-1].any(0)
        return NodeCircuit.of(self.circuit.nodes, [n for n, used in zip(self.members, touched.tolist()) if used])

    def table(self, k: int = 20) -> Table:
        """The strongest edges."""
        names, width = self.names(), self.values.shape[1]
        order = self.relative.abs().flatten().topk(min(k, self.values.numel())).indices.tolist()
        rows = [
            (names[i // width], names[i % width], float(self.values.flatten()[i]), float(self.relative.flatten()[i]))
            for i in order
        ]
        return Table(("from", "to", "gives", "share of the target"), rows)

    def record(self, share: float = 1.0) -> dict[str, Any]:
        """As plain data: nodes and the strongest edges."""
        kept = self.strongest(share).nonzero().tolist()
        names = self.names()
        edges = [[names[s], names[t], float(self.values[s, t]), float(self.relative[s, t])] for s, t in kept]
        return {"nodes": list(names), "edges": edges}

    def save(self, path: str | Path, share: float = 1.0) -> None:
        """Write `record` as JSON, whole or not at all."""
        write_json(Path(path), self.record(share))


def node_edges(
    circuit: NodeCircuit, inputs: Inputs, metric: Metric, *, budget: Budget = None, quiet: bool = False
) -> NodeEdges:
    """Direct edges among the neurons of a circuit, and from each to the metric.

    Args:
        circuit: of nodes at `mlp_act`, number by number.
        inputs: prompts that have these positions.
        metric: read at the last token.
        budget: memory of one pass; a row is one target on one example. quiet: no progress bar.

    Raises:
        NotServed: nodes of other sites. BadInput: an empty circuit, prompts of other positions.
        BudgetTooSmall: not even one target of one example fits.
    """
    nodes = circuit.nodes
    if any(site.site.point != "mlp_act" or site.basis is not None for site in nodes.sites):
        raise NotServed("edges of these nodes", "they are defined among neurons", "use Nodes.of(model, ..., 'mlp_act')")
    members = tuple(circuit)
    if not members:
        raise BadInput("a circuit", "it has no nodes", "choose some")
    batch = nodes.model.encode(inputs)
    nodes.check(batch)
    targets: list[int | None] = [*members, None]
    todo = [(row, target) for target in targets for row in range(batch.rows)]
    width = nbytes(max(batch.frame.width, 1) * nodes.model.n_layers, 8 * max(s.width for s in nodes.sites))
    size = pieces(len(todo), width, parse_budget(budget, nodes.model.device), "target of an example")
    values, own = torch.zeros(len(targets), len(members)), torch.zeros(len(targets))
    place = {target: i for i, target in enumerate(targets)}
    for first in track(range(0, len(todo), size), "edges of neurons", quiet=quiet or size >= len(todo)):
        some = todo[first : first + size]
        gives, reached = _pass(circuit, members, batch, metric, some)
        at = torch.tensor([place[target] for _, target in some])
        values.index_add_(0, at, gives / batch.rows)
        own.index_add_(0, at, reached / batch.rows)
    relative = values / (own.abs() + _EPS)[:, None]
    return NodeEdges(circuit, members, values.T.contiguous(), relative.T.contiguous())


def _pass(
    circuit: NodeCircuit,
    members: Sequence[int],
    batch: Batch,
    metric: Metric,
    some: Sequence[tuple[int, int | None]],
) -> tuple[Tensor, Tensor]:
    """What every member gives to the target of each row, `[row, member]`, and the target's own value `[row]`."""
    nodes = circuit.nodes
    rows = torch.tensor([row for row, _ in some])
    repeated = batch.take(rows.tolist())
    seen: dict[int, Tensor] = {}
    # Cut behind every neuron, so that gradients come by the stream and attention alone; the target is read in front.
    edits: list[Edit] = [
        Custom(site.site, partial(_cut, seen, index, nodes.last), pos=nodes.place)
        for index, site in enumerate(nodes.sites)
    ]
    where = [None if target is None else nodes.where(target) for _, target in some]

    def value(logits: Tensor, of: Tensor) -> Tensor:
        found = metric(logits, rows.to(of.device)[of])
        picked = [found[i] if at is None else seen[at[0]][i, at[1] + nodes.last, at[2]] for i, at in enumerate(where)]
        # Neurons of the first layer depend on no other: the metric, times 0, keeps a gradient to be taken.
        return torch.stack(picked) + 0 * found

    sites = [site.site for site in nodes.sites]
    found = nodes.model.grad(value, repeated, sites, edits=edits, rules=relp_rules(nodes.model))
    gives = [
        take_positions(found.run[s], repeated.frame, nodes.place)
        * take_positions(found[s], repeated.frame, nodes.place)
        for s in sites
    ]
    chosen = torch.tensor(list(members))
    return nodes.joined(gives).float().cpu()[:, chosen], found.metric.detach().float().cpu()


def _cut(seen: dict[int, Tensor], index: int, last: int, x: Tensor) -> Tensor:
    seen[index] = x.unflatten(0, (-1, last))
    return x.detach()
