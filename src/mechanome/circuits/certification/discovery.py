"""`Discoverer`: a method, the examples it is given, and what it finds on any part of them.

Certificates need one thing of a method: the circuit it finds on a sub-dataset, for many sub-datasets. Where a circuit
follows from mean scores, all sub-datasets are one product of matrices (`Scored`); any other method is called once for
each (`mechanome.circuits.certification.functions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from mechanome.circuits.effects import Components, Effects

_CELLS = 2**22
"""Numbers that are ranked at once."""
BLOCK = 64
"""Masks between two signs of progress."""


class Discoverer(Protocol):
    """A method with its examples."""

    @property
    def examples(self) -> int:
        """How many there are."""
        ...

    @property
    def components(self) -> Components:
        """What it chooses from."""
        ...

    def sets(self, kept: Tensor) -> Tensor:
        """What it finds on parts of the examples.

        Args:
            kept: which examples each part holds, `[part, example]` of booleans.

        Returns:
            the chosen components, `[part, component]` of booleans; none where no example is left.
        """
        ...


@runtime_checkable
class Rule(Protocol):
    """How sets follow from scores, such as `Select`."""

    def sets(self, scores: Tensor, components: Components) -> Tensor:
        """The chosen components `[sample, component]` for scores `[sample, component]`."""
        ...


@dataclass(frozen=True, eq=False)
class Scored:
    """The method that scores every example, takes the mean, and selects.

    Means are exact in whatever order they are summed: scores are rounded to a common grid so fine that sums of all
    examples still fit into float64 (40 bits below the largest score for 4,000 examples). So the circuit of a
    sub-dataset does not depend on the order of its examples, as a certificate needs.

    Args:
        effects: scores of every component on every example.
        rule: how a circuit follows from their means.
    """

    effects: Effects
    rule: Rule

    @property
    def examples(self) -> int:
        """How many there are."""
        return self.effects.inputs

    @property
    def components(self) -> Components:
        """What is scored."""
        return self.effects.components

    @cached_property
    def _grid(self) -> Tensor:
        values = self.effects.values.double()
        largest = float(values.abs().max())
        if largest == 0:
            return values
        bits = 52 - math.ceil(math.log2(self.examples + 1))
        unit = 2.0 ** (math.frexp(largest)[1] - bits)
        return (values / unit).round() * unit

    def means(self, kept: Tensor) -> Tensor:
        """Mean scores of parts `[part, example]`, `[part, component]` float64; 0 of an empty part."""
        weights = kept.double()
        return (weights @ self._grid) / weights.sum(1, keepdim=True).clamp(min=1)

    def sets(self, kept: Tensor) -> Tensor:
        """What is found on parts of the examples; see `Discoverer.sets`."""
        rows = max(1, _CELLS // len(self.components))
        found = [self.rule.sets(self.means(block), self.components) for block in kept.split(rows)]
        return torch.cat(found) & kept.any(1, keepdim=True)


def masks(examples: int, p_del: float, n: int, generator: torch.Generator) -> Tensor:
    """Random parts of a dataset, `[mask, example]` of booleans: each example is kept with chance `1 - p_del`."""
    return torch.rand(n, examples, generator=generator, dtype=torch.float64) >= p_del


def counted(discovery: Discoverer, blocks: Iterator[Tensor]) -> Tensor:
    """In how many parts each component is found, `[component]` int64."""
    total = torch.zeros(len(discovery.components), dtype=torch.long)
    for kept in blocks:
        total += discovery.sets(kept).sum(0)
    return total
