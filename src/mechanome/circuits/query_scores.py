"""Scores of a query and of its samples: one matrix per input, all of the same graph.

Scores have no position, so matrices of inputs of different length and wording can be compared, averaged and chosen
from. Inputs of equal length are scored in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.circuits.data import Data, read_data
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import scores
from mechanome.core import BadInput
from mechanome.engine.memory import Budget
from mechanome.engine.metrics import Metric

if TYPE_CHECKING:
    from mechanome.tasks import Task


def read_query(graph: Graph, query: Task | Sequence[Any], metric: Metric | None, change: Intervention) -> Data:
    """A query as checked `Data` of one example.

    Raises:
        BadInput: several examples, or means over no given inputs; and as `read_data`.
    """
    if change.means and change.reference is None:
        why = "an average over one query and its samples says nothing of others"
        raise BadInput(f"intervention '{change.kind}'", why, f"give Intervention('{change.kind}', reference=inputs)")
    found = read_data(graph, query, metric, change)
    if found.clean.rows != 1:
        why = "a query is one input"
        raise BadInput(f"a query of {found.clean.rows} examples", why, "give one, and the others as samples=")
    return found


def read_more(graph: Graph, data: Task | Sequence[Any], query: Data, change: Intervention) -> Data:
    """A sample of the query's behavior as checked `Data`; without a metric of its own it has the query's."""
    bare = not hasattr(data, "batch") and isinstance(data, Sequence) and len(data) == 2
    return read_data(graph, data, query.metric if bare else None, change)


def read_samples(graph: Graph, samples: Task | Sequence[Any], query: Data, change: Intervention) -> tuple[Data, ...]:
    """Samples as checked `Data`: a task as one, a sequence of pairs or triples one by one."""
    check_samples(samples)
    if hasattr(samples, "batch"):
        return (read_more(graph, samples, query, change),)
    return tuple(read_more(graph, sample, query, change) for sample in samples)


def check_samples(samples: Any) -> None:
    """Refuse what can be no samples.

    Raises:
        BadInput: neither a task nor a sequence.
    """
    if isinstance(samples, str) or not (hasattr(samples, "batch") or isinstance(samples, Sequence)):
        raise BadInput("the samples", "they are no task and no pairs", "give a Task, or [(clean, corrupted), ...]")


def scores_of(
    graph: Graph,
    data: Sequence[Data],
    change: Intervention,
    *,
    method: str,
    steps: int,
    budget: Budget,
    quiet: bool,
) -> tuple[Scores, ...]:
    """Scores of every example, in order.

    Args:
        graph: the graph. data: the examples. change: what a patched part carries.
        method, steps, budget, quiet: as `scores` has them.
    """
    first = [0]
    for each in data:
        first.append(first[-1] + each.clean.rows)
    found: dict[int, Scores] = {}
    for numbers in _together(data):
        whole = _stacked(graph, [data[i] for i in numbers]) if len(numbers) > 1 else data[numbers[0]]
        found |= zip(
            (row for i in numbers for row in range(first[i], first[i + 1])),
            _apart(
                scores(
                    graph,
                    (whole.clean, whole.other, whole.metric),
                    method=method,
                    intervention=change,
                    steps=steps,
                    per_input=True,
                    budget=budget,
                    quiet=quiet,
                )
            ),
        )
    return tuple(found[row] for row in range(first[-1]))


def _together(data: Sequence[Data]) -> list[list[int]]:
    """Numbers of what can be one batch: plain ids of equal length, with or without counterfactuals."""
    groups: dict[Any, list[int]] = {}
    for i, each in enumerate(data):
        plain = set(each.clean.arguments) == {"input_ids"}
        key = (each.clean.frame.width, each.other is None) if plain else ("alone", i)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _stacked(graph: Graph, data: Sequence[Data]) -> Data:
    encode = graph.opened().encode
    clean = encode({"input_ids": torch.cat([each.clean.input_ids for each in data])})
    others = [each.other.input_ids for each in data if each.other is not None]
    own = [(each.metric, row) for each in data for row in range(each.clean.rows)]
    return Data(clean, encode({"input_ids": torch.cat(others)}) if others else None, _Own(tuple(own)))


@dataclass(frozen=True)
class _Own:
    """Each row measured by its own metric: of all rows the metric, and the row's number there."""

    of: tuple[tuple[Metric, int], ...]

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        chosen = (self.of[row] for row in rows.tolist())
        numbers = torch.arange(logits.shape[0], device=rows.device)
        return torch.cat([m(logits[i : i + 1], torch.full_like(numbers[:1], n)) for i, (m, n) in enumerate(chosen)])


def _apart(found: Scores) -> Iterator[Scores]:
    assert found.each is not None
    for i, values in enumerate(found.each):
        corrupted = None if found.corrupted is None else found.corrupted[i : i + 1]
        yield replace(found, values=values, each=None, clean=found.clean[i : i + 1], corrupted=corrupted)
