"""`query_circuits`: a sparse circuit that reproduces what the model does on one query.

A circuit found on a data set explains a capability; a query circuit explains one answer. Scores of the query alone find
it badly, scores of other inputs of the same behavior often well, so they propose circuits as well, and the one that
reproduces the query best is taken (query circuits, arXiv 2509.24808). That choice looks at the query itself: NDF on an
input that was not used (`held_out=`) says what is left elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.data import Data
from mechanome.circuits.execution import Executed, execute
from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import faithfulness, ndf
from mechanome.circuits.query_methods import QUERY_METHODS, Draw, QueryMethod, circuit_of
from mechanome.circuits.query_result import QueryCircuits
from mechanome.circuits.query_scores import check_samples, read_more, read_query, read_samples, scores_of
from mechanome.circuits.query_sizes import BUDGETS, sizes_of
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import METHODS
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task

DRAWS = 9
"""What a control draws beside the query's own where there are no samples to count."""


def query_circuits(
    graph: Graph,
    query: Task | Sequence[Any],
    metric: Metric | None = None,
    *,
    samples: Task | Sequence[Any] = (),
    method: str = "best-of-n",
    budgets: Sequence[int] = BUDGETS,
    anchors: Sequence[int] | None = None,
    score: str = "eap-ig",
    steps: int = 5,
    intervention: str | Intervention = "patch",
    draws: int | None = None,
    strength: float | None = None,
    held_out: Task | Sequence[Any] | None = None,
    seed: int = 0,
    quiet: bool = False,
    budget: Budget = None,
) -> QueryCircuits:
    """Find circuits of one query.

    Args:
        graph: of an opened model.
        query: one input with its counterfactual: a pair `(clean, corrupted)`, a triple with the metric, or a `Task` of
            one example. The corrupted input may be None for interventions that need none.
        metric: `metric(logits [rows, vocab], rows [rows]) -> [rows]`, read at the last token; a task brings its own.
        samples: other inputs of the same behavior, of any length: a `Task`, or a sequence of pairs and triples; a pair
            has the query's metric. Without any, only the query's own scores propose circuits.
        method: a name of `QUERY_METHODS`.
        budgets: sizes of circuits in edges, rising, at most those of the graph.
        anchors: sizes at which proposals are run, for methods that give circuits between them; None for the budgets.
        score, steps: how edges are scored, as `scores` has it.
        intervention: what edges outside a circuit carry; see `mechanome.circuits.interventions`.
        draws, strength: of a control: how many proposals it draws (None: as many as there are samples, 9 without any),
            and how far these are from the query's own (None: as in `QUERY_METHODS`).
        held_out: an input (or several) on which the circuits are measured and nothing is chosen; given as samples are.
        seed: of what controls draw.
        quiet: no progress bar.
        budget: memory for what runs at once, such as "2GB".

    Returns:
        a `QueryCircuits`.

    Raises:
        BadInput: several examples as a query, names that do not exist, no counterfactual or metric, budgets that do not
            rise or that the graph does not have, settings of another method.
        ShapeMismatch: two inputs of a pair that differ in length.
        NotFinite: scores or logits that are NaN or infinite.
    """
    sizes_of(graph, method, budgets, anchors, strength)  # a mistake is answered before anything runs
    check_samples(samples)
    scored = ScoredQuery.of(
        graph,
        query,
        metric,
        samples=samples if QUERY_METHODS[method].samples else (),
        score=score,
        steps=steps,
        intervention=intervention,
        quiet=quiet,
        budget=budget,
    )
    draws = len(samples) or None if draws is None else draws
    return scored.circuits(
        method, budgets, anchors=anchors, draws=draws, strength=strength, held_out=held_out, seed=seed
    )


@dataclass(frozen=True, eq=False)
class ScoredQuery:
    """A query with the scores that circuits are proposed from; several methods share them, and every circuit they run.

    Args:
        graph: the graph.
        data: the query.
        scores: of the query, then of each sample.
        intervention: what edges outside a circuit carry.
        quiet: no progress bar. budget: memory for what runs at once.

    Raises:
        BadInput: scores of sources or of another graph, or none.
    """

    graph: Graph
    data: Data
    scores: tuple[Scores, ...] = field(repr=False)
    intervention: Intervention
    quiet: bool = False
    budget: Budget = None
    _runs: dict[Circuit, _Ran] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        some = self.scores if isinstance(self.scores, Iterable) else (self.scores,)
        object.__setattr__(self, "scores", tuple(some))
        if not self.scores:
            raise BadInput("a query without scores", "no circuit can be proposed", "score the query")
        for each in self.scores:
            given("scores=", each, Scores, self.graph).edge_values()

    @classmethod
    def of(
        cls,
        graph: Graph,
        query: Task | Sequence[Any],
        metric: Metric | None = None,
        *,
        samples: Task | Sequence[Any] = (),
        score: str = "eap-ig",
        steps: int = 5,
        intervention: str | Intervention = "patch",
        quiet: bool = False,
        budget: Budget = None,
    ) -> ScoredQuery:
        """Score a query and its samples; arguments and errors as `query_circuits` has them."""
        one_of("score", score, METHODS, "there is no such way to score edges")
        change = Intervention(intervention) if isinstance(intervention, str) else intervention
        data = read_query(graph, query, metric, change)
        found = scores_of(
            graph,
            [data, *read_samples(graph, samples, data, change)],
            change,
            method=score,
            steps=steps,
            budget=budget,
            quiet=quiet,
        )
        return cls(graph, data, found, change, quiet, budget)

    def circuits(
        self,
        method: str = "best-of-n",
        budgets: Sequence[int] = BUDGETS,
        *,
        anchors: Sequence[int] | None = None,
        draws: int | None = None,
        strength: float | None = None,
        held_out: Task | Sequence[Any] | None = None,
        seed: int = 0,
    ) -> QueryCircuits:
        """Circuits by one method; arguments and errors as `query_circuits` has them."""
        sizes, steps = sizes_of(self.graph, method, budgets, anchors, strength)
        how = QUERY_METHODS[method]
        other = None if held_out is None else read_more(self.graph, held_out, self.data, self.intervention)
        number = len(self.scores) - 1 or DRAWS if draws is None else count("draws", draws)
        rankings = how.propose(Draw(self.scores, number, strength or how.strength or 0.0, seed))
        tops = [[ranking.top(n) for n in steps] for ranking in rankings]
        proposed = [[circuit_of(self.graph, edges) for edges in row] for row in tops]
        self._run(circuit for row in proposed for circuit in row)
        tried = torch.stack([_numbers([self._runs[circuit].ndf for circuit in row]) for row in proposed])
        winner = tuple(tried.nan_to_num(0.0).argmax(0).tolist())
        tiers = [tops[best][i] for i, best in enumerate(winner)]
        circuits = tuple(circuit_of(self.graph, how.circuit(tiers, steps, n)) for n in sizes)
        self._run(circuits)
        found = [self._runs[circuit] for circuit in circuits]
        undefined = found[0].ndf.note if found[0].ndf.value is None else ""
        return QueryCircuits(
            self.graph,
            method,
            sizes,
            circuits,
            torch.tensor([ran.value for ran in found], dtype=torch.float64),
            found[0].clean,
            found[0].empty,
            _numbers([ran.ndf for ran in found]),
            _numbers([ran.nfs for ran in found]),
            tuple(ranking.name for ranking in rankings),
            steps,
            tried,
            winner,
            self.scores[0],
            undefined,
            None if other is None else ndf(self._executed(circuits, other)),
            tuple(self._notes(how, len(rankings), undefined, other is None)),
        )

    def _run(self, circuits: Iterable[Circuit]) -> None:
        """Run circuits on the query that were not run before, all in one call."""
        new = [circuit for circuit in dict.fromkeys(circuits) if circuit not in self._runs]
        if not new:
            return
        ran = self._executed(new, self.data)
        ends = float(ran.clean[0]), float(ran.empty[0])
        for circuit, value, near, share in zip(new, ran.values[:, 0].tolist(), ndf(ran), faithfulness(ran)):
            self._runs[circuit] = _Ran(value, near, share, *ends)

    def _executed(self, circuits: Sequence[Circuit], data: Data) -> Executed:
        triple = data.clean, data.other, data.metric
        return execute(circuits, triple, intervention=self.intervention, budget=self.budget, quiet=self.quiet)

    def _notes(self, how: QueryMethod, proposals: int, undefined: str, chosen_only: bool) -> Iterable[str]:
        yield from self.scores[0].notes
        if how.samples and len(self.scores) == 1:
            yield "no samples were given, so only the query's own scores propose circuits"
        if undefined:
            yield f"NDF is not defined ({undefined}), so nothing was chosen: circuits are the first proposal's"
        elif proposals > 1 and chosen_only:
            yield "circuits were chosen by their NDF on the query itself, which flatters it; held_out= tells"


@dataclass(frozen=True)
class _Ran:
    """What a circuit did on the query."""

    value: float
    ndf: Measured
    nfs: Measured
    clean: float
    empty: float


def _numbers(found: Sequence[Measured]) -> Tensor:
    """Values in float64, NaN where there are none."""
    return torch.tensor([float("nan") if m.value is None else m.value for m in found], dtype=torch.float64)
