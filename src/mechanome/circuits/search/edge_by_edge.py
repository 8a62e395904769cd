"""ACDC (Conmy et al. 2023): each edge in turn is taken out, and stays out if the objective hardly changes.

Edges are decided from the outputs backward, so that everything before an edge is still the model and is not run again.
The sequential version runs one circuit per decision. The speculative one guesses what the next decisions will be, runs
their circuits together, and keeps the decisions up to the first wrong guess: the same decisions in fewer, larger
batches (`mechanome.circuits.search.speculation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.given import given
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import scores as score_edges
from mechanome.circuits.search.decisions import ORDERS, Decision, Decisions, Edge, Remaining, edges_in_order
from mechanome.circuits.search.found import Found, trimmed
from mechanome.circuits.search.limits import worth
from mechanome.circuits.search.objectives import Objective, objective_of
from mechanome.circuits.search.running import Runner
from mechanome.circuits.search.speculation import Speculation
from mechanome.core import BadInput
from mechanome.core.progress import Bar
from mechanome.engine.asked import count, one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.circuits.graph import Graph
    from mechanome.tasks import Task


def acdc(
    graph: Graph,
    data: Task | Sequence[Any],
    metric: Metric | None = None,
    *,
    threshold: float,
    objective: str | Objective = "kl",
    start: Circuit | None = None,
    order: str = "backward",
    speculate: bool = True,
    scores: Scores | None = None,
    at_most: int = 64,
    prune: bool = True,
    intervention: str | Intervention = "patch",
    budget: Budget = None,
    seed: int = 0,
    quiet: bool = False,
) -> Found:
    """Take out every edge without which the objective rises by less than a threshold.

    An edge from source to target is removed if `objective(circuit without it) - objective(circuit) < threshold`, both
    means over the examples, where the circuit is what remains when it is this edge's turn.

    Speculation decides the same. Batches of another size round otherwise, so a change that lies closer to the threshold
    than rounding can move it is measured again on both circuits run alone, as the sequential version runs them all. How
    far rounding goes is itself measured, on circuits run both ways.

    Args:
        graph, data, metric, intervention, budget: as `execute` has them.
        threshold: in units of the objective, positive.
        objective: a name of `mechanome.circuits.OBJECTIVES` or a function of `Said`.
        start: the edges to decide; all others are out from the beginning. None for all edges. With a smaller start the
            blocks before an edge are run again for each circuit, as far as they are live.
        order: "backward" or "random", see `edges_in_order`; other orders lead to other circuits.
        speculate: run circuits of guessed decisions together; False runs one after the other.
        scores: of edges, to guess by: the larger a score, the likelier its edge stays; None scores by EAP.
        at_most: circuits in a batch; memory may allow fewer.
        prune: leave out edges that can change nothing in the end.
        seed: of a random order.
        quiet: no progress bar.

    Returns:
        a `Found` whose `history` is a `Decisions`.

    Raises:
        BadInput: a threshold that is not positive, names that do not exist, a start or scores of another graph, and as
            `execute`. NotFinite, ShapeMismatch, BudgetTooSmall: as `execute`.
    """
    limit = worth(threshold)
    name, function = objective_of(objective)
    one_of("order", order, ORDERS, "there is no such order")
    at_most = count("at_most", at_most)
    if start is not None:
        given("start=", start, Circuit, graph)
    if scores is not None:
        given("scores=", scores, Scores, graph).edge_values()
    whole = start is None or len(start) == graph.n_edges
    edges = graph.mask.clone() if start is None else start.edges.clone()
    todo = edges_in_order(graph, edges, order, seed)
    if not todo:
        raise BadInput("start=", "it has no edges to decide", "give a circuit with edges, or None")
    if not whole:
        todo = [edge._replace(known=0) for edge in todo]
    runner = Runner.of(graph, data, metric, function, intervention=intervention, budget=budget)
    remaining = Remaining.of(graph, edges, runner.own() if whole else runner.values(edges[None])[0])
    with Bar("deciding edges", len(todo), quiet) as bar:
        if speculate:
            if scores is None:
                scores = score_edges(
                    graph, data, metric, method="eap", intervention=intervention, budget=budget, quiet=quiet
                )
            history = Speculation.of(runner, todo, remaining, scores, limit, at_most).run(name, bar)
        else:
            history = _one_by_one(runner, todo, remaining, limit, name, bar)
    kind = runner.ready.intervention.kind
    circuit, notes = trimmed(graph, remaining.edges, kind, prune)
    if 2 * history.rounding >= limit:
        notes += (f"the threshold is within rounding (about {history.rounding:.1g}): most circuits were run alone",)
    return Found(circuit, "acdc", scores if speculate else None, history.circuits, (repr(history), *notes), history)


def _one_by_one(
    runner: Runner, todo: Sequence[Edge], remaining: Remaining, threshold: float, objective: str, bar: Bar
) -> Decisions:
    """Decide edges in order, one circuit each; `remaining` is what is left in the end."""
    made: list[Decision] = []
    for edge in todo:
        candidate, change, kept = remaining.without(edge), None, False
        value = remaining.value
        if remaining.leads_on(edge.target):
            value = runner.values(candidate[None], edge.known)[0]
            change = value - remaining.value
            kept = change >= threshold
        if not kept:
            remaining.edges, remaining.value = candidate, value
        made.append(Decision(edge, change, kept))
        bar.advance()
    run = sum(decision.change is not None for decision in made)
    return Decisions(runner.graph, tuple(made), threshold, objective, run, run)
