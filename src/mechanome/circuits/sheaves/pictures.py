"""Two circuits side by side, and the table of all their edges with whose they are."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.graph import same_graph
from mechanome.circuits.metrics import iou
from mechanome.circuits.picture import CircuitPicture
from mechanome.circuits.score_matrix import Scores
from mechanome.core import Table


@dataclass(frozen=True)
class SideBySide:
    """Two circuits of one graph, drawn next to each other; a picture of `mechanome.report`.

    Args:
        first, second: the circuits.
        names: over their drawings.
        scores: strength and sign of edges, for both; None draws all alike.
        most: edges drawn of each.

    Raises:
        BadInput: circuits of different graphs.
    """

    first: Circuit
    second: Circuit
    names: tuple[str, str] = ("first", "second")
    scores: Scores | None = None
    most: int = 150

    def __post_init__(self) -> None:
        same_graph([self.first.graph, self.second.graph])

    def html(self) -> Markup:
        """Both drawings, and how much they share."""
        figure = Markup(
            '<figure style="flex:1 1 20rem;min-width:0;margin:0"><figcaption>{}: {:,} edges</figcaption>{}</figure>'
        )
        drawings = Markup("").join(
            figure.format(name, len(circuit), CircuitPicture(circuit, self.scores, self.most).html())
            for name, circuit in zip(self.names, (self.first, self.second))
        )
        said = escape(f"{len(self.first & self.second):,} edges are in both; {iou(self.first, self.second)}.")
        return Markup('<div style="display:flex;flex-wrap:wrap;gap:1.5rem">{}</div><p class="dim">{}</p>').format(
            drawings, said
        )

    def table(self) -> Table:
        """Every edge of either, those of both first."""
        both, graph = self.first & self.second, self.first.graph
        groups = (("both", both), (self.names[0], self.first - both), (self.names[1], self.second - both))
        rows = [
            (graph.sources[i], graph.targets[j], whose)
            for whose, circuit in groups
            for i, j in circuit.edges.nonzero().tolist()
        ]
        return Table(["source", "target", "in"], rows, f"{self.first!r} and {self.second!r}")
