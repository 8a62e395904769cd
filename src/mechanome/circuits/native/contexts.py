"""Where in a text units are on: the contexts that open their gates most, exact, in one pass over the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mechanome.circuits.native.units import MLPUnits
from mechanome.core import BadInput, Bar
from mechanome.engine import Batch
from mechanome.engine.asked import count
from mechanome.engine.inputs import Inputs

_TOKENS_AT_ONCE = 1024
_AROUND = 8
"""Tokens that are shown before the one that opens the gate; after it, half as many."""


class Peak(NamedTuple):
    """One place of a text: the gate, and where (row, position)."""

    gate: float
    row: int
    pos: int


@dataclass(frozen=True)
class Context:
    """A place that opens a gate.

    Args:
        gate: how strongly, signed.
        tokens: around it. gates: of each of them. at: which of them is the place.
    """

    gate: float
    tokens: tuple[str, ...] = field(repr=False)
    gates: tuple[float, ...] = field(repr=False)
    at: int

    @property
    def text(self) -> str:
        """The tokens up to the place and after it, the place in brackets."""
        before, here, after = self.tokens[: self.at], self.tokens[self.at], self.tokens[self.at + 1 :]
        return f"{''.join(before)}[{here}]{''.join(after)}".replace("\n", "\\n").replace("\t", "\\t")


def gates_over(units: MLPUnits, layer: int, chosen: Sequence[int], corpus: Inputs, quiet: bool = False) -> list[Tensor]:
    """Gates of some units of a layer at every token of a text, one `[pos, unit]` per row.

    Args:
        units: of either side. layer: which. chosen: indices of units. corpus: texts, or what else a model reads.
        quiet: no progress line.

    Raises:
        UnknownName, BadInput: units that do not exist.
    """
    picked = torch.tensor(units.chosen((layer, i) for i in chosen)[layer])
    batch, site, found = units.model.encode(corpus), units.site(layer), []
    size = max(1, _TOKENS_AT_ONCE // max(1, batch.frame.width))
    with Bar("reading text", batch.rows, quiet) as bar:
        for start in range(0, batch.rows, size):
            rows = list(range(start, min(start + size, batch.rows)))
            run = units.model.run(batch.take(rows), capture=site, logits=False)
            values, frame = run.source(site)
            for i, _ in enumerate(rows):
                real = values[i, frame.starts[i] : frame.starts[i] + frame.lengths[i]]
                found.append(units.gates(layer, real)[:, picked].cpu())
            bar.advance(len(rows))
    return found


def contexts(
    units: MLPUnits,
    layer: int,
    chosen: Sequence[int],
    corpus: Inputs,
    k: int = 5,
    *,
    skip: int = 1,
    quiet: bool = False,
) -> list[tuple[list[Context], list[Context]]]:
    """The places of a text where each unit is on most.

    Args:
        units, layer, chosen, corpus, quiet: as in `gates_over`.
        k: how many places, at most one per row (document).
        skip: first positions that are left out: the first is often a sink, with gates like no other's.

    Returns:
        per unit, the places of the largest and of the smallest (most negative) gates.

    Raises:
        BadInput: k below 1, or no row that is longer than `skip`.
    """
    count("k", k)
    batch = units.model.encode(corpus)
    each = gates_over(units, layer, chosen, batch, quiet)
    if not any(len(gates) > skip for gates in each):
        raise BadInput("this text", f"no row is longer than {skip} tokens", "give longer ones, or skip=0")
    found = []
    for unit in range(len(chosen)):
        sides = []
        for sign in (1.0, -1.0):
            peaks = sorted(_peaks([sign * gates[:, unit] for gates in each], skip), reverse=True)[:k]
            sides.append([_shown(batch, each[p.row][:, unit], p) for p in peaks if p.gate > 0])
        found.append((sides[0], sides[1]))
    return found


def _peaks(gates: Sequence[Tensor], skip: int) -> list[Peak]:
    """The strongest place of each row."""
    rows = [(row, values[skip:].max(0)) for row, values in enumerate(gates) if len(values) > skip]
    return [Peak(float(best.values), row, int(best.indices) + skip) for row, best in rows]


def _shown(batch: Batch, gates: Tensor, peak: Peak) -> Context:
    lo, hi = max(0, peak.pos - _AROUND), min(len(gates), peak.pos + _AROUND // 2 + 1)
    tokens = batch.tokens[peak.row] if batch.tokens else tuple(map(str, range(len(gates))))
    shown = tuple(float(v) for v in gates[lo:hi])
    return Context(float(gates[peak.pos]), tuple(tokens[lo:hi]), shown, peak.pos - lo)
