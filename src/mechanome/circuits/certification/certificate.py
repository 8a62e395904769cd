"""`Certificate`: which parts of a circuit would be found on other examples, too, with the proof's numbers.

Examples are deleted at random, the method is run on what is left, and every component gets votes (Anani et al. 2026,
paper 26). Where more than `tau` of all masks vote alike, this is proved: on any dataset that differs from this one by
at most `radius` insertions, deletions and substitutions of examples, the majority of its masks votes the same way. The
majority, not more: on the other dataset the component may be one that abstains, but it is never one that the majority
decides the other way. What abstains has no such proof and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from mechanome.circuits.certification.bounds import Bounds, Level, judged, radius
from mechanome.circuits.circuit import Circuit
from mechanome.circuits.effects import Components
from mechanome.core import BadInput, Table, UnknownName, nearest

DECISIONS = ("in", "out", "abstain")


@dataclass(frozen=True, eq=False)
class Certificate:
    """What randomly deleted examples prove of a method's circuit.

    Args:
        components: what was chosen from.
        level: how much was asked for.
        examples: how many the method has.
        found: what the method finds on all examples, `[component]` of booleans.
        guess: what most of the `n0` first masks vote, `[component]` of booleans.
        agree: of `n` fresh masks, those that vote as guessed, `[component]` int64.
        how: how the method was run, "scores" or "function".
        notes: what a reader must know.
    """

    components: Components
    level: Level
    examples: int
    found: Tensor = field(repr=False)
    guess: Tensor = field(repr=False)
    agree: Tensor = field(repr=False)
    how: str
    notes: tuple[str, ...] = ()

    @cached_property
    def bounds(self) -> Bounds:
        """Lower bounds of the share of masks with the majority, and whether each is above tau."""
        return judged(self.agree, self.level.n, self.level.tau, self.level.alpha, self.level.correction)

    @property
    def votes(self) -> Tensor:
        """Share of the `n` masks on which each component is found, `[component]` float64."""
        share = self.agree.double() / self.level.n
        return torch.where(self.guess, share, 1 - share)

    @property
    def certified_in(self) -> Tensor:
        """Components certified to be in the circuit, `[component]` of booleans."""
        return self.bounds.certified & self.guess

    @property
    def certified_out(self) -> Tensor:
        """Components certified to be outside, `[component]` of booleans."""
        return self.bounds.certified & ~self.guess

    @property
    def abstained(self) -> Tensor:
        """Components of which nothing is proved, `[component]` of booleans."""
        return ~self.bounds.certified

    @property
    def radius(self) -> Tensor:
        """Edits of the examples under which each majority is proved to stay, `[component]` int64.

        0 is no certificate. It can be 1 or more where a component abstains: votes then prove a majority, with a share
        below tau.
        """
        return radius(self.bounds.lower, self.level.p_del)

    @property
    def effective(self) -> float:
        """Share of all components that are certified to be in."""
        return float(self.certified_in.double().mean())

    def decision(self, component: int | str) -> str:
        """ "in", "out" or "abstain", for a component by number or name.

        Raises:
            UnknownName: there is none.
        """
        names = self.names
        if isinstance(component, str):
            if component not in names:
                raise UnknownName(f"component '{component}'", "there is none of this name", nearest(component, names))
            component = names.index(component)
        if not -len(names) <= component < len(names):
            raise UnknownName(f"component {component}", "there is no such number", f"they are 0 to {len(names) - 1}")
        return self.decisions[component]

    @cached_property
    def decisions(self) -> tuple[str, ...]:
        """A name of `DECISIONS` for each component."""
        code = torch.where(self.abstained, 2, (~self.guess).long())
        return tuple(DECISIONS[i] for i in code.tolist())

    @cached_property
    def names(self) -> list[str]:
        """Of the components."""
        graph = self.components.graph
        if graph is None or self.components.names:
            return [self.components.name(i) for i in range(len(self.components))]
        places = self.components.where.nonzero().tolist()
        return [graph.name(*i) if len(i) == 2 else graph.sources[i[0]] for i in places]

    def circuit(self) -> Circuit:
        """The certified circuit: edges certified in, or all edges between sources certified in.

        Raises:
            BadInput: components that are no parts of a graph; `certified_in` holds them as booleans.
        """
        graph, chosen = self.components.graph, self.components.placed(self.certified_in)
        if graph is None:
            raise BadInput("this certificate", "its components are no parts of a graph", "use .certified_in")
        return Circuit(graph, chosen) if self.components.edges else Circuit.of_nodes(graph, chosen)

    # To people -----------------------------------------------------------------------------------------------

    @property
    def statement(self) -> str:
        """What is proved, in words."""
        level = self.level
        together = {
            "bonferroni": "of all components together (Bonferroni)",
            "holm": "of all components together (Holm)",
            "none": "of each single component (no correction)",
        }[level.correction]
        return (
            f"With confidence {1 - level.alpha:g} {together}: on any examples that differ from these {self.examples} "
            f"by at most the radius in insertions, deletions and substitutions, the majority of random sub-datasets "
            f"(each example deleted with chance {level.p_del:g}) decides on the component as it does here."
        )

    def counts(self) -> dict[str, int]:
        """How many components are certified in, certified out, and abstain."""
        return {name: self.decisions.count(name) for name in DECISIONS}

    def table(self, k: int | None = 20) -> Table:
        """The components that are in, then those that abstain, then those that are out; each by its bound.

        Args:
            k: how many, None for all.
        """
        rank = {"in": 0, "abstain": 1, "out": 2}
        lower, votes, radii = self.bounds.lower.tolist(), self.votes.tolist(), self.radius.tolist()
        order = sorted(range(len(lower)), key=lambda i: (rank[self.decisions[i]], -votes[i], i))[:k]
        rows = [
            (self.names[i], self.decisions[i], votes[i], lower[i], radii[i] or None, "yes" if self.found[i] else "no")
            for i in order
        ]
        columns = ["component", "decision", "votes for it", "majority above", "radius", "found on all examples"]
        return Table(columns, rows, repr(self))

    def __repr__(self) -> str:
        counts = self.counts()
        return (
            f"Certificate: {counts['in']} in, {counts['out']} out, {counts['abstain']} abstain of "
            f"{len(self.components)} components, radius {self.level.promised} (tau {self.level.tau:g}, "
            f"p_del {self.level.p_del:g}, {self.level.n} masks of {self.examples} examples)"
        )

    def _repr_html_(self) -> str:
        return self.table().html()
