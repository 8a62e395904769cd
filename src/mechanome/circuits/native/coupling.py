"""Which patterns that an MLP detects open which of its write units: the correlation of gates over a text."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.native.contexts import gates_over
from mechanome.circuits.native.units import MLPUnits
from mechanome.core import BadInput, Table, TooFewRows
from mechanome.engine.asked import count
from mechanome.engine.inputs import Inputs


@dataclass(frozen=True)
class Coupling:
    """Correlations of the strongest read and write units of one layer.

    Args:
        layer: which.
        values: Pearson's correlation over tokens, `[read unit, write unit]`, float64; 0 where a gate never changes.
        tokens: how many.
    """

    layer: int
    values: Tensor = field(repr=False)
    tokens: int

    def table(self, k: int = 10) -> Table:
        """The strongest pairs."""
        order = self.values.abs().flatten().topk(min(k, self.values.numel())).indices.tolist()
        pairs = [divmod(i, self.values.shape[1]) for i in order]
        rows = [(read, write, float(self.values[read, write])) for read, write in pairs]
        return Table(("read unit", "write unit", "correlation"), rows, f"Layer {self.layer}, {self.tokens} tokens")

    def _repr_html_(self) -> str:
        return self.table().html()


def coupling(
    read: MLPUnits,
    write: MLPUnits,
    layer: int,
    corpus: Inputs,
    k: int = 32,
    *,
    quiet: bool = False,
) -> Coupling:
    """Correlate the `k` strongest read units of a layer with its `k` strongest write units over a text.

    Args:
        read: units of side "read" or "gate". write: units of side "write", of the same model.
        layer: which. corpus: texts. k: how many of each. quiet: no progress line.

    Raises:
        BadInput: other sides, or units of two models. TooFewRows: fewer than three tokens.
    """
    if read.side == "write" or write.side != "write" or read.model is not write.model:
        raise BadInput(f"{read} and {write}", "they are not read and write units of one model", "make both of it")
    count("k", k)
    batch = read.model.encode(corpus)
    gates = [
        torch.cat(gates_over(units, layer, range(min(k, len(units[layer]))), batch, quiet)).double()
        for units in (read, write)
    ]
    tokens = len(gates[0])
    if tokens < 3:
        raise TooFewRows("coupling", f"the text has {tokens} tokens", "give more text")
    first, second = ((x - x.mean(0)) / (x - x.mean(0)).norm(dim=0).clamp(min=1e-12) for x in gates)
    return Coupling(layer, first.T @ second, tokens)
