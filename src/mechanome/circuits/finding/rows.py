"""The parts of a circuit one by one: edges, or sources, with estimate and exact effect side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.finding.discovery import Discovery
from mechanome.core import Table

_EDGES, _SOURCES = 100_000, 60
"""Edges beyond which only those between so many sources are drawn."""


@dataclass(frozen=True)
class Row:
    """An edge of the circuit, or a source.

    Args:
        source: its name. target: None for a source.
        estimate: from gradients; None where the method makes none.
        exact: the measured effect; None where it was not measured.
        share: of the total effect, by the exact number where there is one; None without a total effect.
    """

    source: str
    target: str | None
    estimate: float | None
    exact: float | None
    share: float | None

    @property
    def value(self) -> float:
        """The number that counts."""
        return self.exact if self.exact is not None else self.estimate or 0.0

    @property
    def name(self) -> str:
        """As people read it."""
        return self.source if self.target is None else f"{self.source} \u2192 {self.target}"

    @property
    def remark(self) -> str:
        """What the exact number corrects."""
        changed = self.estimate is not None and self.exact is not None and self.estimate * self.exact < 0
        return "estimated with the other sign" if changed else ""


def rows(d: Discovery) -> list[Row]:
    """Of the circuit, strongest first; without numbers where the method ranks nothing."""
    graph, found, s = d.graph, d.ranked.scores, d.ranked.screened
    if found is None:
        pairs = d.circuit.edges.nonzero().tolist()
        return [Row(graph.sources[i], graph.targets[j], None, None, None) for i, j in pairs]
    edges = found.level == "edge"
    places = d.circuit.edges.nonzero() if edges else d.circuit.used.nonzero()
    estimate = None if not edges and s is None else s.estimate if s is not None else found if found.estimate else None
    exact = s.exact if s is not None else None if found.estimate else found
    total = found.total_effect
    made = []
    for place in places.tolist():
        at = tuple(place)
        measured = None if exact is None or not bool(exact.known[at]) else float(exact.values[at])
        guessed = None if estimate is None else float(estimate.values[at])
        value = measured if measured is not None else guessed or 0.0
        target = graph.targets[at[1]] if edges else None
        made.append(Row(graph.sources[at[0]], target, guessed, measured, value / total if total else None))
    return sorted(made, key=lambda row: -abs(row.value))


def drawable(d: Discovery) -> Circuit:
    """The circuit, of very many edges those between its strongest sources: more are no picture, and take minutes."""
    found = d.ranked.scores
    if len(d.circuit) <= _EDGES or found is None or found.level != "node":
        return d.circuit
    sizes = torch.where(d.circuit.used, found.values.abs(), -1.0)
    strong = torch.zeros_like(d.circuit.used)
    strong[sizes.topk(min(_SOURCES, len(sizes))).indices] = True
    return Circuit(d.graph, d.circuit.edges & strong[:, None] & Circuit.of_nodes(d.graph, strong).edges)


def table(d: Discovery, k: int | None = None) -> Table:
    """`rows` as a table."""
    kept = [(r.source, r.target or "", r.estimate, r.exact, r.share, r.remark) for r in rows(d)[:k]]
    return Table(
        ["source", "target", "estimate", "exact", "share of the total effect", "remark"], kept, repr(d.circuit)
    )


def strongest_heads(d: Discovery, k: int) -> list[str]:
    """The heads of the circuit as "layer.head", by the sum of the sizes of what they send."""
    sizes: dict[str, float] = {}
    for row in rows(d):
        sizes[row.source] = sizes.get(row.source, 0.0) + abs(row.value)
    heads = sorted(d.heads, key=lambda name: -sizes.get(name, 0.0))[:k]
    return [head.rpartition("/")[2].removeprefix("z.").replace(".h", ".") for head in heads]
