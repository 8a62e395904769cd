"""`given`: checks that an argument is the kind of object it is to be, and of the graph it is to be of."""

from __future__ import annotations

from typing import Any, TypeVar

from mechanome.circuits.graph import Graph, same_graph
from mechanome.core import BadInput

_Kind = TypeVar("_Kind")


def given(what: str, value: Any, kind: type[_Kind], graph: Graph | None = None) -> _Kind:
    """The argument itself.

    Args:
        what: what it is called, such as ``"start="``.
        value: what was given.
        kind: what it is to be.
        graph: the graph of the others, which it is to be of too; None for no others.

    Raises:
        BadInput: an object of another kind, or of another graph.
    """
    if not isinstance(value, kind):
        own = "" if graph is None else " of the same graph"
        raise BadInput(what, f"it is no {kind.__name__} but {type(value).__name__}", f"give a {kind.__name__}{own}")
    if graph is not None:
        same_graph([graph, value.graph])  # type: ignore[attr-defined]
    return value
