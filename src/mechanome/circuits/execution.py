"""`execute`: what a model does when only a circuit's edges carry what they carry.

In a circuit's run every target reads a sum of its own, `sum over sources of m * value in this run + (1 - m) * patched
value`, with its own norm and its own projection, layer by layer (Hanna et al. 2024; query circuits, arXiv 2509.24808,
section 3). The full circuit is the model, the empty one the run in which everything is patched. Biases and positions
belong to no edge and stay.

| method | how | for |
|---|---|---|
| `dense` | the whole model, every target's stream as a product of its mask | large circuits, soft masks |
| `sparse` | only the parts of the model that can differ from the patched run | small circuits |

Both give the same numbers. A circuit that is all edges among its nodes is one mask of sources for all targets, which
makes dense runs cheap however many units its MLPs are cut into. Circuits are rows: many run at once, on many examples,
as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit, stack
from mechanome.circuits.dense_execution import run_dense
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import ROOTED, Intervention
from mechanome.circuits.live_edges import Live, live_edges
from mechanome.circuits.masked_streams import Base
from mechanome.circuits.prepared import Prepared
from mechanome.circuits.sparse_execution import run_sparse
from mechanome.core import NotFinite, Table, notice, track
from mechanome.engine.asked import one_of
from mechanome.engine.memory import Budget

if TYPE_CHECKING:
    from mechanome.tasks import Task

__all__ = ["METHODS", "Executed", "Prepared", "execute"]

METHODS = ("auto", "dense", "sparse")
_SPARSE_SHARE = 0.5
"""Share of edges that matter up to which choosing what to run costs less than running all of it."""
_SPARSE_UNITS = 4096
"""Units of MLPs that matter up to which what each of them writes can be held."""
_LIVE_CELLS = 2**27
"""Sources times targets of so many circuits are searched for paths at once."""


@dataclass(frozen=True, eq=False)
class Executed:
    """What circuits did on some examples.

    Args:
        circuits: the circuits.
        values: the metric, `[circuit, example]`.
        clean: the metric of the model itself, `[example]`.
        empty: the metric of the empty circuit, `[example]`: with patching, that of the corrupted inputs.
        divergence: `KL(model || circuit)` over the vocabulary at the answer position, in nats, `[circuit, example]`.
        agrees: whether the circuit's most likely token is the model's, `[circuit, example]` of booleans.
        methods: how each circuit was run, "dense" or "sparse".
        intervention: what edges outside the circuit carried.
        logits: at the answer position, `[circuit, example, vocab]`; None if not asked for.
        notes: what a reader must know, such as that memory allowed fewer at once.
    """

    circuits: tuple[Circuit, ...] = field(repr=False)
    values: Tensor = field(repr=False)
    clean: Tensor = field(repr=False)
    empty: Tensor = field(repr=False)
    divergence: Tensor = field(repr=False)
    agrees: Tensor = field(repr=False)
    methods: tuple[str, ...]
    intervention: str
    logits: Tensor | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        """The graph of the circuits."""
        return self.circuits[0].graph

    def table(self) -> Table:
        """One row per circuit: its size, and means over examples."""
        columns = ["edges", "share", "metric", "model's metric", "empty circuit's", "KL (nats)", "same token", "method"]
        ends = float(self.clean.mean()), float(self.empty.mean())
        rows = [
            (len(c), c.share, float(v.mean()), *ends, float(kl.mean()), float(same.double().mean()), how)
            for c, v, kl, same, how in zip(self.circuits, self.values, self.divergence, self.agrees, self.methods)
        ]
        return Table(columns, rows, repr(self))

    def __repr__(self) -> str:
        n, m = self.values.shape
        return f"{n} circuits on {m} examples, other edges by {self.intervention}"

    def _repr_html_(self) -> str:
        return self.table().html()


def execute(
    circuits: Circuit | Iterable[Circuit],
    data: Task | Sequence[Any],
    metric: Any = None,
    *,
    intervention: str | Intervention = "patch",
    method: str = "auto",
    logits: bool = False,
    budget: Budget = None,
    quiet: bool = False,
) -> Executed:
    """Run circuits.

    Args:
        circuits: of one graph of an opened model; edges or nodes (`Circuit.of_nodes`).
        data: a `Task` with counterfactuals, a pair `(clean, corrupted)` of inputs, or a triple with the metric. The
            corrupted inputs may be None for interventions that need none.
        metric: `metric(logits [rows, vocab], rows [rows]) -> [rows]`, read at the last token; a task brings its own.
        intervention: what edges outside a circuit carry; see `mechanome.circuits.interventions`.
        method: "dense", "sparse", or "auto" for the cheaper one of each circuit.
        logits: keep the logits at the answer position.
        budget: memory for what runs at once, such as "2GB"; None for a quarter of what is free.
        quiet: no progress bar.

    Returns:
        an `Executed`, circuits and examples in the order given.

    Raises:
        BadInput: no circuits, names that do not exist, data without counterfactuals or metric, a graph without a model.
        ShapeMismatch: an example whose two inputs differ in length.
        NotFinite: logits that are NaN or infinite.
        BudgetTooSmall: not even one circuit on one example fits.
    """
    one_of("method", method, METHODS, "there is no such way to run a circuit")
    given = [circuits] if isinstance(circuits, Circuit) or not isinstance(circuits, Iterable) else list(circuits)
    edges = stack(given)
    ready = Prepared.of(given[0].graph, data, metric, intervention=intervention, budget=budget)
    rooted = ready.intervention.kind in ROOTED
    some_circuits = edges.split(max(1, _LIVE_CELLS // edges[0].numel()))
    live = Live(ready.graph, torch.cat([live_edges(ready.graph, some, rooted) for some in some_circuits]))
    ways = _ways(live, method)
    # Circuits of like size share passes, so that no part is run for one of them alone.
    order = sorted(range(len(given)), key=lambda i: float(live.shares[i]))
    members = {way: some for way in _WAYS if (some := [i for i in order if ways[i] == way])}
    held = {way: _held(live, some) if way == "sparse" else None for way, some in members.items()}
    shape = len(given), ready.data.clean.rows
    values, divergence = torch.empty(2, *shape, dtype=torch.float32)
    clean, empty = torch.empty(2, shape[1], dtype=torch.float32)
    agrees = torch.empty(shape, dtype=torch.bool)
    kept: Tensor | None = None
    parts, passes = list(ready.parts(held.get("sparse"), "edges" in members)), 0
    for part in track(parts, "running circuits", quiet=quiet):
        base, own, rows = ready.base(part)
        model_says = own.double().log_softmax(-1)
        clean[rows], empty[rows] = base.sample.metric, ready.measured(base.logits[None], rows)[0]
        for way, chosen in members.items():
            size = ready.at_once(base, len(chosen), held[way], way == "edges")
            for some in (chosen[first : first + size] for first in range(0, len(chosen), size)):
                passes += 1
                found = _WAYS[way](base, live, edges, some)
                if not bool(torch.isfinite(found).all()):
                    raise NotFinite("logits of circuits", "some are NaN or infinite", "load the model in float32")
                at = torch.tensor(some)[:, None], torch.tensor(rows)[None]
                values[at] = ready.measured(found, rows)
                says = found.double().log_softmax(-1)
                divergence[at] = (model_says.exp() * (model_says - says)).sum(-1).clamp(min=0).float().cpu()
                agrees[at] = (found.argmax(-1) == own.argmax(-1)).cpu()
                if logits:
                    kept = torch.empty(*shape, found.shape[-1], dtype=torch.float32) if kept is None else kept
                    kept[at] = found.float().cpu()
    methods = tuple("sparse" if way == "sparse" else "dense" for way in ways)
    kind, notes = ready.intervention.kind, ready.cut(len(parts), passes)
    if not quiet:
        for note in notes:
            notice(note)
    return Executed(tuple(given), values, clean, empty, divergence, agrees, methods, kind, kept, notes)


_WAYS: dict[str, Callable[[Base, Live, Tensor, list[int]], Tensor]] = {
    "sparse": lambda base, live, edges, some: run_sparse(base, live.take(some)),
    "nodes": lambda base, live, edges, some: run_dense(base, live.sources[some].float()),
    "edges": lambda base, live, edges, some: run_dense(base, edges[some].float()),
}
"""Logits of some circuits: in small pieces, or densely with a mask of sources, or with one of edges."""


def _ways(live: Live, method: str) -> list[str]:
    """How each circuit is run, a name of `_WAYS`."""
    by_source, units = live.of_nodes, live.sources & live.graph.kinds("unit")
    sparse = torch.full_like(by_source, method == "sparse")
    if method == "auto":
        sparse = (live.shares <= _SPARSE_SHARE) & (units.sum(1) <= _SPARSE_UNITS) & ~(by_source & units.any(1))
    dense = ["nodes" if nodes else "edges" for nodes in by_source.tolist()]
    return ["sparse" if small else way for small, way in zip(sparse.tolist(), dense)]


def _held(live: Live, circuits: Sequence[int]) -> int:
    """How many sources' changes small pieces hold: all of them, of units those that matter."""
    units = live.graph.kinds("unit")
    return int((~units).sum()) + int((live.sources[list(circuits)] & units).sum(1).max())
