"""`Scores`: how much the metric changes when an edge (or a source) carries what it carries on the other input.

A score is `M(patched) - M(clean)`: negative where the clean run needs the edge. `estimate` says whether it was measured
by running the model with exactly this edge patched, or extrapolated from gradients.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.core import BadInput, CorruptFile, NotFinite, ShapeMismatch, Table, read_tensors, write_tensors

Level = Literal["edge", "node"]
_FORMAT = "circuit-scores"


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of the edges or of the sources of a graph.

    Args:
        graph: whose edges or sources.
        values: `[source, target]` (0 where there is no edge) or `[source]`: means over examples, in units of the
            metric; NaN where nothing was measured.
        level: "edge" or "node".
        method: how they were found, a name of `mechanome.circuits.METHODS`.
        intervention: what a patched part carries.
        estimate: whether they are estimates, not measured effects.
        clean: the metric of the clean inputs, `[example]`.
        corrupted: of the other inputs, `[example]`; None where the intervention is no input.
        each: per example, `[example, source, target]` or `[example, source]`; None if not asked for.
        quadrature, steps: of integrated gradients, None elsewhere.
        notes: what a reader of the numbers must know.

    Raises:
        ShapeMismatch: values that do not fit the graph. NotFinite: infinite values.
    """

    graph: Graph
    values: Tensor = field(repr=False)
    level: Level
    method: str
    intervention: str
    estimate: bool
    clean: Tensor = field(repr=False)
    corrupted: Tensor | None = field(default=None, repr=False)
    each: Tensor | None = field(default=None, repr=False)
    quadrature: str | None = None
    steps: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = self.graph.shape if self.level == "edge" else self.graph.shape[:1]
        for value in (self.values, *(() if self.each is None else self.each)):
            if tuple(value.shape) != shape:
                raise ShapeMismatch(
                    f"scores of shape {list(value.shape)}",
                    f"{self.level}s of this graph are {list(shape)}",
                    "check them",
                )
        if bool(torch.isinf(self.values).any()):
            raise NotFinite(f"scores by {self.method}", "some are infinite", "use float32, or check the inputs")

    def edge_values(self) -> Tensor:
        """The matrix `[source, target]`.

        Raises:
            BadInput: these are scores of sources.
        """
        if self.level != "edge":
            raise BadInput("these scores", "they are of sources, not of edges", "score with level='edge'")
        return self.values

    @property
    def known(self) -> Tensor:
        """Where a score is known, booleans of the shape of `values`."""
        there = self.graph.mask if self.level == "edge" else torch.ones_like(self.values, dtype=torch.bool)
        return there & ~self.values.isnan()

    @property
    def total_effect(self) -> float | None:
        """Mean change of the metric between the two inputs, None without other inputs."""
        return None if self.corrupted is None else float((self.corrupted - self.clean).double().mean())

    def names(self) -> list[str]:
        """Names of what `values[known]` holds, in this order."""
        found = self.known.nonzero().tolist()
        return [self.graph.sources[i[0]] if self.level == "node" else self.graph.name(*i) for i in found]

    def table(self, k: int | None = 20) -> Table:
        """The largest scores by size, with their share of the total effect where there is one."""
        places, values = self.known.nonzero(), self.values[self.known]
        order = values.abs().argsort(descending=True, stable=True)[:k]
        total = self.total_effect
        columns = ["source"] if self.level == "node" else ["source", "target"]
        rows = []
        for n in order.tolist():
            i = places[n].tolist()
            ends = [self.graph.sources[i[0]], *([self.graph.targets[i[1]]] if len(i) > 1 else [])]
            value = float(values[n])
            rows.append((*ends, value, None if not total else value / total))
        named = "score (estimate)" if self.estimate else "score"
        return Table([*columns, named, "share of the total effect"], rows, repr(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the scores (not the graph's model) as a tensor file."""
        tensors = {"values": self.values, "clean": self.clean, "corrupted": self.corrupted, "each": self.each}
        meta = {
            name: getattr(self, name)
            for name in ("level", "method", "intervention", "estimate", "quadrature", "steps", "notes")
        }
        write_tensors(path, {k: v for k, v in tensors.items() if v is not None}, format=_FORMAT, meta=meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Scores:
        """Read what `save` wrote.

        Raises:
            BadInput: no such file. CorruptFile: damaged. ShapeMismatch: scores of another graph.
        """
        found = read_tensors(path, format=_FORMAT)
        try:
            meta = {**found.meta, "notes": tuple(found.meta["notes"])}
            optional = found.tensors.get("corrupted"), found.tensors.get("each")
            _check_examples(len(found.tensors["clean"]), found.tensors)
            return cls(
                graph,
                found.tensors["values"],
                clean=found.tensors["clean"],
                corrupted=optional[0],
                each=optional[1],
                **meta,
            )
        except (KeyError, TypeError) as error:
            raise CorruptFile(f"{path}", f"a part is missing ({error})", "write it again") from error
        except ValueError as error:
            raise CorruptFile(f"{path}", f"its parts do not fit together ({error})", "write it again") from error

    def __repr__(self) -> str:
        how = self.method if self.steps is None else f"{self.method} ({self.steps} steps, {self.quadrature})"
        kind = "estimates" if self.estimate else "exact effects"
        return f"Scores of {int(self.known.sum())} {self.level}s by {how}, {self.intervention}: {kind}"

    def _repr_html_(self) -> str:
        return self.table().html()


def _check_examples(n: int, tensors: Mapping[str, Tensor]) -> None:
    """Check that everything in a file that is per example is of as many.

    Raises:
        ValueError: it is not.
    """
    for name in ("clean", "corrupted", "each"):
        value = tensors.get(name)
        if value is not None and (len(value) != n or (name != "each" and value.dim() != 1)):
            raise ValueError(f"{name} of shape {list(value.shape)} for {n} examples")
