"""`QueryCircuits`: circuits of one query over sizes, how well each reproduces the model, and who proposed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.graph import Graph
from mechanome.circuits.measured import Measured
from mechanome.circuits.score_matrix import Scores
from mechanome.core import Table


@dataclass(frozen=True, eq=False)
class QueryCircuits:
    """Circuits of one query, one a size.

    Args:
        graph: theirs.
        method: a name of `QUERY_METHODS`.
        budgets: their sizes in edges, rising.
        circuits: one a budget.
        values: the metric of each, `[budget]`. clean, empty: of the model, and with every edge patched.
        ndf: normalized deviation faithfulness of each, `[budget]`, in [0, 1]; NaN where `undefined` says why.
        nfs: normalized faithfulness of each, `[budget]`, which can leave [0, 1]; NaN likewise.
        candidates: who proposed circuits.
        anchors: sizes at which all proposals were run, rising.
        tried: NDF of each proposal, `[candidate, anchor]`.
        winner: the number of the candidate that won at each anchor.
        scores: of the query.
        undefined: why NDF and NFS are not defined; empty where they are.
        held_out: NDF of each circuit on other inputs, one a budget; None if not asked for.
        notes: what a reader must know.
    """

    graph: Graph
    method: str
    budgets: tuple[int, ...]
    circuits: tuple[Circuit, ...] = field(repr=False)
    values: Tensor = field(repr=False)
    clean: float
    empty: float
    ndf: Tensor = field(repr=False)
    nfs: Tensor = field(repr=False)
    candidates: tuple[str, ...] = field(repr=False)
    anchors: tuple[int, ...] = field(repr=False)
    tried: Tensor = field(repr=False)
    winner: tuple[int, ...] = field(repr=False)
    scores: Scores = field(repr=False)
    undefined: str = ""
    held_out: tuple[Measured, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def total_effect(self) -> float:
        """By how much patching every edge lowers the metric; what NDF and NFS divide by."""
        return self.clean - self.empty

    def smallest(self, ndf: float = 0.8) -> tuple[Circuit, float] | None:
        """The first circuit that reproduces the model so well, with its NDF; None where none does.

        Args:
            ndf: at least so much.
        """
        found = ((c, value) for c, value in zip(self.circuits, self.ndf.tolist()) if value >= ndf)
        return next(found, None)

    def best_of(self) -> Tensor:
        """NDF of the best among the first proposals, `[candidate, anchor]`: the last row is that of all.

        Along candidates it never falls, because the best of more is no worse.
        """
        return self.tried.cummax(0).values

    def table(self) -> Table:
        """One row a budget: edges, those that are left when dangling ones are pruned, and what the circuit does."""
        columns = ["edges", "share", "without dangling", "metric", "NDF", "NFS", "proposed by"]
        chosen = [self._proposed(n) for n in self.budgets]
        rows: list[tuple[object, ...]] = [
            (n, c.share, len(c.pruned()), value, *(_defined(x) for x in both), who)
            for n, c, value, *both, who in zip(
                self.budgets, self.circuits, self.values.tolist(), self.ndf.tolist(), self.nfs.tolist(), chosen
            )
        ]
        if self.held_out is not None:
            columns.append("NDF held out")
            rows = [(*row, found.value) for row, found in zip(rows, self.held_out)]
        return Table(columns, rows, "; ".join([repr(self), *self.notes]))

    def curve(self) -> Table:
        """NDF over size: one row a budget, the circuit's and, where it was run at this size, that of each proposal."""
        rows: list[tuple[object, ...]] = []
        for n, circuit, value in zip(self.budgets, self.circuits, self.ndf.tolist()):
            tried: Sequence[float | None] = [None] * len(self.candidates)
            if n in self.anchors:
                tried = [_defined(x) for x in self.tried[:, self.anchors.index(n)].tolist()]
            rows.append((n, circuit.share, _defined(value), *tried))
        return Table(["edges", "share", "NDF", *self.candidates], rows, repr(self))

    def _proposed(self, n: int) -> str:
        """Who won at this size, or at the sizes around it."""
        if n in self.anchors:
            return self.candidates[self.winner[self.anchors.index(n)]]
        above = next(i for i, anchor in enumerate(self.anchors) if anchor > n)
        around = dict.fromkeys(self.candidates[self.winner[i]] for i in range(max(above - 1, 0), above + 1))
        return " and ".join(around)

    def __repr__(self) -> str:
        found = self.smallest()
        reached = "NDF is not defined" if self.undefined else "none reaches NDF 0.8"
        if found is not None:
            reached = f"{len(found[0])} edges reach NDF {found[1]:.2f}"
        sizes = f"{self.budgets[0]} to {self.budgets[-1]}" if len(self.budgets) > 1 else str(self.budgets[0])
        return f"Query circuits of {sizes} of {self.graph.n_edges} edges by {self.method}: {reached}"

    def _repr_html_(self) -> str:
        return self.table().html()


def _defined(value: float) -> float | None:
    """The number, None where there is none."""
    return None if value != value else value
