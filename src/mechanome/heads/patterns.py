"""Attention patterns of a prompt, with its tokens: where each head looks.

A pattern says how a head distributes its attention, not what it takes from there; for that see
`mechanome.heads.contributions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from mechanome.core import BadInput, Table
from mechanome.engine import Model
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.reading import on_one_line, read_attention, stacked

Head = tuple[int, int] | str
"""A head as `(layer, head)` or as `"5.h3"`."""


@dataclass(frozen=True)
class Patterns:
    """Where the heads of a model look.

    Args:
        pattern: attention weights, `[layer, head, query, key]`; rows sum to 1, or below where a model has sinks.
        layers: of the layer axis.
        queries: positions along the query axis.
        tokens: along the key axis.
        axes: names of the axes.
    """

    pattern: Tensor = field(repr=False)
    layers: tuple[int, ...]
    queries: tuple[int, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    axes: tuple[str, ...] = ("layer", "head", "query", "key")

    def of(self, head: Head) -> Tensor:
        """One head's pattern, `[query, key]`.

        Raises:
            BadInput: a head that is not here.
        """
        layer, index = self._place(head)
        return self.pattern[layer, index]

    def top(self, head: Head, query: int = -1, k: int = 5) -> Table:
        """The keys a head looks at most from one query: position, token, weight.

        Args:
            head: `(layer, head)` or `"5.h3"`.
            query: a position of the prompt; negative counts from its end.
            k: how many.
        """
        row = self.of(head)[self.query_index(query)]
        weights, keys = row.topk(min(k, len(row)))
        position = range(len(self.tokens))[query]
        title = f"Head {self._name(head)}, looking from {position} {self.tokens[position]!r}"
        rows = [(int(j), on_one_line(self.tokens[int(j)]), float(w)) for w, j in zip(weights, keys)]
        return Table(("position", "token", "weight"), rows, title)

    def table(self, query: int = -1) -> Table:
        """For one query, the key each head looks at most: one row a head."""
        weights, keys = self.pattern[:, :, self.query_index(query)].max(-1)
        rows = [
            (layer, head, int(keys[i, head]), on_one_line(self.tokens[int(keys[i, head])]), float(weights[i, head]))
            for i, layer in enumerate(self.layers)
            for head in range(self.pattern.shape[1])
        ]
        position = range(len(self.tokens))[query]
        title = f"Strongest key of each head, looking from {position} {self.tokens[position]!r}"
        return Table(("layer", "head", "position", "token", "weight"), rows, title)

    def query_index(self, query: int) -> int:
        """Where a position lies along the query axis.

        Raises:
            BadInput: a position that was not read.
        """
        return query_index(self.queries, query, len(self.tokens))

    def _place(self, head: Head) -> tuple[int, int]:
        layer, index = parse_head(head)
        if layer not in self.layers or not 0 <= index < self.pattern.shape[1]:
            shown = f"layers {self.layers[0]} to {self.layers[-1]}, heads 0 to {self.pattern.shape[1] - 1}"
            raise BadInput(f"head {layer}.h{index}", "it was not read", f"there are {shown}")
        return self.layers.index(layer), index

    def _name(self, head: Head) -> str:
        layer, index = parse_head(head)
        return f"{layer}.h{index}"


def patterns(
    model: Model,
    inputs: Inputs,
    layers: Iterable[int] | None = None,
    queries: Positions = None,
    *,
    tower: str | None = None,
    budget: Budget = None,
) -> Patterns:
    """The attention patterns of one prompt.

    Args, raises: as `mechanome.heads.read_attention`.
    """
    reading = read_attention(model, inputs, layers, queries, tower=tower, budget=budget)
    pattern = stacked([layer.pattern for layer in reading.layers], "patterns")
    return Patterns(pattern, reading.indices, reading.queries, reading.tokens)


def parse_head(head: Head) -> tuple[int, int]:
    """`(5, 3)` or `"5.h3"` as layer and head.

    Raises:
        BadInput: something else.
    """
    if isinstance(head, str):
        match = re.fullmatch(r"(?:\w+\.)?(\d+)\.h(\d+)", head)
        if match is None:
            raise BadInput(f"head '{head}'", "it does not name a layer and a head", "write (5, 3) or '5.h3'")
        return int(match[1]), int(match[2])
    layer, index = head
    return int(layer), int(index)


def query_index(queries: tuple[int, ...], query: int, n: int) -> int:
    """Where a position of a prompt of `n` tokens lies in a list of queries.

    Raises:
        BadInput: a position outside the prompt, or one that was not read.
    """
    position = query + n if query < 0 else query
    if position not in queries:
        why = f"the prompt has {n} tokens" if not 0 <= position < n else "it was not read"
        raise BadInput(f"query {query}", why, "read it with queries=, or use one of those read")
    return queries.index(position)
