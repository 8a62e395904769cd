"""Circuits from scores alone: the best edges, or the best edges that hang together.

| search | takes |
|---|---|
| `top_n` | the edges of the highest rank, wherever they are |
| `greedy` | from the logits backward, always the best edge whose target already is in the circuit |

Edges of equal rank are taken in the order of the graph, so a search gives one answer.
"""

from __future__ import annotations

import heapq
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.search.found import Found, empty_edges, trimmed
from mechanome.circuits.search.limits import one_limit, size_up_to, worth
from mechanome.circuits.selecting import RANKS, By, largest
from mechanome.engine.asked import one_of


def top_n(
    scores: Scores,
    size: int | None = None,
    threshold: float | None = None,
    *,
    by: By = "absolute",
    prune: bool = True,
) -> Found:
    """The edges of the highest rank.

    Args:
        scores: of edges; those that were not measured are never taken.
        size: take so many.
        threshold: or take all whose rank is at least this, in units of the metric.
        by: rank by the size of a score ("absolute"), by the score ("highest"), or by its opposite ("lowest": edges that
            the metric needs).
        prune: leave out edges on no path from the embedding to the logits, so that fewer than `size` may remain; the
            note says how many went.

    Raises:
        BadInput: scores of sources; no limit or two; a size beyond the scored edges; a negative threshold.
    """
    ranks, size, least = _ranked(scores, size, threshold, by)
    chosen = largest(ranks.flatten()[None], size).view_as(ranks) & (ranks >= least)
    circuit, notes = trimmed(scores.graph, chosen, scores.intervention, prune)
    return Found(circuit, "top-n", scores, notes=notes)


def greedy(
    scores: Scores,
    size: int | None = None,
    threshold: float | None = None,
    *,
    by: By = "absolute",
    prune: bool = True,
) -> Found:
    """Grow a circuit from the logits backward (Hanna et al. 2024).

    The circuit starts as the logits. At each step the edge of the highest rank is added among all edges that are not in
    it and whose target is: a target is in the circuit if it is the logits, or if a source computed from it sends along
    an edge of the circuit (a key or value head counts for every query head that shares it). So every edge leads on to
    the logits, which `top_n` does not promise. Each step takes logarithmic time.

    Args:
        scores, size, threshold, by, prune: as for `top_n`; growth stops where no edge in reach has the threshold.
            Pruning leaves out edges that no path from the embedding reaches.

    Raises:
        BadInput: as `top_n`.
    """
    ranks, size, least = _ranked(scores, size, threshold, by)
    graph, chosen = scores.graph, empty_edges(scores.graph)
    taken = _grow(graph, ranks, size, least)
    for i, j in taken:
        chosen[i, j] = True
    circuit, notes = trimmed(graph, chosen, scores.intervention, prune)
    if threshold is None and len(taken) < size:
        notes += (f"only {len(taken)} scored edges lead on to the logits",)
    return Found(circuit, "greedy", scores, notes=notes)


def _ranked(scores: Scores, size: Any, threshold: Any, by: str) -> tuple[Tensor, int, float]:
    """Ranks `[source, target]` (-infinity where nothing is known), how many edges at most, and the lowest rank."""
    values = given("scores", scores, Scores).edge_values().double()
    one_limit(size, threshold)
    one_of("by", by, RANKS)
    known = scores.known
    ranks = RANKS[by](values).masked_fill(~known, -torch.inf)
    available = int(known.sum())
    if size is not None:
        return ranks, size_up_to(size, available), -torch.finfo(ranks.dtype).max
    return ranks, available, worth(threshold, zero=True)


def _grow(graph: Graph, ranks: Tensor, size: int, least: float) -> list[tuple[int, int]]:
    """The edges that are added, in order.

    Each target in the circuit offers its best edge that is left, so the heap holds one entry per target.
    """
    heap: list[tuple[float, int, int, int]] = []
    orders: dict[int, tuple[list[int], list[float]]] = {}
    serves = [row.nonzero()[:, 0].tolist() for row in graph.feeds.T]

    def offer(target: int, place: int) -> None:
        sources, values = orders[target]
        if place < len(sources) and values[place] >= least:
            heapq.heappush(heap, (-values[place], sources[place], target, place))

    def join(target: int) -> None:
        if target not in orders:
            values, order = ranks[:, target].sort(descending=True, stable=True)
            orders[target] = order.tolist(), values.tolist()
            offer(target, 0)

    join(len(graph.targets) - 1)
    taken: list[tuple[int, int]] = []
    while heap and len(taken) < size:
        _, source, target, place = heapq.heappop(heap)
        taken.append((source, target))
        offer(target, place + 1)
        for read in serves[source]:
            join(read)
    return taken
