"""`execute`: what a model does when only a circuit's edges carry what they carry.

In a circuit's run every target reads a sum of its own, `sum over sources of m * value in this run + (1 - m) * patched
value`, with its own norm and its own projection, layer by layer (Hanna et al. 2024; query circuits, arXiv 2509.24808,
section 3). The full circuit is the model, the empty one the run in which everything is patched. Biases and positions
belong to no edge and stay.

| method | how | for |
|---|---|---|
| `dense` | the whole model, every target's stream as a product of its mask | large circuits, soft masks |
| `sparse` | only the parts of the model that can differ from the patched run | small circuits |

Both give the same numbers. Circuits are rows: many run at once, on many examples, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit, stack
from mechanome.circuits.data import Data, read_data
from mechanome.circuits.dense_execution import run_dense
from mechanome.circuits.graph import Graph, same_graph
from mechanome.circuits.interventions import Intervention, Means
from mechanome.circuits.live_edges import Live, live_edges
from mechanome.circuits.masked_streams import Base
from mechanome.circuits.samples import sample, scored
from mechanome.circuits.sparse_execution import run_sparse
from mechanome.circuits.wiring import Reads, Wiring
from mechanome.core import NotFinite, Table, notice, track
from mechanome.engine.asked import one_of
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces, show
from mechanome.engine.metrics import measure

if TYPE_CHECKING:
    from mechanome.tasks import Task

METHODS = ("auto", "dense", "sparse")
_ROW_TOKENS = 1024
"""Circuits times tokens of one pass: beyond, products get no faster and tensors only larger."""
_SPARSE_SHARE = 0.5
"""Share of edges that matter up to which choosing what to run costs less than running all of it."""
_ROOTED = ("patch", "noise")
"""Interventions whose patched values are those of a run of the model."""


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
    given = [circuits] if isinstance(circuits, Circuit) else list(circuits)
    edges = stack(given)
    ready = Prepared.of(same_graph([c.graph for c in given]), data, metric, intervention=intervention, budget=budget)
    live = Live(ready.graph, live_edges(ready.graph, edges, ready.intervention.kind in _ROOTED))
    shares = live.shares
    sparse = shares <= _SPARSE_SHARE if method == "auto" else torch.full((len(given),), method == "sparse")
    # Circuits of like size share passes, so that no part is run for one of them alone.
    order = sorted(range(len(given)), key=lambda i: (bool(sparse[i]), float(shares[i])))
    ways = [[i for i in order if bool(sparse[i]) == way] for way in (True, False)]
    shape = len(given), ready.data.clean.rows
    values, divergence = torch.empty(shape), torch.empty(shape)
    agrees, clean, empty = torch.empty(shape, dtype=torch.bool), torch.empty(shape[1]), torch.empty(shape[1])
    kept: Tensor | None = None
    parts, passes = list(ready.parts()), 0
    for part in track(parts, "running circuits", quiet=quiet):
        base, own, rows = ready.base(part)
        model_says = own.double().log_softmax(-1)
        clean[rows], empty[rows] = base.sample.metric, ready.measured(base.logits[None], rows)[0]
        for way, members in zip((True, False), ways):
            size = ready.at_once(base, len(members)) if members else 1
            for first in range(0, len(members), size):
                passes += 1
                some = members[first : first + size]
                found = run_sparse(base, live.take(some)) if way else run_dense(base, edges[some].float())
                if not bool(torch.isfinite(found).all()):
                    raise NotFinite("logits of circuits", "some are NaN or infinite", "load the model in float32")
                at = torch.tensor(some)[:, None], torch.tensor(rows)[None]
                values[at] = ready.measured(found, rows)
                says = found.double().log_softmax(-1)
                divergence[at] = (model_says.exp() * (model_says - says)).sum(-1).clamp(min=0).float().cpu()
                agrees[at] = (found.argmax(-1) == own.argmax(-1)).cpu()
                if logits:
                    kept = torch.empty(*shape, found.shape[-1]) if kept is None else kept
                    kept[at] = found.float().cpu()
    methods = tuple("sparse" if way else "dense" for way in sparse.tolist())
    kind, notes = ready.intervention.kind, ready.cut(len(parts), passes)
    if not quiet:
        for note in notes:
            notice(note)
    return Executed(tuple(given), values, clean, empty, divergence, agrees, methods, kind, kept, notes)


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
        change = Intervention(intervention) if isinstance(intervention, str) else intervention
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

    def parts(self) -> Iterator[list[int]]:
        """The numbers of examples that are made ready together.

        Raises:
            BudgetTooSmall: not even one circuit on one example fits.
        """
        rows, width = self.data.clean.rows, self._width
        fits = pieces(rows, self._base_bytes(width) + self._circuit_bytes(width, 1), self.budget, "example")
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

    def _base_bytes(self, tokens: int) -> int:
        """About what a base holds: streams, queries, keys and values, and what sources carry, twice."""
        return nbytes(tokens, self._d_model, 12 * len(self.graph.layers), dtype=self.wiring.dtype)

    def _circuit_bytes(self, tokens: int, rows: int) -> int:
        """About what a circuit holds: changes of all sources, streams of a phase, the model's own pass, logits."""
        most = max(layer.heads + 2 * layer.kv + 1 for layer in self.graph.layers)
        widths = len(self.graph.sources) + 5 * most + 32
        unembed = self.wiring.model.architecture.unembed
        vocabulary = 0 if unembed is None else getattr(unembed.module, "weight", torch.empty(0)).shape[0]
        own = nbytes(tokens, self._d_model, widths, dtype=self.wiring.dtype)
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

    def at_once(self, base: Base, circuits: int) -> int:
        """How many circuits run together on some examples; at least one, as `parts` saw to it."""
        rows = base.sample.batch.rows
        free = self.budget - self._base_bytes(self._width * rows)
        fits = free // self._circuit_bytes(base.n_tokens, rows)
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
