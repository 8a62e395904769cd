"""`Effects`: scores of every component on every input, flat, whatever they are scores of.

The statistics of circuits do not care whether a component is a head or an edge. They need one row per input and one
column per component, and a way back to sources and edges for sets and pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.circuits.score_matrix import Scores
from mechanome.core import BadInput, NotFinite, ShapeMismatch


@dataclass(frozen=True, eq=False)
class Components:
    """What there is to choose from: sources, edges, or bare columns.

    Args:
        where: which cells of a vector `[source]` or a matrix `[source, target]` they are, as booleans.
        graph: whose sources or edges; None for bare numbers.
        names: of each; empty where nobody named them.
    """

    where: Tensor = field(repr=False)
    graph: Graph | None = None
    names: tuple[str, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return int(self.where.sum())

    @property
    def edges(self) -> bool:
        """Whether they are pairs of a source and a target."""
        return self.where.dim() == 2

    def placed(self, flat: Tensor) -> Tensor:
        """Values `[..., component]` where they belong, `[..., source(, target)]`; nothing elsewhere."""
        found = flat.new_zeros(*flat.shape[:-1], *self.where.shape)
        found[..., self.where] = flat
        return found

    def name(self, component: int) -> str:
        """The name of a component, its place where it has none."""
        if self.names:
            return self.names[component]
        return ", ".join(str(i) for i in self.where.nonzero()[component].tolist())

    def same(self, other: Components) -> bool:
        """Whether both are the same cells of the same graph."""
        return self.graph == other.graph and torch.equal(self.where, other.where)


@dataclass(frozen=True, eq=False)
class Effects:
    """Scores per input.

    Args:
        values: `[input, component]`, in units of the metric.
        components: what the columns are.

    Raises:
        NotFinite: NaN or infinity. ShapeMismatch: no component.
    """

    values: Tensor = field(repr=False)
    components: Components

    def __post_init__(self) -> None:
        if not len(self.components):
            raise ShapeMismatch("these scores", "there is no component", "score at least one")
        if not bool(torch.isfinite(self.values).all()):
            raise NotFinite("these scores", "some are NaN or infinite", "drop these inputs, or score in float32")

    @classmethod
    def of(cls, scores: Scores | Tensor | Effects) -> Effects:
        """From scores that were kept per input.

        Args:
            scores: a `Scores` with `each`, or a tensor `[input, node]` or `[input, source, target]`, of which every
                cell counts as a component (a `Scores` knows which pairs are no edges).

        Raises:
            BadInput: scores that were not kept per input. ShapeMismatch: a tensor of another number of axes.
        """
        if isinstance(scores, Effects):
            return scores
        if isinstance(scores, Scores):
            if scores.each is None:
                raise BadInput("these scores", "they are means over inputs", "score with per_input=True")
            components = Components(scores.known, scores.graph, tuple(scores.names()))
            return cls(scores.each.detach().cpu()[:, scores.known], components)
        if not isinstance(scores, Tensor) or scores.dim() not in (2, 3):
            shape = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ShapeMismatch(f"scores of shape {shape}", "one row per input is needed", "give [input, node]")
        where = torch.ones(scores.shape[1:], dtype=torch.bool)
        return cls(scores.detach().cpu().flatten(1), Components(where))

    @property
    def inputs(self) -> int:
        """How many inputs."""
        return len(self.values)

    def matching(self, other: Scores | Tensor | Effects, what: str) -> Effects:
        """Other scores of the same components on the same inputs.

        Raises:
            ShapeMismatch: they are of others.
        """
        found = Effects.of(other)
        if found.inputs != self.inputs or not found.components.same(self.components):
            raise ShapeMismatch(
                what,
                f"{list(found.values.shape)} inputs and components beside {list(self.values.shape)}, or other ones",
                "score the same components on the same inputs",
            )
        return found
