"""Where the heads of a circuit look, on average over examples: a remark for each, for people to read on hover.

Positions are compared by what they are: a labelled span ("s2"), the last token, else the token's text. The first token
is left out, where heads look when they look at nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.engine import Batch, Site
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces
from mechanome.report.rendering import share
from mechanome.tasks import Task

LAST = "the last token"


@dataclass(frozen=True)
class Look:
    """What a head looks at most.

    Args:
        query: from where. key: at what.
        weight: its attention there, a mean over examples that counts 0 where an example has no such places.
    """

    query: str
    key: str
    weight: float

    def __str__(self) -> str:
        return f"from {self.query} it looks at {self.key} ({share(self.weight)} on average)"


def looks(graph: Graph, task: Task, sources: Iterable[str], *, budget: Budget = None) -> dict[str, Look]:
    """Where heads look most, the first token aside, from labelled spans and from the last token.

    Args:
        graph: of an opened model.
        task: the examples.
        sources: names of sources; those that are no heads are left out, as are heads without patterns.
        budget: memory, such as "2GB".
    """
    model, batch = graph.opened(), task.encode(graph.opened())
    wanted = {graph.source_index(name): name for name in sources}
    groups = {
        Site("pattern", g.layer or 0, tower=graph.tower): g
        for g in graph.writers
        if g.kind == "head" and any(i in wanted for i in range(g.first, g.first + g.count))
    }
    sites = [site for site in groups if model.serves(site)]
    if not sites:
        return {}
    each = nbytes(sum(groups[site].count for site in sites), batch.frame.width, batch.frame.width)
    size = pieces(batch.rows, each, parse_budget(budget, model.device), "example")
    sums: dict[Site, dict[tuple[str, str], Tensor]] = {site: {} for site in sites}
    for first in range(0, batch.rows, size):
        some = batch.take(range(first, min(first + size, batch.rows)))
        places = [_places(some, row) for row in range(some.rows)]
        run = model.run(some, capture=sites, logits=False)
        for site in sites:
            _add(sums[site], some, places, run[site].float().cpu())
    found: dict[str, Look] = {}
    for site in sites:
        for unit in range(groups[site].count):
            name = wanted.get(groups[site].first + unit)
            best = max(sums[site], key=lambda pair: float(sums[site][pair][unit]), default=None)
            if name is not None and best is not None:
                found[name] = Look(*best, float(sums[site][best][unit]) / batch.rows)
    return found


@dataclass(frozen=True)
class _Places:
    """Named positions of one example: where a head may look from, and what at."""

    queries: dict[str, int]
    keys: dict[str, list[int]]


def _places(batch: Batch, row: int) -> _Places:
    frame, tokens = batch.frame, batch.tokens[row]
    last = frame.lengths[row] - 1
    labelled = dict(frame.spans[row]) if frame.spans else {}
    names = {p: f"'{token}'" for p, token in enumerate(tokens)} | {last: LAST}
    names |= {p: name for name, positions in labelled.items() for p in positions}
    keys: dict[str, list[int]] = {}
    for position, name in names.items():
        if position or name in labelled:
            keys.setdefault(name, []).append(position)
    queries = {name: max(positions) for name, positions in labelled.items()}
    return _Places(queries | {LAST: last}, keys)


def _add(sums: dict[tuple[str, str], Tensor], batch: Batch, places: list[_Places], pattern: Tensor) -> None:
    """Add attention between named places, `[head]` each, over the rows of a pattern `[batch, head, query, key]`."""
    for row, place in enumerate(places):
        start = batch.frame.starts[row]
        for query, q in place.queries.items():
            for key, positions in place.keys.items():
                if min(positions) <= q:
                    weight = pattern[row][:, start + q, [start + k for k in positions]].sum(-1)
                    sums[query, key] = sums.get((query, key), torch.zeros_like(weight)) + weight
