"""`search`: one call for every way to find a circuit; each way is a row of `SEARCHES`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import scores as score_edges
from mechanome.circuits.search.edge_by_edge import acdc
from mechanome.circuits.search.found import Found
from mechanome.circuits.search.learned_masks import learned_mask
from mechanome.circuits.search.ranking import greedy, top_n
from mechanome.core import BadInput, nearest
from mechanome.engine.asked import one_of
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task


@dataclass(frozen=True)
class Search:
    """One way to find a circuit.

    Args:
        definition: in one clause.
        of: the function behind it: of scores, or of graph, data and metric. `search` passes on what it takes.
        by_scores: whether it is a function of scores.
        fixed: settings that make it this way and no other.
    """

    definition: str
    of: Callable[..., Found]
    by_scores: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes(self) -> frozenset[str]:
        """Names of its arguments that are not fixed."""
        return frozenset(inspect.signature(self.of).parameters) - frozenset(self.fixed)

    @property
    def limits(self) -> tuple[str, ...]:
        """Which of size and threshold it takes."""
        return tuple(name for name in ("size", "threshold") if name in self.takes)


SEARCHES: dict[str, Search] = {
    "top-n": Search("the edges of the largest scores", top_n, True),
    "greedy": Search("the best edges, grown from the logits backward", greedy, True),
    "acdc": Search("edges are taken out one by one, from the outputs backward, where hardly anything changes", acdc),
    "edge-pruning": Search("masks of hard-concrete gates", learned_mask, fixed={"gate": "hard-concrete"}),
    "gumbel": Search("masks of drawn gates", learned_mask, fixed={"gate": "gumbel"}),
    "deterministic": Search(
        "masks of gates that close slowly, without noise", learned_mask, fixed={"gate": "deterministic"}
    ),
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
        size: how many edges; not for ACDC.
        threshold: what an edge must be worth: for searches by scores its score, for ACDC the rise of the objective
            without it, for learned masks the price of keeping it.
        scores: of edges, for searches by scores and for ACDC's guesses; None computes them (by EAP-IG; for guesses by
            EAP). Scores that are given bring their own intervention to searches by scores.
        intervention: what edges outside the circuit carry.
        budget: memory for what runs at once, such as "2GB".
        seed: of what is drawn.
        quiet: no progress bar.
        settings: of the method, as its own function has them (`top_n`, `greedy`, `acdc`, `learned_mask`).

    Returns:
        a `Found`.

    Raises:
        BadInput: a method, setting or limit that does not exist or that the method does not take, scores of another
            graph, data without counterfactuals or metric. NotFinite: a metric or scores that are NaN or infinite.
        ShapeMismatch: an example whose two inputs differ in length. BudgetTooSmall: not even one circuit fits.
    """
    one_of("method", method, SEARCHES, "there is no such search")
    chosen = SEARCHES[method]
    asked = {"size": size, "threshold": threshold, "scores": scores, "intervention": intervention, "budget": budget,
             "seed": seed, "quiet": quiet}  # fmt: skip
    limits = " or ".join(f"{name}=" for name in chosen.limits)
    for name in ("size", "threshold", "scores"):
        if asked[name] is not None and name not in chosen.takes:
            fix = f"give {limits}" if name != "scores" else "leave it out"
            raise BadInput(f"{name}=", f"the search '{method}' does not take it", fix)
    stops = [name for name in chosen.limits if asked[name] is not None]
    if len(stops) != 1:
        why = "two limits say where to stop" if stops else "nothing says where to stop"
        raise BadInput(f"the search '{method}'", why, f"give {limits}")
    own = chosen.takes - {"graph", "data", "metric", *asked}
    for name in settings:
        if name not in own:
            raise BadInput(f"{name}=", f"the search '{method}' has no such setting", nearest(name, own))
    if scores is not None:
        given("scores=", scores, Scores, graph)
    if chosen.by_scores and scores is None:
        asked["scores"] = score_edges(graph, data, metric, intervention=intervention, budget=budget, quiet=quiet)  # type: ignore[arg-type]
    first = () if chosen.by_scores else (graph, data, metric)
    passed = {name: value for name, value in asked.items() if name in chosen.takes}
    return replace(chosen.of(*first, **passed, **chosen.fixed, **settings), method=method)
