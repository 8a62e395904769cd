"""`search`: one call for every way to find a circuit; each way is a row of `SEARCHES`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechanome.circuits.graph import Graph, same_graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import scores as score_edges
from mechanome.circuits.search.found import Found
from mechanome.circuits.search.ranking import greedy, top_n
from mechanome.core import BadInput, nearest
from mechanome.engine.asked import one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task


@dataclass(frozen=True)
class Asked:
    """What all searches are given."""

    graph: Graph
    data: Any
    metric: Metric | None
    size: int | None
    threshold: float | None
    scores: Scores | None
    intervention: str | Intervention
    budget: Budget
    seed: int
    quiet: bool

    def scored(self) -> Scores:
        """The scores given, or those of the default method."""
        if self.scores is not None:
            return self.scores
        given = {"intervention": self.intervention, "budget": self.budget, "quiet": self.quiet}
        return score_edges(self.graph, self.data, self.metric, **given)


@dataclass(frozen=True)
class Search:
    """One way to find a circuit.

    Args:
        definition: in one clause.
        needs: which limits it takes.
        of: the function behind it, whose own settings `search` passes on.
        run: from what was asked for and these settings to a circuit.
    """

    definition: str
    needs: tuple[str, ...]
    of: Callable[..., Found]
    run: Callable[[Asked, dict[str, Any]], Found]


def _by_scores(of: Callable[..., Found]) -> Callable[[Asked, dict[str, Any]], Found]:
    return lambda asked, settings: of(asked.scored(), asked.size, asked.threshold, **settings)


_EITHER = ("size", "threshold")
SEARCHES: dict[str, Search] = {
    "top-n": Search("the edges of the largest scores", _EITHER, top_n, _by_scores(top_n)),
    "greedy": Search("the best edges from the logits backward", _EITHER, greedy, _by_scores(greedy)),
}


def search(
    graph: Graph,
    data: Task | Sequence[Any] | None,
    metric: Metric | None = None,
    *,
    method: str = "top-n",
    size: int | None = None,
    threshold: float | None = None,
    scores: Scores | None = None,
    intervention: str | Intervention = "patch",
    budget: Budget = None,
    seed: int = 0,
    quiet: bool = False,
    **settings: Any,
) -> Found:
    """Find a circuit.

    Args:
        graph: of an opened model.
        data: a `Task` with counterfactuals, a pair `(clean, corrupted)` of inputs, or a triple with the metric; may be
            None for searches by scores that are given.
        metric: `metric(logits [rows, vocab], rows [rows]) -> [rows]`, read at the last token; a task brings its own.
        method: a name of `SEARCHES`.
        size: how many edges, for methods that take a size.
        threshold: what an edge must be worth: for searches by scores its score, for ACDC the change of the objective
            without it, for learned masks the price of keeping it.
        scores: of edges; None computes them where they are needed (EAP-IG; for ACDC's predictions EAP).
        intervention: what edges outside the circuit carry.
        budget: memory for what runs at once, such as "2GB".
        seed: of what is drawn.
        quiet: no progress bar.
        settings: of the method, as its own function has them (`top_n`, `greedy`, `acdc`, `learned_mask`).

    Returns:
        a `Found`.

    Raises:
        BadInput: a method, setting or limit that does not exist or does not fit the method, scores of another graph,
            data without counterfactuals or metric. NotFinite: a metric or scores that are NaN or infinite.
        ShapeMismatch: an example whose two inputs differ in length. BudgetTooSmall: not even one circuit fits.
    """
    one_of("method", method, SEARCHES, "there is no such search")
    chosen = SEARCHES[method]
    for name, value in (("size", size), ("threshold", threshold)):
        if value is not None and name not in chosen.needs:
            fix = f"give {' or '.join(chosen.needs)}"
            raise BadInput(f"{name}={value!r}", f"the search '{method}' does not take it", fix)
    known = set(inspect.signature(chosen.of).parameters) - set(inspect.signature(search).parameters)
    for name in settings:
        if name not in known:
            raise BadInput(f"{name}=", f"the search '{method}' has no such setting", nearest(name, known))
    if scores is not None:
        same_graph([graph, scores.graph])
    asked = Asked(graph, data, metric, size, threshold, scores, intervention, budget, seed, quiet)
    return chosen.run(asked, settings)
