"""`NodeCircuit`: a set of nodes, and the edits that keep, scale or set them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from mechanome.circuits.neurons.nodes import Nodes, SiteNodes
from mechanome.core import BadInput, NotFinite, ShapeMismatch, Table
from mechanome.engine import Edit
from mechanome.engine.edits import Custom
from mechanome.engine.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Fill:
    """A value for every node: what takes the place of those outside a circuit, or of a circuit's own.

    Args:
        nodes: which. parts: per site coordinates `[pos, unit]` and the rest `[pos, width]`, None without a basis.
    """

    nodes: Nodes
    parts: tuple[tuple[Tensor, Tensor | None], ...] = field(repr=False)

    @classmethod
    def means(cls, nodes: Nodes, inputs: Inputs) -> Fill:
        """Means over prompts, of every position by itself."""
        return cls(nodes, tuple(_mean(site, x) for site, x in nodes.read(inputs)))

    @classmethod
    def zeros(cls, nodes: Nodes) -> Fill:
        """Nothing at all."""
        last = nodes.last
        return cls(nodes, tuple(
            (torch.zeros(last, s.units), None if s.basis is None else torch.zeros(last, s.width)) for s in nodes.sites
        ))  # fmt: skip

    def flat(self) -> Tensor:
        """Values of nodes `[node]`; that of a rest is its length."""
        return self.nodes.joined(
            [c if r is None else torch.cat([c, r.norm(dim=-1, keepdim=True)], -1) for c, r in self.parts]
        )


def _mean(site: SiteNodes, x: Tensor) -> tuple[Tensor, Tensor | None]:
    c, rest = site.split(x)
    return c.mean(0), None if rest is None else rest.mean(0)


@dataclass(frozen=True, eq=False)
class NodeCircuit:
    """A set of nodes.

    Args:
        nodes: all there are. kept: which are in it, booleans `[node]`.
    """

    nodes: Nodes
    kept: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.kept.shape != (len(self.nodes),) or self.kept.dtype != torch.bool:
            why = f"it is {self.kept.dtype} {list(self.kept.shape)} for {len(self.nodes)} nodes"
            raise ShapeMismatch("a circuit of nodes", why, "give one boolean a node, or use NodeCircuit.of")

    @classmethod
    def of(cls, nodes: Nodes, chosen: Iterable[int]) -> NodeCircuit:
        """The circuit of some nodes, by number.

        Raises:
            BadInput: a node that does not exist.
        """
        kept = torch.zeros(len(nodes), dtype=torch.bool)
        numbers = list(chosen)
        if wrong := [i for i in numbers if not 0 <= i < len(nodes)]:
            raise BadInput(f"node {wrong[0]}", f"there are {len(nodes)}", f"use 0 to {len(nodes) - 1}")
        kept[torch.tensor(numbers, dtype=torch.long)] = True
        return cls(nodes, kept)

    @classmethod
    def random(cls, nodes: Nodes, n: int, seed: int = 0) -> NodeCircuit:
        """`n` nodes drawn at random: the control of a circuit of that size."""
        order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))
        return cls.of(nodes, order[:n].tolist())

    def __len__(self) -> int:
        return int(self.kept.sum())

    def __iter__(self) -> Iterator[int]:
        return iter(self.kept.nonzero()[:, 0].tolist())

    def __invert__(self) -> NodeCircuit:
        return NodeCircuit(self.nodes, ~self.kept)

    def __repr__(self) -> str:
        return f"circuit of {len(self)} of {len(self.nodes)} nodes"

    def shared(self, other: NodeCircuit) -> float:
        """Share of this circuit's nodes that another of the same nodes has too; NaN where it is empty."""
        return float((self.kept & other.kept).sum()) / len(self) if len(self) else float("nan")

    def table(self) -> Table:
        """How many nodes of each site, position by position."""
        rows = [
            (str(site.site), *map(int, part.sum(-1)))
            for site, part in zip(self.nodes.sites, self.nodes.split(self.kept))
        ]
        return Table(
            ("site", *(str(p) for p in range(-self.nodes.last, 0))), [r for r in rows if any(r[1:])], repr(self)
        )

    # Edits -----------------------------------------------------------------------------------------------------------

    def keep(self, fill: Fill) -> list[Edit]:
        """Only the circuit speaks: all other nodes are set to `fill`."""
        return (~self).set(fill)

    def set(self, fill: Fill) -> list[Edit]:
        """The circuit's nodes are set to `fill`, such as their values on another prompt (`Fill.means` of it)."""
        if fill.nodes is not self.nodes:
            raise BadInput("a fill", "it is of other nodes than the circuit", "make both from one Nodes")
        return [
            Custom(site.site, partial(_set, site, mask, own), pos=self.nodes.place)
            for (site, mask), own in zip(self._masks(), fill.parts)
            if bool(mask.any())
        ]

    def scale(self, factor: float) -> list[Edit]:
        """The circuit's nodes are multiplied by a factor: 0 takes them out, 2 doubles them.

        Raises:
            NotFinite: a factor that is NaN or infinite.
        """
        if not torch.isfinite(torch.tensor(float(factor))):
            raise NotFinite("a factor", f"it is {factor}", "give a finite number")
        return [
            Custom(site.site, partial(_scale, site, mask, float(factor)), pos=self.nodes.place)
            for site, mask in self._masks()
            if bool(mask.any())
        ]

    def _masks(self) -> Iterator[tuple[SiteNodes, Tensor]]:
        return zip(self.nodes.sites, self.nodes.split(self.kept))


def _set(site: SiteNodes, mask: Tensor, fill: tuple[Tensor, Tensor | None], x: Tensor) -> Tensor:
    """Set the masked nodes `[pos, node]` of activations `[row * pos, width]`."""
    rows = x.unflatten(0, (-1, len(mask)))
    c, rest = site.split(rows)
    mask = mask.to(x.device)
    c = torch.where(mask[:, : site.units], fill[0].to(c), c)
    if rest is not None and fill[1] is not None:
        rest = torch.where(mask[:, site.units :], fill[1].to(rest), rest)
    return site.joined(c, rest).flatten(0, 1)


def _scale(site: SiteNodes, mask: Tensor, factor: float, x: Tensor) -> Tensor:
    """Multiply the masked nodes `[pos, node]` of activations `[row * pos, width]`."""
    rows = x.unflatten(0, (-1, len(mask)))
    c, rest = site.split(rows)
    by = torch.where(mask.to(x.device), factor, 1.0)
    rest = None if rest is None else rest * by[:, site.units :]
    return site.joined(c * by[:, : site.units], rest).flatten(0, 1)
