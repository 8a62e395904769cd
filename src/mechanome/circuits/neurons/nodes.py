"""`Nodes`: parts of a model that are told apart by token position, in any basis.

A node is (site, position, unit). At `mlp_act` units are neurons; with a `Basis` they are its coordinates (latents of a
dictionary), and what it misses is one more node a position, `rest`: the dictionary's error. Positions are the last `k`
tokens, counted from the end, so that prompts that differ in front of them can share nodes.

| `at=` | sites |
|---|---|
| `"mlp_act"`, `"mlp_out"`, `"attn_out"`, `"resid_post"` | this point of every layer, number by number |
| `{"mlp_out.7": basis, "mlp_act.8": None}` | these sites, each in its basis, None for number by number |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed
from mechanome.engine import Basis, Batch, Model, Site
from mechanome.engine.asked import one_of
from mechanome.engine.inputs import Inputs
from mechanome.engine.site import parse

POINTS = ("mlp_act", "mlp_out", "attn_out", "resid_post")
"""Points that can be taken in all layers by name."""

At = str | Mapping[str, Basis | None]


@dataclass(frozen=True, eq=False)
class SiteNodes:
    """Nodes of one site at one position.

    Args:
        site: where. basis: coordinates; None for the activations themselves.
        width: features of the site. units: coordinates.
    """

    site: Site
    basis: Basis | None
    width: int
    units: int

    @property
    def size(self) -> int:
        """Units, and the rest where there is a basis."""
        return self.units + (self.basis is not None)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Activations `[..., width]` as coordinates `[..., unit]` and the rest `[..., width]`, None without a basis."""
        if self.basis is None:
            return x, None
        c = self.basis.encode(x)
        return c, x - self.basis.decode(c)

    def joined(self, c: Tensor, rest: Tensor | None) -> Tensor:
        """Activations of coordinates and a rest: the inverse of `split`."""
        return c if self.basis is None or rest is None else self.basis.decode(c) + rest

    def slopes(self, c: Tensor, gradient: Tensor) -> Tensor:
        """The gradient by coordinates `[..., unit]`, from that by activations `[..., width]`."""
        if self.basis is None:
            return gradient
        with torch.enable_grad():
            at = c.detach().requires_grad_()
            (found,) = torch.autograd.grad((self.basis.decode(at) * gradient).sum(), at)
        return found

    def products(self, x: Tensor, base: Tensor | None, gradient: Tensor) -> Tensor:
        """`(value - base's) * gradient` of every node, `[row, pos, node]`; base None for zero."""
        c, rest = self.split(x)
        c_base, rest_base = (torch.zeros_like(c), None) if base is None else self.split(base)
        found = (c - c_base) * self.slopes(c, gradient)
        if rest is None:
            return found
        change = rest if rest_base is None else rest - rest_base
        return torch.cat([found, (change * gradient).sum(-1, keepdim=True)], -1)


@dataclass(frozen=True, eq=False)
class Nodes:
    """All nodes, numbered site by site, position by position, unit by unit.

    Args:
        model: the model. sites: of each site, at one position.
        last: how many positions, the last ones of a prompt.
        aligned: whether prompts must be exactly so long.
    """

    model: Model = field(repr=False)
    sites: tuple[SiteNodes, ...] = field(repr=False)
    last: int
    aligned: bool

    @classmethod
    def of(cls, model: Model, inputs: Inputs, at: At = "mlp_act", last: int | None = None) -> Nodes:
        """The nodes of a model for prompts of one shape.

        Args:
            model: an opened language model.
            inputs: prompts.
            at: a name of `POINTS` for every layer, or sites and their bases.
            last: only so many positions, the last; None for all, of prompts of one length.

        Raises:
            BadInput: prompts of several lengths without `last`, or shorter than it; no sites, or parts of some.
            UnknownSite, NotServed: what the model does not have.
        """
        batch = model.encode(inputs)
        lengths = set(batch.frame.lengths)
        if last is None and len(lengths) > 1:
            why = f"prompts have {min(lengths)} to {max(lengths)} tokens, and nodes are told apart by position"
            raise BadInput("nodes", why, "use prompts of one template, or last= for the last so many positions")
        found = cls(model, (), min(lengths) if last is None else last, last is None)
        found.check(batch)
        chosen = _chosen(model, at)
        run = model.run(batch.take([0]), capture=list(chosen), pos="last", logits="last")
        sites = []
        for site, basis in chosen.items():
            x = run[site]
            if x.dim() != 2:
                raise BadInput(
                    f"nodes at {site}", f"its axes are {run.axes(site)}", "choose a site [row, pos, feature]"
                )
            units = x.shape[-1] if basis is None else basis.encode(x).shape[-1]
            sites.append(SiteNodes(site, basis, x.shape[-1], units))
        return cls(model, tuple(sites), found.last, found.aligned)

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Nodes of each site."""
        return [self.last * site.size for site in self.sites]

    @property
    def place(self) -> str:
        """The positions, as `pos=` takes them."""
        return f"-{self.last}:"

    def check(self, batch: Batch) -> None:
        """Refuse prompts that do not have these positions.

        Raises:
            BadInput: a prompt of another length, or one that is too short.
        """
        if self.last < 1:
            raise BadInput(f"last={self.last}", "there is no such number of positions", "give at least 1")
        for row, length in enumerate(batch.frame.lengths):
            if length < self.last or (self.aligned and length != self.last):
                must = "exactly" if self.aligned else "at least"
                why = f"it has {length} tokens, and nodes are of {must} {self.last}"
                raise BadInput(f"prompt {row}", why, "use prompts of one template, or fewer last= positions")

    def split(self, values: Tensor) -> list[Tensor]:
        """Per site `[..., pos, node]`, from `[..., node]` over all nodes."""
        parts = values.split(self.sizes, -1)
        return [part.unflatten(-1, (self.last, site.size)) for part, site in zip(parts, self.sites)]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`."""
        return torch.cat([part.flatten(-2) for part in parts], -1)

    def where(self, node: int) -> tuple[int, int, int]:
        """Index of the site, position (negative, from the end), and unit of a node; the rest is unit `units`."""
        for index, (size, end) in enumerate(zip(self.sizes, accumulate(self.sizes))):
            if 0 <= node < end:
                position, unit = divmod(node - end + size, self.sites[index].size)
                return index, position - self.last, unit
        raise BadInput(f"node {node}", f"there are {len(self)}", f"use 0 to {len(self) - 1}")

    def index(self, site: str | Site, position: int, unit: int) -> int:
        """The number of a node; position negative, from the end.

        Raises:
            BadInput: no such node.
        """
        start = 0
        for each in self.sites:
            if each.site == parse(site):
                if not (-self.last <= position < 0 and 0 <= unit < each.size):
                    why = f"positions are {-self.last} to -1, units 0 to {each.size - 1}"
                    raise BadInput(f"node {unit} of {site} at {position}", why, "choose among these")
                return start + (position + self.last) * each.size + unit
            start += self.last * each.size
        raise BadInput(f"nodes at {site}", "there are none", f"use {self.sites[0].site} to {self.sites[-1].site}")

    def name(self, node: int) -> str:
        """Such as `mlp_act.7.n120@-1`; `u120` of a basis, `rest` of what it misses."""
        index, position, unit = self.where(node)
        site = self.sites[index]
        kind = f"n{unit}" if site.basis is None else "rest" if unit == site.units else f"u{unit}"
        return f"{site.site}.{kind}@{position}"

    def read(self, inputs: Inputs) -> Iterator[tuple[SiteNodes, Tensor]]:
        """Each site with its activations on some prompts, `[row, pos, width]`."""
        batch = self.model.encode(inputs)
        self.check(batch)
        run = self.model.run(batch, capture=[s.site for s in self.sites], pos=self.place, logits="last")
        return ((site, run[site.site]) for site in self.sites)


def _chosen(model: Model, at: At) -> dict[Site, Basis | None]:
    if isinstance(at, str):
        one_of("at", at, POINTS, "there is no such choice of nodes")
        found: dict[Site, Basis | None] = {site: None for site in model.sites if site.point == at}
        if not found:
            raise NotServed(f"nodes at {at}", f"{model.name} serves no such site", "choose another point")
        return found
    if not isinstance(at, Mapping) or not at:
        raise BadInput(f"nodes at {at!r}", "it is no choice of sites", "give 'mlp_act', or {'mlp_out.7': basis}")
    given = {parse(site): basis for site, basis in at.items()}
    for site, basis in given.items():
        if site.selector:
            raise BadInput(f"nodes at {site}", "it is part of a site", f"use {site.whole}")
        if basis is not None and not isinstance(basis, Basis):
            raise BadInput(f"the basis at {site}", f"a {type(basis).__name__} has no encode and decode", "give a Basis")
    return given
