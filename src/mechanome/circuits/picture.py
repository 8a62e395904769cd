"""A circuit as a layered drawing: the embedding below, the logits above, one row a layer, heads left and MLP right.

An edge is a curve; its strength is the size of its score, and its hue says which way it works: for the answer, where
the metric falls without it, or against it. With thousands of edges a drawing is a blot, so it shows the strongest and
says how many it leaves out; the table beside it holds the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from markupsafe import Markup, escape
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.score_matrix import Scores
from mechanome.core import Table
from mechanome.report.rendering import number

_STEP, _EDGE_OF_PAGE = 46, 52
_ROW, _LEAST_ROW, _HEIGHT = 62, 38, 1000
"""Pixels from layer to layer, as they are and at least, and of the whole drawing if they allow it."""
_LEFT_OUT = {None: "more edges", "edge": "weaker edges", "node": "edges of weaker sources"}
"""What is not drawn, by what scores are of."""


@dataclass(frozen=True)
class Node:
    """A box of the drawing.

    Args:
        label: its text. tip: what is said on hover. x, y: its middle, in pixels.
    """

    label: str
    tip: str
    x: float
    y: float


@dataclass(frozen=True)
class CircuitPicture:
    """A circuit, drawn; it is a picture of `mechanome.report`.

    Args:
        circuit: what is drawn.
        scores: strength and sign of its edges; without them all are drawn alike. With scores of sources, too, but those
            between strong ends are drawn first.
        most: the largest number of edges drawn, strongest first.
        tips: source name to a further remark on hover (such as what a head attends to).

    Raises:
        BadInput: something else than a circuit or scores, or of two graphs.
    """

    circuit: Circuit
    scores: Scores | None = None
    most: int = 150
    tips: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given("the circuit", self.circuit, Circuit)
        if self.scores is not None:
            given("scores=", self.scores, Scores, self.circuit.graph)

    @property
    def drawn(self) -> list[tuple[int, int, float | None]]:
        """Source, target and score of the edges drawn, strongest first."""
        pairs = [(i, j) for i, j in self.circuit.edges.nonzero().tolist()]
        if self.scores is None:
            return [(i, j, None) for i, j in pairs[: self.most]]
        if self.scores.level == "node":
            ends = self._weaker_end(self.scores.values.abs().nan_to_num())
            return [(i, j, None) for i, j in sorted(pairs, key=lambda edge: -float(ends[edge]))[: self.most]]
        values = self.scores.edge_values()
        strong = sorted(((i, j, float(values[i, j])) for i, j in pairs), key=lambda edge: -abs(edge[2]))
        return [*strong[: self.most]]

    def _weaker_end(self, sizes: Tensor) -> Tensor:
        """The smaller of both ends of every edge, `[source, target]`, by the sizes of sources `[source]`.

        A target is as large as the largest source of its box; the logits are as large as any.
        """
        graph, used = self.circuit.graph, self.circuit.used
        readers = torch.full((len(graph.targets),), float(sizes.max()))
        for j in range(len(graph.targets)):
            if len(own := [s for s in graph.feeds[j].nonzero()[:, 0].tolist() if used[s]]):
                readers[j] = sizes[own].max()
        return torch.minimum(sizes[:, None], readers)

    def nodes(self) -> dict[str, Node]:
        """Boxes by name of the source, and "logits"; only those that edges drawn touch."""
        graph = self.circuit.graph
        touched = {i for i, _, _ in self.drawn}
        touched |= {s for _, j, _ in self.drawn for s in graph.feeds[j].nonzero()[:, 0].tolist()}
        boxes: dict[str, Node] = {}
        used = [g for g in graph.writers if any(i in touched for i in range(g.first, g.first + g.count))]
        # Layers without a box take no room: a circuit of a few layers of a deep model stays a picture.
        levels = {layer: n for n, layer in enumerate(dict.fromkeys(g.layer for g in used), 1)}
        rows = len(levels)
        height = max(_LEAST_ROW, min(_ROW, _HEIGHT // (rows + 1)))
        widest = max((g.count for g in used if g.kind == "head"), default=1)
        for group in used:
            y = float(_EDGE_OF_PAGE + height * (rows + 1 - levels[group.layer]))
            mlp = group.kind in ("mlp", "unit", "rest")  # one that is cut into units is one box all the same
            y -= height / 2 if mlp else 0.0  # it reads what the heads of its layer wrote
            for unit in range(group.count):
                index = group.first + unit
                if index not in touched:
                    continue
                name = graph.sources[index]
                head = group.kind == "head"
                slot = widest + 1.0 if mlp else float(unit) if head else (widest + 1) / 2
                label = (
                    f"{group.layer}.{unit}" if head else f"MLP {group.layer}" if group.layer is not None else "input"
                )
                shown = name if group.kind not in ("unit", "rest") else f"units of MLP {group.layer}"
                tip = shown + (f": {self.tips[shown]}" if shown in self.tips else "")
                boxes[name] = Node(label, tip, _EDGE_OF_PAGE + _STEP * slot, y)
        boxes["logits"] = Node("logits", "logits", _EDGE_OF_PAGE + _STEP * (widest + 1) / 2, _EDGE_OF_PAGE)
        return boxes

    def html(self) -> Markup:
        """The drawing, as SVG in the colors of the page."""
        boxes, graph = self.nodes(), self.circuit.graph
        width = max(node.x for node in boxes.values()) + _EDGE_OF_PAGE
        height = max(node.y for node in boxes.values()) + _EDGE_OF_PAGE
        strongest = max((abs(v) for _, _, v in self.drawn if v is not None), default=1.0) or 1.0
        curves = [
            _curve(boxes[graph.sources[i]], node, graph.name(i, j), value, strongest)
            for i, j, value in reversed(self.drawn)
            for node in _into(graph, boxes, j)
        ]
        left_out = len(self.circuit) - len(self.drawn)
        things = _LEFT_OUT[None if self.scores is None else self.scores.level]
        note = f'<p class="dim">{left_out:,} {things} are not drawn.</p>' if left_out else ""
        return Markup(
            f'<div class="scroll"><svg class="circuit" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
            f'aria-label="{escape(repr(self.circuit))}" style="max-width:100%;height:auto;display:block;margin:auto">'
            "<style>.circuit path:hover { stroke-opacity: 1; stroke-width: 4; }</style>"
            + "".join(curves)
            + "".join(_box(node) for node in dict.fromkeys(boxes.values()))
            + f"</svg></div>{note}"
        )

    def table(self) -> Table:
        """All edges, strongest first where they are scored."""
        scored = self.scores is not None and self.scores.level == "edge"
        return self.circuit.table(self.scores if scored else None, k=None)


def _into(graph: Graph, boxes: dict[str, Node], target: int) -> Sequence[Node]:
    """The boxes that a target belongs to: every head of its group."""
    if graph.targets[target] == "logits":
        return [boxes["logits"]]
    return list(dict.fromkeys(boxes[graph.sources[s]] for s in graph.feeds[target].nonzero()[:, 0].tolist()))


def _curve(start: Node, end: Node, name: str, value: float | None, strongest: float) -> str:
    # The root keeps weak edges visible beside one that is ten times as strong.
    strength = 0.5 if value is None else max(0.15, (abs(value) / strongest) ** 0.5)
    hue = "--soft-rgb" if value is None else "--for-rgb" if value <= 0 else "--against-rgb"
    color = "var(--soft)" if value is None else f"rgb(var({hue}))"
    middle = (start.y + end.y) / 2
    tip = name if value is None else f"{name}: {number(value, 4)}"
    low, high = start.y - 11, end.y + 11
    return (
        f'<path d="M{start.x:g},{low:g} C{start.x:g},{middle:g} {end.x:g},{middle:g} {end.x:g},{high:g}" '
        f'fill="none" stroke="{color}" stroke-opacity="{strength:.3f}" stroke-width="{0.8 + 2.4 * strength:.2f}" '
        f'data-tip="{escape(tip)}"><title>{escape(tip)}</title></path>'
    )


def _box(node: Node) -> str:
    half = {5: 21, 6: 26}.get(len(node.label), 17)
    return (
        f'<g data-tip="{escape(node.tip)}"><title>{escape(node.tip)}</title>'
        f'<rect x="{node.x - half:g}" y="{node.y - 11:g}" width="{2 * half}" height="22" rx="6" fill="var(--card)" '
        f'stroke="var(--line)"/><text x="{node.x:g}" y="{node.y + 4:g}" text-anchor="middle" font-size="11.5" '
        f'fill="var(--ink)">{escape(node.label)}</text></g>'
    )
