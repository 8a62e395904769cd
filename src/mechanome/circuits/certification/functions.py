"""Any function as a discovery method: from a list of examples to the components it finds.

The certificate holds for methods that are a function of the set of examples, so both things are checked before
anything is counted, on a few random parts: the same examples give the same components, and so do they in another
order. A method that draws random numbers, or depends on order, is refused with the part on which it was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.effects import Components
from mechanome.core import BadInput, ShapeMismatch, TooFewRows

Finder = Callable[[list[Any]], Any]
"""A method: from a list of examples to booleans over components (tensor, array or list), or to a `Circuit`."""

CHECKS = 3
"""Random parts on which a method is called three times: as they are, again, and in another order."""


@dataclass(frozen=True, eq=False)
class Function:
    """A method given as a function, with its examples.

    Args:
        find: the method.
        dataset: the examples.
        components: what it chooses from.
    """

    find: Finder
    dataset: Sequence[Any]
    components: Components
    _known: dict[bytes, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, find: Finder, dataset: Sequence[Any], names: Sequence[str] = ()) -> Function:
        """A method and its examples; it is called once, with all of them, to see what it chooses from.

        Args:
            find: from a list of examples to booleans over components, or a `Circuit`. It is never called with none.
            dataset: the examples; anything with a length and an index.
            names: of the components, where they are no edges of a graph.

        Raises:
            TooFewRows: no example. BadInput: a dataset without length, a result that is no set of components.
            ShapeMismatch: names that do not fit.
        """
        try:
            rows = [dataset[i] for i in range(len(dataset))]
        except (TypeError, KeyError, IndexError) as error:
            why = f"a {type(dataset).__name__} has no length or no index ({error})"
            raise BadInput("the dataset", why, "give a list of examples") from error
        if not rows:
            raise TooFewRows("the dataset", "it is empty", "give the examples that the method is run on")
        first = find(rows)
        if isinstance(first, Circuit):
            components = Components(first.graph.mask, first.graph)
        else:
            flat = _booleans(first)
            if names and len(names) != flat.numel():
                raise ShapeMismatch(f"{len(names)} names", f"the method chooses among {flat.numel()}", "name each once")
            components = Components(torch.ones(flat.shape, dtype=torch.bool), None, tuple(names))
        found = cls(find, rows, components)
        found._known[_key(torch.ones(len(rows), dtype=torch.bool))] = found._flat(first)
        return found

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self.dataset)

    def sets(self, kept: Tensor) -> Tensor:
        """What is found on parts of the examples; see `Discoverer.sets`. The same part is looked at once."""
        return torch.stack([self._one(row) for row in kept])

    def check(self, generator: torch.Generator) -> None:
        """Call the method again on random halves of its examples, and in another order.

        Raises:
            BadInput: it gives something else the second time, or in another order.
        """
        n = self.examples
        for _ in range(CHECKS):
            kept = torch.randperm(n, generator=generator)[: max(1, (n + 1) // 2)]
            same = self._call(kept.sort().values)
            if not torch.equal(same, self._call(kept.sort().values)):
                why = f"called twice with the same {len(kept)} examples it found different components"
                raise BadInput("this method", why, "remove its randomness, or seed it inside the function")
            if not torch.equal(same, self._call(kept)):
                why = f"it found different components when {len(kept)} examples came in another order"
                fix = "make it a function of the set: sort inside it, or break ties by the component"
                raise BadInput("this method", why, fix)

    def _one(self, kept: Tensor) -> Tensor:
        if not bool(kept.any()):
            return torch.zeros(len(self.components), dtype=torch.bool)
        key = _key(kept)
        if key not in self._known:
            self._known[key] = self._call(kept.nonzero()[:, 0])
        return self._known[key]

    def _call(self, rows: Tensor) -> Tensor:
        return self._flat(self.find([self.dataset[i] for i in rows.tolist()]))

    def _flat(self, found: Any) -> Tensor:
        """A result as booleans over components, `[component]`."""
        graph, where = self.components.graph, self.components.where
        if isinstance(found, Circuit) != (graph is not None) or (graph is not None and found.graph != graph):
            raise BadInput("this method", "it returned results of several kinds", "return the same kind always")
        if isinstance(found, Circuit):
            return found.edges[where]
        flat = _booleans(found)
        if flat.shape != where.shape:
            why = f"it returned {list(flat.shape)} booleans, and {list(where.shape)} before"
            raise ShapeMismatch("this method", why, "return one boolean for each component, always")
        return flat.flatten()


def _booleans(found: Any) -> Tensor:
    fix = "return one boolean for each component, such as scores > threshold, or a Circuit"
    try:
        value = found.detach().cpu() if isinstance(found, Tensor) else torch.from_numpy(np.asarray(found))
    except TypeError as error:
        raise BadInput("this method", f"it returned a {type(found).__name__} ({error})", fix) from error
    if value.dtype != torch.bool or not value.numel() or not value.dim():
        raise BadInput("this method", f"it returned {value.dtype} of shape {list(value.shape)}, no booleans", fix)
    return value


def _key(kept: Tensor) -> bytes:
    return np.packbits(kept.numpy()).tobytes()
