"""What each node does to a metric, to first order: RelP, integrated gradients, the plain gradient.

| method | gradient by a node's value | passes |
|---|---|---|
| `relp` | of the model with `relp_rules`: linear norms and activations, constant attention, halved gates | 1 |
| `ig` | mean over points between the other value of the node's whole site and its own | `steps` a site |
| `gradient` | of the model | 1 |

A node's score is that gradient times `own value - other value`: the other one comes from the counterfactual prompt, or
is zero where there is none. Positive scores speak for the metric; scores of graphs
(`mechanome.circuits.scores`) have the other sign, as effects of taking the value away.

Source: paper 20, Arora et al. 2026, arXiv 2601.22594.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.attribution import QUADRATURES, relp_rules
from mechanome.circuits.neurons.node_circuit import NodeCircuit
from mechanome.circuits.neurons.nodes import Nodes, SiteNodes
from mechanome.core import BadInput, NotFinite, NotServed, ShapeMismatch, Table, track
from mechanome.engine import Batch, Edit, Where
from mechanome.engine.asked import count, one_of
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces
from mechanome.engine.metrics import Metric, measure
from mechanome.engine.operations import take_positions
from mechanome.engine.site import Site


@dataclass(frozen=True, eq=False)
class NodeScores:
    """Scores of nodes.

    Args:
        nodes: which.
        values: mean over examples, `[node]`.
        method: how. each: per example `[example, node]`; None if not asked for.
        metric: of the examples, `[example]`.
    """

    nodes: Nodes
    values: Tensor = field(repr=False)
    method: str
    metric: Tensor = field(repr=False)
    each: Tensor | None = field(default=None, repr=False)

    def top(self, n: int) -> NodeCircuit:
        """The circuit of the `n` nodes with the largest scores by size."""
        return NodeCircuit.of(self.nodes, self.values.abs().topk(min(n, len(self.nodes))).indices.tolist())

    def by_unit(self) -> dict[Site, Tensor]:
        """Scores of units whatever the position: sums over positions, per site `[unit]`, the rest last."""
        return {site.site: part.sum(-2) for site, part in zip(self.nodes.sites, self.nodes.split(self.values))}

    def table(self, k: int = 12) -> Table:
        """The strongest nodes."""
        order = self.values.abs().topk(min(k, len(self.nodes))).indices.tolist()
        rows = [(self.nodes.name(i), float(self.values[i])) for i in order]
        return Table(("node", "score"), rows, f"{self.method} of {len(self.nodes)} nodes")


@dataclass(frozen=True)
class _Ask:
    """Some examples: prompts, counterfactuals, the metric of their rows, points of integrated gradients."""

    nodes: Nodes
    batch: Batch
    other: Batch | None
    metric: Metric
    points: Sequence[float] = ()

    def differentiate(
        self, sites: Sequence[SiteNodes], rules: Sequence[str] = (), edits: Sequence[Edit] = (), copies: int = 1
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Values and gradients `[row, pos, width]` of sites, and the metric, of so many copies of the batch."""
        n = self.batch.rows
        batch = self.batch if copies == 1 else self.batch.take(list(range(n)) * copies)
        wanted = [site.site for site in sites]
        found = self.nodes.model.grad(
            lambda logits, rows: self.metric(logits, rows % n), batch, wanted, edits=edits, rules=rules
        )
        values, slopes = (
            [take_positions(x[site], batch.frame, self.nodes.place) for site in wanted]
            for x in (found.run.captured, found.sites)
        )
        return values, slopes, found.metric


_Found = tuple[list[Tensor], list[Tensor | None], list[Tensor], Tensor]
"""Values, other values, and gradients of every site, and the metric."""


def _others(ask: _Ask) -> list[Tensor | None]:
    return [None] * len(ask.nodes.sites) if ask.other is None else [x for _, x in ask.nodes.read(ask.other)]


def _once(ask: _Ask, rules: Sequence[str]) -> _Found:
    values, slopes, metric = ask.differentiate(ask.nodes.sites, rules)
    return values, _others(ask), slopes, metric


def _along(ask: _Ask) -> _Found:
    """Each site in turn between its two values, all points in one pass."""
    run = ask.nodes.model.run(ask.batch, capture=[s.site for s in ask.nodes.sites], pos=ask.nodes.place, logits="last")
    values = [run[site.site] for site in ask.nodes.sites]
    if run.logits is None:
        raise NotServed("the metric", "this model has no logits", "open a model with a head")
    metric = measure(ask.metric, run.logits, torch.arange(ask.batch.rows, device=run.logits.device))
    others, slopes = _others(ask), []
    for site, own, other in zip(ask.nodes.sites, values, others):
        start = torch.zeros_like(own) if other is None else other
        line = torch.cat([start + alpha * (own - start) for alpha in ask.points])
        edit = Edit(site.site, "set", line, Where(pos=ask.nodes.place))
        _, (slope,), _ = ask.differentiate([site], edits=[edit], copies=len(ask.points))
        slopes.append(slope.unflatten(0, (len(ask.points), -1)).mean(0))
    return values, others, slopes, metric


METHODS: dict[str, Callable[[_Ask], _Found]] = {
    "relp": lambda ask: _once(ask, relp_rules(ask.nodes.model)),
    "ig": _along,
    "gradient": lambda ask: _once(ask, ()),
}


def attribute(
    nodes: Nodes,
    inputs: Inputs,
    metric: Metric,
    other: Inputs | None = None,
    *,
    method: str = "relp",
    steps: int = 10,
    quadrature: str = "midpoint",
    per_input: bool = False,
    budget: Budget = None,
    quiet: bool = False,
) -> NodeScores:
    """Score every node.

    Args:
        nodes: which.
        inputs: prompts that have these positions.
        metric: `metric(logits [rows, vocab], rows [rows]) -> [rows]`, read at the last token.
        other: counterfactual prompts, one for each; None for zero as the other value.
        method: a name of `METHODS`.
        steps, quadrature: of `ig`; where the points lie, a name of `mechanome.circuits.QUADRATURES`.
        per_input: keep the scores of every example in `NodeScores.each`.
        budget: memory for the examples that are differentiated at once, such as "2GB".
        quiet: no progress bar.

    Raises:
        BadInput: names that do not exist, prompts of other positions. ShapeMismatch: not one counterfactual each.
        NotServed: backward rules that this model does not have. NotFinite: scores that are NaN or infinite.
        BudgetTooSmall: not even one example fits.
    """
    one_of("method", method, METHODS, "there is no such method")
    one_of("quadrature", quadrature, QUADRATURES)
    points = QUADRATURES[quadrature](count("steps", steps)) if method == "ig" else ()
    batch, against = nodes.model.encode(inputs), None if other is None else nodes.model.encode(other)
    for given in filter(None, (batch, against)):
        nodes.check(given)
    if against is not None and against.rows != batch.rows:
        raise ShapeMismatch(f"{against.rows} counterfactuals", f"there are {batch.rows} prompts", "give one for each")
    total, each, metrics = torch.zeros(len(nodes)), [], []
    parts = list(_pieces(nodes, batch, max(1, len(points)), parse_budget(budget, nodes.model.device)))
    for rows in track(parts, f"{method} of nodes", quiet=quiet or len(parts) == 1):
        at = torch.tensor(list(rows))
        own = lambda logits, of, at=at: metric(logits, at.to(of.device)[of])  # noqa: E731
        ask = _Ask(nodes, batch.take(rows), None if against is None else against.take(rows), own, points)
        values, others, slopes, measured = METHODS[method](ask)
        products = [s.products(*of) for s, of in zip(nodes.sites, zip(values, others, slopes))]
        scores = nodes.joined(products).float().cpu()
        if not bool(torch.isfinite(scores).all()):
            raise NotFinite(f"scores of {nodes.model.name}", "some are NaN or infinite", "load it in float32")
        total += scores.sum(0)
        metrics.append(measured.detach().float().cpu())
        each += [scores] if per_input else []
    return NodeScores(nodes, total / batch.rows, method, torch.cat(metrics), torch.cat(each) if per_input else None)


def _pieces(nodes: Nodes, batch: Batch, copies: int, room: int) -> list[range]:
    """The examples in pieces whose differentiated pass fits into memory."""
    if not nodes.sites:
        raise BadInput("nodes", "there are none", "use Nodes.of")
    width = max(batch.frame.width, 1)
    # What autograd keeps of one token and block: about eight widths of its widest site, values and gradients.
    kept = nbytes(copies * width * nodes.model.n_layers, 8 * max(s.width for s in nodes.sites), dtype=nodes.model.dtype)
    size = pieces(batch.rows, kept + 4 * nbytes(len(nodes)), room, "example")
    return [range(first, min(first + size, batch.rows)) for first in range(0, batch.rows, size)]
