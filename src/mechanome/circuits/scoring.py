"""`scores`: one call for every way to score the edges or the sources of a graph.

Each way is a row of `METHODS`; they share the data, the interventions and what they return. Exact methods run the model
with one part patched, the others extrapolate from gradients and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.attribution import QUADRATURES, Ask, Found, on_activations, on_inputs, steps_of
from mechanome.circuits.circuit import Circuit
from mechanome.circuits.data import Data, read_data
from mechanome.circuits.exact import exact_edges, exact_nodes
from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention, Means
from mechanome.circuits.samples import additivity_error
from mechanome.circuits.score_matrix import Level, Scores
from mechanome.circuits.wiring import Wiring
from mechanome.core import BadInput, BudgetTooSmall, NotFinite, track
from mechanome.engine import Batch
from mechanome.engine.asked import names, one_of
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces, show
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task

Points = Callable[[str, int], list[tuple[float, float]]]


def _averaged(quadrature: str, steps: int) -> list[tuple[float, float]]:
    return [(alpha, 1.0 / steps) for alpha in QUADRATURES[quadrature](steps)]


@dataclass(frozen=True)
class Method:
    """One way to score.

    Args:
        definition: in one clause.
        estimate: whether it extrapolates.
        points: for gradient methods, the points of the line that are averaged.
        of: for gradient methods, from examples and points to scores.
        integrates: whether steps and quadrature matter.
    """

    definition: str
    estimate: bool = True
    points: Points | None = None
    of: Callable[[Ask, Any], Found] | None = None
    integrates: bool = False


METHODS: dict[str, Method] = {
    "exact": Method("the model is run with exactly this part patched", estimate=False),
    "eap": Method("gradient on the clean input (of sources: attribution patching)", True,
                  lambda quadrature, steps: [(1.0, 1.0)], on_inputs),
    "eap-ig": Method("gradient averaged between both inputs", True, _averaged, on_inputs, True),
    "eap-ig-activations": Method("gradient averaged between both values of each group of sources", True, _averaged,
                                 on_activations, True),
    "clean-corrupted": Method("gradient averaged over both inputs", True,
                              lambda quadrature, steps: [(0.0, 0.5), (1.0, 0.5)], on_inputs),
}  # fmt: skip


def scores(
    graph: Graph,
    data: Task | Sequence[Any],
    metric: Metric | None = None,
    *,
    method: str = "eap-ig",
    level: Level = "edge",
    intervention: str | Intervention = "patch",
    steps: int = 5,
    quadrature: str = "midpoint",
    per_input: bool = False,
    only: Circuit | None = None,
    rules: Sequence[str] = (),
    budget: Budget = None,
    quiet: bool = False,
) -> Scores:
    """Score every edge (or source) of a graph: by how much the metric changes where it carries something else.

    Args:
        graph: of an opened model.
        data: a `Task` with counterfactuals, a pair `(clean, corrupted)` of inputs, or a triple with the metric. The
            corrupted inputs may be None for interventions that need none.
        metric: `metric(logits [rows, vocab], rows [rows]) -> [rows]`, read at the last token; a task brings its own.
        method: a name of `METHODS`.
        level: "edge", or "node" for sources (with `eap` this is attribution patching).
        intervention: what a patched part carries: "patch", "zero", "mean", "positional-mean", "noise", or an
            `Intervention` with settings.
        steps, quadrature: points of integrated gradients, and where they lie (see `mechanome.circuits.attribution`).
        per_input: keep the scores of every example in `Scores.each`.
        only: exact effects only: measure the edges of this circuit, or the sources that it uses; the others are NaN.
        rules: of the backward pass, for gradient methods: those of `relp_rules(model)` with `method="eap"` are RelP.
        budget: memory for the examples that are differentiated at once, such as "2GB".
        quiet: no progress bar.

    Returns:
        a `Scores`, means over examples; each example counts the same.

    Raises:
        BadInput: names that do not exist, data without counterfactuals or metric, a graph without a model, a model in
            train mode, more than 10,000 steps.
        ShapeMismatch: an example whose two inputs differ in length.
        NotFinite: scores that are NaN or infinite.
        NotServed: a model whose parts turn out not to be what the graph says.
        BudgetTooSmall: not even one example fits.
    """
    one_of("method", method, METHODS, "there is no such method")
    one_of("level", level, ("edge", "node"))
    one_of("quadrature", quadrature, QUADRATURES)
    chosen, steps = METHODS[method], steps_of(steps)
    change = Intervention.of(intervention)
    if only is not None:
        given("only=", only, Circuit, graph)
        if method != "exact":
            raise BadInput("only=", "it chooses among parts that are measured", "use it with method='exact'")
    backward = names("rules", rules)
    if backward and chosen.of is None:
        raise BadInput("rules=", "they change backward passes, and exact effects have none", "choose another method")
    examples = read_data(graph, data, metric, change)
    wiring = Wiring.of(graph)
    every = torch.ones(len(graph.sources), dtype=torch.bool)
    edges, nodes = (graph.mask, every) if only is None else (only.edges, only.used)
    room, kept = parse_budget(budget, wiring.model.device), 0
    if level == "edge":
        kept = _of_edges(wiring, examples, room, per_input, edges if method == "exact" else None)
    batches = list(_batches(wiring, examples, room, kept))
    means = None
    if change.means:
        model = wiring.model
        reference = [b for b, _, _ in batches] if change.reference is None else [model.encode(change.reference)]
        means = Means.over(wiring, reference, change.kind == "positional-mean")
    parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
    notes = _of_precision(wiring.model.dtype) + ([f"backward rules: {', '.join(backward)}"] if backward else [])
    for clean, other, rows in track(batches, f"scoring {level}s", quiet=quiet or len(batches) == 1):
        ask = Ask(wiring, examples.metric, clean, other, rows, change, means, level == "edge", per_input, backward)
        if chosen.of is None:
            found = ask.sampled()
            plain = replace(ask, edges=False)
            values = exact_nodes(plain, nodes) if level == "node" else exact_edges(ask, edges)
            if not bool(torch.isfinite(values[:, nodes if level == "node" else edges]).all()):
                raise NotFinite(f"effects in {wiring.model.name}", "some are NaN or infinite", "load it in float32")
        else:
            assert chosen.points is not None
            result = chosen.of(ask, chosen.points(quadrature, steps))
            found, values = result.sample, result.nodes if result.edges is None else result.edges
        parts.append((values.cpu(), found.metric, found.corrupted))
        if not graph.additive and level == "edge" and len(parts) == 1:
            notes.append(
                f"edges into one target do not add up here: off by {additivity_error(found):.0%} on these inputs"
            )
    total = sum(values.sum(0) for values, _, _ in parts)
    corrupted = [c for _, _, c in parts if c is not None]
    return Scores(
        graph,
        total / examples.clean.rows,  # type: ignore[arg-type]
        level,
        method,
        change.kind,
        chosen.estimate,
        torch.cat([m for _, m, _ in parts]),
        torch.cat(corrupted) if corrupted else None,
        torch.cat([values for values, _, _ in parts]) if per_input else None,
        quadrature if chosen.integrates else None,
        steps if chosen.integrates else None,
        tuple(notes),
    )


def _of_edges(wiring: Wiring, data: Data, room: int, per_input: bool, exact: Tensor | None) -> int:
    """Bytes of the scores of edges, and of what single runs keep of the edges that are measured, if any are.

    Raises:
        BudgetTooSmall: they do not fit.
    """
    graph, copies = wiring.graph, 3 + 2 * data.clean.rows * per_input
    size = nbytes(*graph.shape, copies, dtype=wiring.dtype)
    if exact is not None:
        size += nbytes(int(exact.any(1).sum()), max(data.clean.frame.width, 1), _d_model(wiring), dtype=wiring.dtype)
    if size > room:
        raise BudgetTooSmall(
            f"a budget of {show(room)}",
            f"beside an example, scores of {graph.n_edges} edges{' for each' * per_input} need about {show(size)}",
            "score sources with level='node', cut fewer MLPs into units, or choose edges with only=",
        )
    return size


def _batches(wiring: Wiring, data: Data, room: int, kept: int) -> Iterator[tuple[Batch, Batch | None, Sequence[int]]]:
    """The examples in pieces whose differentiated pass fits into memory."""
    width = max(data.clean.frame.width, 1)
    # What autograd keeps of one token and block: the stream, norms, projections, four widths of the MLP, gradients.
    each = nbytes(width * len(wiring.graph.layers), 32 * _d_model(wiring), dtype=wiring.dtype)
    # Of units: as they are, patched, changed, and their gradient.
    each += nbytes(width, 4 * sum(w.group.count for w in wiring.writes if w.thin), dtype=wiring.dtype)
    size = pieces(data.clean.rows, each, room, "example", kept)
    for first in range(0, data.clean.rows, size):
        rows = range(first, min(first + size, data.clean.rows))
        yield data.clean.take(rows), None if data.other is None else data.other.take(rows), rows


def _of_precision(dtype: torch.dtype) -> list[str]:
    if dtype in (torch.float16, torch.bfloat16):
        return [f"the model computes in {str(dtype).removeprefix('torch.')}: small scores are its rounding"]
    return []


def _d_model(wiring: Wiring) -> int:
    return next(w.weight.shape[-1] for w in wiring.writes if w.group.kind == "head" and w.weight is not None)
