"""Learned masks: all edges at once, by gradient.

Each edge has a gate; what the model says under masks stays close to what it says, while a size or a price closes gates.
With the hard-concrete gate and a size this is edge pruning (Bhaskar et al. 2024), but for the size, which is asked for
on a logarithmic scale, and for what is kept in the end: exactly so many edges, those of the largest logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.search.found import Found, empty_edges, trimmed
from mechanome.circuits.search.gates import GATES
from mechanome.circuits.search.limits import one_limit, size_up_to, worth
from mechanome.circuits.search.mask_training import Loss, Moment, train_masks
from mechanome.circuits.search.objectives import Objective, objective_of
from mechanome.circuits.search.running import Runner
from mechanome.circuits.search.sparsity import Price, TargetSize
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task

_EXTRA = "give extra(moment) -> a tensor [circuit], or None for nothing this time"


def learned_mask(
    graph: Graph,
    data: Task | Sequence[Any],
    metric: Metric | None = None,
    *,
    size: int | None = None,
    threshold: float | None = None,
    gate: str = "hard-concrete",
    objective: str | Objective = "kl",
    start: Circuit | None = None,
    extra: Loss | None = None,
    steps: int = 400,
    rate: float = 0.1,
    batch: int = 8,
    prune: bool = True,
    intervention: str | Intervention = "patch",
    budget: Budget = None,
    seed: int = 0,
    quiet: bool = False,
) -> Found:
    """Train a mask of all edges and keep the edges whose gates are open.

    Args:
        graph, data, metric, intervention, budget: as `execute` has them; the budget does not bound the training.
        size: keep the so many edges of the largest logits, after a training that drives the masks to this size.
        threshold: or pay this for each open edge, in units of the objective, and keep edges of positive logit.
        gate: a name of `mechanome.circuits.GATES`.
        objective: a name of `mechanome.circuits.OBJECTIVES` or a function of `Said`.
        start: edges that may be open; None for all.
        extra: one more loss, `extra(moment) -> [circuit]` (see `mechanome.circuits.search.mask_training`).
        steps: of training. rate: learning rate of Adam.
        batch: examples of a step, drawn once; memory grows with it.
        prune: leave out edges that can change nothing in the end.
        seed: of initial logits, examples and gates.
        quiet: no progress bar.

    Returns:
        a `Found` whose `history` is a `Training`.

    Raises:
        BadInput: no limit or two, a size beyond the edges, names that do not exist, a rate that is not positive, and as
            `execute`. NotFinite: a loss, a metric or logits that are NaN or infinite. ShapeMismatch: as `execute`.
    """
    one_limit(size, threshold)
    chosen = GATES[one_of("gate", gate, GATES, "there is no such gate")]
    name, function = objective_of(objective)
    steps, batch, rate = count("steps", steps), count("batch", batch), worth(rate, "rate")
    if start is not None:
        given("start=", start, Circuit, graph)
    if extra is not None and not callable(extra):
        raise BadInput("extra=", f"it is no function but {type(extra).__name__}", _EXTRA)
    allowed = graph.mask if start is None else start.edges
    total = int(allowed.sum())
    if not total:
        raise BadInput("start=", "it has no edges", "give a circuit with edges, or None")
    asked = None if size is None else size_up_to(size, total, "edges to choose from")
    price = worth(threshold) if asked is None else 0.0
    runner = Runner.of(graph, data, metric, function, intervention=intervention, budget=budget, batch=batch, seed=seed)
    (empty,), own = runner.values(empty_edges(graph)[None]), runner.own()
    sparse = Price(price) if asked is None else TargetSize(asked, total, scale=abs(empty - own) or 1.0)

    def loss(moment: Moment) -> Tensor:
        found = moment.cost(moment.draw()) + sparse(moment)
        more = None if extra is None else _more(extra, moment)
        return found if more is None else found + more

    history = train_masks(
        runner,
        chosen,
        [loss],
        steps=steps,
        rate=rate,
        allowed=allowed,
        multipliers=sparse if isinstance(sparse, TargetSize) else None,
        seed=seed,
        quiet=quiet,
    )
    edges = history.edges(asked)[0]
    circuit, notes = trimmed(graph, edges, runner.ready.intervention.kind, prune)
    (value,) = runner.values(edges[None])
    reached = f"{name} of the circuit {value:.4g}, of the model {own:.4g}, of the empty circuit {empty:.4g}"
    return Found(circuit, gate, None, steps + 2, (reached, *notes), history)


def _more(extra: Loss, moment: Moment) -> Tensor | None:
    """What one more loss returns, of the shape it is to have."""
    found: Any = extra(moment)
    if found is None or (isinstance(found, Tensor) and found.shape == moment.logits.shape[:1]):
        return found
    got = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
    raise BadInput("extra=", f"it returned {got} for {len(moment.logits)} circuits", _EXTRA)
