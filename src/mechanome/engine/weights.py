"""Weights by name, in one orientation (`x @ W`), whatever the model's own layout: `W_Q.5.h3`, `W_out.7`, `g_ln1.0`.

A name is a kind, a layer where the kind has layers, and optionally one head (`h3`), key/value head (`kv1`) or
expert (`e2`). Every kind is a row of `WEIGHTS`. A weight is a view of its parameter wherever that is possible, so
the same selection reads it, writes it (`edited_weights`, undone bit-exactly) and marks it (`parameter_mask`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite, NotServed, ShapeMismatch, UnknownName, nearest
from mechanome.engine.asked import names as names_of
from mechanome.engine.parameters import How, Selection, Stored
from mechanome.engine.weight_table import WEIGHTS, Ask, Kind

if TYPE_CHECKING:
    from mechanome.engine.model import Model

New = Tensor | float
Edits = Mapping[str, New | Callable[[Tensor], New]]


@dataclass(frozen=True)
class Weight:
    """One named weight.

    Args:
        name: as asked for.
        value: the effective weight in the axes of its kind, detached; a view of the parameter where `is_view`.
        parameter: full name of the parameter it lives in.
        selection: which part of the parameter it is; `selection.view(tensor)` cuts the same part out of any tensor of
            the parameter's shape.
        stored: the raw tensor and what the forward pass makes of it.
    """

    name: str
    value: Tensor
    parameter: str
    selection: Selection
    stored: Stored

    @property
    def transposed(self) -> bool:
        """Whether the parameter is stored the other way round, `[out, in]`."""
        return self.selection.transposed

    def __repr__(self) -> str:
        return f"Weight({self.name} {list(self.value.shape)}, {self.how} {self.parameter})"

    @property
    def how(self) -> How:
        """Where the value comes from: `parameter`, `merged` (base plus adapter), `dequantized` or `computed`."""
        return self.stored.how

    @property
    def is_view(self) -> bool:
        """Whether `value` shares memory with the parameter."""
        return self.value.untyped_storage().data_ptr() == self.stored.tensor.untyped_storage().data_ptr()

    def write(self, new: New) -> None:
        """Change the parameter in place so that this weight becomes `new`; see `edited_weights` for an undo.

        Args:
            new: a real tensor in the axes of `value`, or one number for all entries.

        Raises:
            BadInput: neither a real tensor nor a number. NotFinite: NaN or infinity in it.
            ShapeMismatch: `new` has other axes. NotServed: the weight is a copy (quantized or computed).
        """
        if not self.stored.writable:
            raise NotServed(
                f"an edit of {self.name}", f"{self.parameter} is {self.how}", "load the model in floating point"
            )
        if isinstance(new, Real) and not isinstance(new, bool):
            new = torch.full_like(self.value, float(new))
        if not isinstance(new, Tensor) or new.is_complex() or new.dtype == torch.bool:
            kind = new.dtype if isinstance(new, Tensor) else type(new).__name__
            raise BadInput(f"new {self.name}", f"it is {kind}", "give a real tensor or a number")
        if not bool(torch.isfinite(new).all()):
            raise NotFinite(f"new {self.name}", "it holds NaN or infinity", "check what computes it")
        if new.shape != self.value.shape:
            raise ShapeMismatch(f"new {self.name}", f"it is {list(new.shape)}", f"give {list(self.value.shape)}")
        raw = new.detach().to(self.stored.tensor) / self.stored.scale if self.stored.scale != 1.0 else new.detach()
        self.selection.view(self.stored.tensor).copy_(raw - _offset(self.stored, self.selection))


_NAME = re.compile(r"(?:(\w+)/)?([A-Za-z]_\w+?)(?:\.(\d+))?(?:\.(h|kv|e)(\d+))?")


def _parse(model: Model, text: str, tower: str | None) -> tuple[Kind, Ask]:
    if not isinstance(text, str):
        raise BadInput(f"weight {text!r}", "a weight is named by text", "write for example 'W_Q.0'")
    match = _NAME.fullmatch(text)
    if not match or match[2] not in WEIGHTS:
        asked = match[2] if match else text
        same = [k for k in WEIGHTS if k.lower() == asked.lower()]
        raise UnknownName(f"weight '{text}'", "there is no such weight", nearest(asked, same or WEIGHTS))
    if match[1] and tower not in (None, match[1]):
        raise UnknownName(f"weight '{text}'", f"it names another tower than '{tower}'", "name the tower once")
    kind, layer = WEIGHTS[match[2]], match[3]
    if kind.per_layer != (layer is not None):
        why = "this weight exists in each layer" if kind.per_layer else "this weight has no layers"
        raise UnknownName(f"weight '{text}'", why, f"write {match[2]}{'.0' if kind.per_layer else ''}")
    if match[4] and match[4] != kind.coordinate:
        allowed = f".{kind.coordinate}0" if kind.coordinate else "none"
        raise UnknownName(f"weight '{text}'", f"it has no coordinate .{match[4]}", f"its coordinate: {allowed}")
    architecture = model.architecture
    index = int(match[5]) if match[5] else None
    if match[2] in ("W_U", "b_U"):
        return kind, Ask(text, architecture, None, None, index)
    place = architecture.tower(match[1] or tower)
    if layer is None:
        return kind, Ask(text, architecture, place, None, index)
    if int(layer) >= len(place.blocks):
        raise UnknownName(
            f"weight '{text}'", f"layer {layer} does not exist", f"there are layers 0 to {len(place.blocks) - 1}"
        )
    return kind, Ask(text, architecture, place, place.blocks[int(layer)], index)


def _offset(stored: Stored, selection: Selection) -> Tensor | float:
    return selection.view(stored.offset) if isinstance(stored.offset, Tensor) else stored.offset


def weight(model: Model, name: str, tower: str | None = None) -> Weight:
    """A weight by name.

    Args:
        name: `W_Q.5.h3` `[d_model, d_head]`, `W_Q.5` `[head, d_model, d_head]`, `W_O.5.h3` `[d_head, d_model]`,
            `W_in.5` `[d_model, d_mlp]`, `W_in.5.e2`, `W_E`, `W_U` ...: the rows of `WEIGHTS`. `decoder/W_Q.5` names a
            tower.
        tower: the tower, where the model has several and the name holds none.

    Returns:
        a `Weight`; its value is what the forward pass uses: gains as `1 + w` where the norm does so, adapters merged,
        scaled embeddings scaled, packed values unpacked.

    Raises:
        BadInput: no text. UnknownName: a name, layer, head or expert that does not exist.
        NotServed: this model has no such weight as one matrix, with the reason.
    """
    kind, ask = _parse(model, name, tower)
    stored, selection = kind.rule(ask)
    value, offset = selection.view(stored.tensor), _offset(stored, selection)
    if isinstance(offset, Tensor) or offset:
        value = value + offset
    if stored.scale != 1.0:
        value = value * stored.scale
    return Weight(name, value, stored.name, selection, stored)


@contextmanager
def edited_weights(model: Model, edits: Edits, tower: str | None = None) -> Iterator[None]:
    """Change weights inside a `with` block; on leaving, also by an exception, every bit is as before.

    Args:
        edits: name -> new weight in the name's axes or one number for all its entries, or a function from the old
            weight (a copy) to the new one; applied in order; nested use is fine. A tied table (`W_E`, `W_U`) changes
            in both places: it is one parameter.

    `model.weights_version` grows on entering and on leaving, so that what was computed before can be known as stale.

    Raises:
        BadInput, NotFinite, UnknownName, NotServed, ShapeMismatch: before anything stays changed.
    """
    if not isinstance(edits, Mapping):
        raise BadInput(f"edits of type {type(edits).__name__}", "they map names to weights", "give {'W_Q.0': tensor}")
    undo: list[tuple[Tensor, Tensor]] = []
    try:
        with torch.no_grad():
            for name, new in edits.items():
                found = weight(model, name, tower)
                value = new(found.value.clone()) if callable(new) else new
                place = found.selection.view(found.stored.tensor)
                undo.append((place, place.clone()))
                found.write(value)
        model.weights_version += 1
        yield
    finally:
        with torch.no_grad():
            for place, before in reversed(undo):
                place.copy_(before)
        model.weights_version += 1


def parameter_mask(model: Model, names: str | Iterable[str], tower: str | None = None) -> dict[str, Tensor]:
    """Which entries of which parameters the named weights are, for training or gradients of these alone.

    Returns:
        parameter name (as in `model.module.named_parameters()`) -> boolean mask of the parameter's shape, only for
        parameters that hold a named weight.

    Raises:
        UnknownName: no such weight. NotServed: a weight that is no part of a parameter (packed or computed).
    """
    masks: dict[str, Tensor] = {}
    # Tied parameters have several paths; named_parameters lists the first.
    listed = {p.data_ptr(): n for n, p in model.module.named_parameters()}
    for name in names_of("names", names):
        found = weight(model, name, tower)
        if not found.stored.writable:
            raise NotServed(f"a mask of {name}", f"{found.parameter} is {found.how}", "load in floating point")
        raw = found.stored.tensor
        mask = masks.setdefault(listed[raw.data_ptr()], torch.zeros(raw.shape, dtype=torch.bool, device=raw.device))
        found.selection.view(mask).fill_(True)
    return masks
