"""Sizes of query circuits, checked with the settings that go with them, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from mechanome.circuits.graph import Graph
from mechanome.circuits.query_methods import QUERY_METHODS
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of

BUDGETS = (100, 250, 500, 1000, 2000, 5000, 10000)
"""Sizes of circuits, in edges."""

Sizes = tuple[int, ...]


def sizes_of(
    graph: Graph, method: str, budgets: Sequence[int], anchors: Sequence[int] | None, strength: float | None
) -> tuple[Sizes, Sizes]:
    """Budgets and anchors of a method.

    Args:
        graph: the graph. method: a name of `QUERY_METHODS`.
        budgets, anchors, strength: as `query_circuits` has them.

    Raises:
        BadInput: no such method, sizes that do not rise or that the graph does not have, a budget beyond the last
            anchor, anchors or a strength of another method, an impossible strength.
    """
    one_of("method", method, QUERY_METHODS, "there is no such way to find the circuit of a query")
    how, sizes = QUERY_METHODS[method], _rising("budgets", budgets, graph)
    if anchors is not None and not how.between:
        between = " or ".join(name for name, row in QUERY_METHODS.items() if row.between)
        raise BadInput("anchors=", f"'{method}' has circuits at its budgets only", f"leave it out, or use {between}")
    steps = sizes if anchors is None else _rising("anchors", anchors, graph)
    if sizes[-1] > steps[-1]:
        why = f"proposals are run at sizes up to {steps[-1]}"
        raise BadInput(f"a budget of {sizes[-1]}", why, "add an anchor as large as the largest budget")
    if strength is not None and how.strength is None:
        controls = " or ".join(name for name, row in QUERY_METHODS.items() if row.strength is not None)
        raise BadInput("strength=", f"'{method}' draws nothing near the query's scores", f"use {controls}")
    if strength is not None and not 0 < strength < how.most:
        raise BadInput(f"strength {strength}", f"it is the {how.unit}", f"give a number above 0 and below {how.most:g}")
    return sizes, steps


def _rising(what: str, given: Any, graph: Graph) -> Sizes:
    """Numbers of edges, the smallest first."""
    some = f"give several, such as {BUDGETS[:3]}"
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise BadInput(f"{what}={given!r}", "they are sizes in edges", some)
    sizes = tuple(count(f"a size in {what}", n) for n in given)
    if not sizes:
        raise BadInput(what, "there are none", some)
    if any(a >= b for a, b in pairwise(sizes)):
        raise BadInput(f"{what} {list(sizes)}", "they do not rise", "give each size once, the smallest first")
    if sizes[-1] > graph.n_edges:
        why = f"the graph has {graph.n_edges} edges"
        raise BadInput(f"{what} up to {sizes[-1]}", why, "give smaller ones, such as sizes_in_edges(graph)")
    return sizes
