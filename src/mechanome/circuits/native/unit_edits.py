"""Edits that take units out of a model, or keep only some; exact, and without a copy of any weight.

A unit that is removed writes nothing: its coordinate of the neurons is set to 0 (or to its mean), and the down
projection does the rest. The neurons keep what no unit detects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.native.units import MLPUnits, Unit
from mechanome.core import BadInput, ShapeMismatch
from mechanome.engine import Edit
from mechanome.engine.where import Where

Fill = Mapping[int, Tensor] | None
"""What gates are set to: layer to `[unit]`, as `MLPUnits.mean` returns it; None for 0."""


def ablate_units(units: MLPUnits, chosen: Iterable[Unit], fill: Fill = None, **where: Any) -> list[Edit]:
    """Take units out.

    Args:
        units: of the write side.
        chosen: (layer, index) of each.
        fill: what their gates are set to; None for 0, so that they write nothing.
        where: positions and rows, as in `mechanome.Where` (`pos="last"`).

    Raises:
        UnknownName, BadInput: units that do not exist, none, or one twice. NotServed: units of the read side.
    """
    return [_set(units, layer, each, fill, where) for layer, each in units.chosen(chosen).items()]


def keep_units(units: MLPUnits, chosen: Iterable[Unit], fill: Fill = None, **where: Any) -> list[Edit]:
    """Take out all units but some, in every layer of `units`.

    Args, raises: as `ablate_units`; no unit at all may be kept.
    """
    wanted = list(chosen)
    kept = units.chosen(wanted) if wanted else {}
    edits = []
    for layer in units.layers:
        rest = sorted(set(range(len(units[layer]))) - set(kept.get(layer, ())))
        if rest:
            edits.append(_set(units, layer, rest, fill, where))
    return edits


def _set(units: MLPUnits, layer: int, each: list[int], fill: Fill, where: Mapping[str, Any]) -> Edit:
    value: float | Tensor = 0.0
    if fill is not None:
        if layer not in fill:
            raise BadInput(f"fill for layer {layer}", "it has none", "use units.mean(model's prompts)")
        if fill[layer].shape != (len(units[layer]),):
            why = f"it is {list(fill[layer].shape)} for {len(units[layer])} units"
            raise ShapeMismatch(f"fill for layer {layer}", why, "give one number a unit")
        value = fill[layer][torch.tensor(each)].float()
    return Edit(units.site(layer), "ablate", value, Where(**where), units.basis(layer, each))
