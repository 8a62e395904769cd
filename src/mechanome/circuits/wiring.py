"""How a graph's nodes lie in its model: which sites and weights, in the order in which things happen.

A wiring is a list of events. `Writes`: a group of sources adds to the stream. `Reads`: a group of targets reads the
stream. `Turns`: a norm on the stream itself, in models that norm after each part. Whoever walks the events in order,
carrying what each source has added, knows at each `Reads` what every source contributes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from mechanome.circuits.cuts import Coordinates, Cut, Each, Heads, Missed, Whole
from mechanome.circuits.graph import Graph
from mechanome.circuits.layers import Group, Kind
from mechanome.circuits.norms import Norm
from mechanome.circuits.units import vectors
from mechanome.engine import Edit, Model, Site
from mechanome.engine.architecture import Block, Part, Tower


@dataclass(frozen=True, eq=False)
class Writes:
    """A group of sources, and what they add.

    Args:
        group: the sources.
        site: where their values are; groups of one MLP's units and their rest share one.
        weight: from values to the stream, `[unit, width, d_model]`; None where values are in the stream's space.
        norm: what their sum goes through on its way to the stream (sandwich norms), else None.
        into: the site of that norm's input.
        cut: from the site's tensor to values, and back.
    """

    group: Group
    site: Site
    weight: Tensor | None = None
    norm: Norm | None = None
    into: Site | None = None
    cut: Cut = field(default_factory=Whole)

    def added(self, values: Tensor, units: Tensor | None = None) -> Tensor:
        """Values `[token, unit, width]` in the stream's space, `[unit, token, d_model]`.

        Args:
            values: of all units. units: or of these, by number.
        """
        if self.weight is None:
            return values.transpose(0, 1)
        return torch.bmm(values.transpose(0, 1), self.weight if units is None else self.weight[units])

    @property
    def thin(self) -> bool:
        """Whether its sources are units, many and each one direction: what they write is summed, not held."""
        return self.group.kind == "unit"


@dataclass(frozen=True, eq=False)
class Reads:
    """A group of targets, and how they read.

    Args:
        group: the targets.
        site: where a target's own gradient is taken and its own input is changed: a projection's output
            `batch pos unit width`, or a place `batch pos d_model` that this target alone reads.
        weight: from the norm's output to `site`, `[unit, d_model, width]`; None where `site` is in its space.
        norm: between the stream and `weight` (or `site`); None where `site` is the stream itself.
        stream: the site of the norm's input.
    """

    group: Group
    site: Site
    weight: Tensor | None = None
    norm: Norm | None = None
    stream: Site | None = None


@dataclass(frozen=True, eq=False)
class Turns:
    """A norm that the stream itself goes through. `site` is its input."""

    norm: Norm
    site: Site


Event = Writes | Reads | Turns


@dataclass(frozen=True, eq=False)
class Wiring:
    """A graph laid into its model.

    Args:
        graph: the graph.
        events: what happens, in order.
        dtype: of all computations with it: at least float32.
    """

    graph: Graph
    events: tuple[Event, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, graph: Graph) -> Wiring:
        """The wiring of a graph of a model.

        Raises:
            BadInput: a graph made from shapes. NotServed: a weight that is no single matrix, or a norm of another kind.
        """
        model = graph.opened()
        dtype = torch.promote_types(model.dtype, torch.float32)
        with torch.no_grad():
            events = tuple(_Builder(graph, model, dtype).events())
        return cls(graph, events, dtype)

    @property
    def model(self) -> Model:
        """The model."""
        return self.graph.opened()

    @cached_property
    def writes(self) -> tuple[Writes, ...]:
        """In the order of `graph.writers`."""
        found = {e.group: e for e in self.events if isinstance(e, Writes)}
        return tuple(found[group] for group in self.graph.writers)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Where the values of sources are, each once."""
        return tuple(dict.fromkeys(w.site for w in self.writes))

    def edits(self, values: Sequence[Tensor], site: Site | None = None) -> list[Edit]:
        """Edits that make sources carry some values.

        Args:
            values: per group of sources, `[batch, pos, unit, width]`.
            site: only the sources at this site; None for all.
        """
        held: dict[Site, Tensor] = {}
        for writes, value in zip(self.writes, values):
            if site is None or writes.site == site:
                part = writes.cut.part(value)
                held[writes.site] = held[writes.site] + part if writes.site in held else part
        return [Edit(where, "set", part.to(self.model.dtype)) for where, part in held.items()]

    @cached_property
    def reads(self) -> tuple[Reads, ...]:
        """In the order of `graph.readers`."""
        found = {e.group: e for e in self.events if isinstance(e, Reads)}
        return tuple(found[group] for group in self.graph.readers)

    @cached_property
    def streams(self) -> tuple[Site, ...]:
        """Inputs of the norms on the way, whose values every closed form needs."""
        found = [e.site for e in self.events if isinstance(e, Turns)]
        found += [e.into for e in self.writes if e.into] + [e.stream for e in self.reads if e.stream]
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, eq=False)
class _Builder:
    graph: Graph
    model: Model
    dtype: torch.dtype

    @property
    def tower(self) -> Tower:
        return self.model.architecture.tower(self.graph.tower)

    def events(self) -> Iterator[Event]:
        yield Writes(self.graph.writers[0], self._site("resid_pre", 0))
        for layer, block in enumerate(self.tower.blocks):
            readers = [group for group in self.graph.readers if group.layer == layer]
            writers = {group.kind: group for group in self.graph.writers if group.layer == layer}
            mlp = next((self._mlp(group, block) for group in readers if group.kind == "mlp_in"), None)
            for group in readers:
                if group.kind != "mlp_in":
                    yield self._attention(group, block)
            if mlp and block.style == "parallel":
                yield mlp
            if "head" in writers:
                yield self._heads(writers["head"], block)
                yield from self._turn(block, "ln1")
            if mlp:
                if block.style != "parallel":
                    yield mlp
                yield from self._mlp_writes(layer, block, writers)
                yield from self._turn(block, "ln2")
        yield Reads(self.graph.readers[-1], self._site("resid_post", len(self.tower.blocks) - 1))

    def _site(self, point: str, layer: int) -> Site:
        return Site(point, layer, tower=self.graph.tower)

    def _weight(self, name: str) -> Tensor:
        return self.model.weight(name, self.graph.tower).value.to(self.dtype)

    def _turn(self, block: Block, role: str) -> Iterator[Turns]:
        if block.style == "post" and role in block.roles:
            part = block.roles[role]
            yield Turns(Norm.of(part, self.dtype), _input_of(part))

    def _attention(self, group: Group, block: Block) -> Reads:
        assert group.layer is not None
        weight = self._weight(f"W_{group.kind.upper()}.{group.layer}")
        site = self._site({"q": "q_pre", "k": "k_pre", "v": "v"}[group.kind], group.layer)
        norm = None if block.style == "post" else _norm_part(block, "ln1")
        if norm is None:
            return Reads(group, site, weight)
        return Reads(group, site, weight, Norm.of(norm, self.dtype), self._site("resid_pre", group.layer))

    def _mlp(self, group: Group, block: Block) -> Reads:
        """The MLP's own norm is read at its input; one that it shares with attention is undone in closed form."""
        assert group.layer is not None
        first = block.roles.get("mlp") or block.roles["up_proj"]
        own = None if block.style == "post" else _norm_part(block, "ln2")
        if own is not None:
            return Reads(group, _input_of(own))
        shared = _norm_part(block, "ln1") if block.style == "parallel" else None
        if shared is None:
            return Reads(group, _input_of(first))
        norm = Norm.of(shared, self.dtype)
        return Reads(group, _input_of(first), None, norm, self._site("resid_pre", group.layer))

    def _heads(self, group: Group, block: Block) -> Writes:
        assert group.layer is not None
        site, weight = self._site("z", group.layer), self._weight(f"W_O.{group.layer}")
        return Writes(group, site, weight, *self._behind(block, "attn_out"), cut=Heads())

    def _behind(self, block: Block, role: str) -> tuple[Norm | None, Site | None]:
        """The norm that all heads of a block, or all units of its MLP, write through, and the site of its input."""
        if block.style != "sandwich":
            return None, None
        return Norm.of(block.roles[role], self.dtype), _input_of(block.roles[role])

    def _mlp_writes(self, layer: int, block: Block, writers: dict[Kind, Group]) -> Iterator[Writes]:
        """A whole MLP, or the units that it is cut into and what they miss."""
        units = self.graph.layers[layer].units
        if units is None:
            yield Writes(writers["mlp"], self._site("mlp_out", layer))
            return
        assert units.basis is not None
        site, acts = self._site(units.point, layer), units.point == "mlp_act"
        out = self._weight(f"W_out.{layer}") if acts else None
        behind = self._behind(block, "mlp_out") if acts else (None, None)
        cut: Cut = Each()
        if units.every_neuron and out is not None:
            each = out
        else:
            own = vectors(units.basis, units.count, self.model.device).to(self.dtype)
            each, cut = own if out is None else own @ out, Coordinates(units.basis, own)
        yield Writes(writers["unit"], site, each.unsqueeze(1), *behind, cut=cut)
        if "rest" in writers:
            yield Writes(writers["rest"], site, None if out is None else out[None], *behind, cut=Missed(units.basis))


def _norm_part(block: Block, role: str) -> Part | None:
    part = block.roles.get(role)
    return None if part is None or type(part.module) is nn.Identity else part


def _input_of(part: Part) -> Site:
    return Site(f"path:{part.path}:in")
