"""Detector-Effector Units: the MLPs of a model as sums of units that are read off its weights.

Paper 05 (NaNA, Xue & Andrzejak 2026). Nothing is trained and nothing is lost: the sum of a layer's units is its MLP's
output.

| side | weight | unit i detects | and writes |
|---|---|---|---|
| `write` | `W_out` | a pattern of neurons, gate `a_i = h . p_i` | `values_i a_i q_i` to the stream |
| `read` | `W_in`, the norm's gain folded in | a direction of the normalized stream | a pattern of neurons |
| `gate` | `W_gate`, likewise | a direction of the normalized stream | a pattern of gates |

`basis(layer)` at `site(layer)` is what edits and graphs take; any other set of orthonormal detectors is cut by the same
code (`how=`): the neurons themselves, and random rotations as controls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from mechanome.attribution.tuned_lens import identity
from mechanome.circuits.native.folding import Fold
from mechanome.circuits.native.weight_units import SPLITS, Orthonormal, WeightUnits
from mechanome.core import BadInput, CorruptFile, NotServed, Table, UnknownName, nearest, read_tensors, write_tensors
from mechanome.engine import Model, Site
from mechanome.engine.asked import one_of, opened_model
from mechanome.engine.inputs import Inputs
from mechanome.engine.plain import Positions, integers

SIDES = {"write": "W_out", "read": "W_in", "gate": "W_gate"}
"""Which weight of an MLP each side is about."""
_FORMAT, _VERSION = "detector-effector-units", 1

Unit = tuple[int, int]
"""A unit as (layer, index)."""


@dataclass(frozen=True, eq=False)
class MLPUnits:
    """The units of some MLPs of a model; made by `detector_effector_units`.

    Args:
        model: whose.
        parts: per layer, its units.
        side: a row of `SIDES`.
        how: a row of `mechanome.circuits.native.SPLITS`.
        tower: of a model with several.
    """

    model: Model = field(repr=False)
    parts: Mapping[int, WeightUnits] = field(repr=False)
    side: str = "write"
    how: str = "svd"
    tower: str | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers, in order."""
        return tuple(self.parts)

    @cached_property
    def each(self) -> Tensor:
        """Layer and index of every unit, `[unit, 2]`, layer by layer."""
        rows = [torch.stack([torch.full((len(u),), at), torch.arange(len(u))], 1) for at, u in self.parts.items()]
        return torch.cat(rows)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def __getitem__(self, layer: int) -> WeightUnits:
        """A layer's units.

        Raises:
            UnknownName: a layer that is not here.
        """
        if layer not in self.parts:
            raise UnknownName(
                f"units of layer {layer}", "they were not made", nearest(str(layer), map(str, self.parts))
            )
        return self.parts[layer]

    def site(self, layer: int) -> Site:
        """Where the units of a layer are read: the neurons they detect, or the stream that they read through a norm."""
        return Site("mlp_act", layer, tower=self.tower) if self.side == "write" else self._folds[layer].stream

    def basis(self, layer: int, units: Sequence[int] | None = None) -> Orthonormal:
        """Coordinates of a layer's units at `site(layer)`, a `Basis` for edits and graphs; write side only.

        Raises:
            NotServed: the read side, whose detectors live behind a norm.
        """
        if self.side != "write":
            raise NotServed(f"edits by {self.side} units", "a norm stands before them", "use side='write'")
        return self[layer].reads if units is None else Orthonormal(self[layer].left[list(units)])

    def gates(self, layer: int, values: Tensor) -> Tensor:
        """How strongly each unit is on, `[..., unit]`: values at `site(layer)` along the detectors."""
        part = self[layer]
        seen = values if self.side == "write" else self._folds[layer].normalize(values)
        return seen.to(part.left.dtype) @ part.left.to(values.device).T

    def bias(self, layer: int) -> Tensor:
        """What the weight's bias adds to the sum of a layer's units, `[out]`; zeros where there is none."""
        kind = SIDES[self.side].replace("W", "b")
        try:
            own = self.model.weight(f"{kind}.{layer}", self.tower).value
        except NotServed:
            own = torch.zeros(self[layer].right.shape[1])
        if self.side == "write":
            return own
        raw = self.model.weight(f"{SIDES[self.side]}.{layer}", self.tower).value
        return own + self._folds[layer].offset(raw)

    def mean(self, inputs: Inputs, pos: Positions = "last") -> dict[int, Tensor]:
        """Mean gate of every unit over prompts at one position, layer to `[unit]`, float64."""
        sites = [self.site(layer) for layer in self.layers]
        run = self.model.run(inputs, capture=sites, pos=pos, logits=False)
        found = {}
        for layer, site in zip(self.layers, sites):
            found[layer] = self.gates(layer, run[site]).double().flatten(0, -2).nanmean(0)
        return found

    def chosen(self, units: Iterable[Unit]) -> dict[int, list[int]]:
        """Units by layer, checked.

        Raises:
            UnknownName: a unit that is not here. BadInput: none, or one named twice.
        """
        found: dict[int, list[int]] = {}
        for layer, index in units:
            if not 0 <= int(index) < len(self[int(layer)]):
                limit = len(self[int(layer)]) - 1
                raise UnknownName(f"unit {index} of layer {layer}", "there is none", f"it has units 0 to {limit}")
            found.setdefault(int(layer), []).append(int(index))
        if not found or any(len(set(each)) != len(each) for each in found.values()):
            raise BadInput("these units", "one is named twice, or there are none", "name each once")
        return found

    def fidelity(self) -> Table:
        """Per layer: units, how far their sum is from the weight, and how many are determined by it."""
        rows = [
            (layer, len(part), part.error(self._weight(layer)), int(part.unique.sum()) if self.how == "svd" else None)
            for layer, part in self.parts.items()
        ]
        title = f"{SIDES[self.side]} of {self.model.name} as a sum of units ({self.how})"
        return Table(("layer", "units", "relative error", "determined"), rows, title)

    def _weight(self, layer: int) -> Tensor:
        weight = self.model.weight(f"{SIDES[self.side]}.{layer}", self.tower).value
        return weight if self.side == "write" else self._folds[layer].matrix(weight.float())

    @cached_property
    def _folds(self) -> dict[int, Fold]:
        return {layer: Fold.of(self.model, layer, "mlp", self.tower) for layer in self.parts}

    def __repr__(self) -> str:
        return f"MLPUnits({self.model.name}, {len(self)} {self.side} units ({self.how}) of {len(self.parts)} layers)"

    def _repr_html_(self) -> str:
        return self.fidelity().html()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, so that the decomposition need not be made again."""
        name, digest = identity(self.model)
        tensors = dict(_named(self.parts))
        meta = {"model_id": name, "model_sha256": digest, "side": self.side, "how": self.how, "tower": self.tower}
        write_tensors(path, tensors, format=_FORMAT, version=_VERSION, meta=meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model) -> MLPUnits:
        """Read a file of `save`.

        Raises:
            BadInput: no such file, or units of another model. CorruptFile: damaged, or another kind of file.
            NotFinite: NaN in it.
        """
        content = read_tensors(path, format=_FORMAT, version=_VERSION, finite=True, device=model.device)
        try:
            meta, tensors = content.meta, content.tensors
            layers = sorted({int(name.partition("/")[0]) for name in tensors})
            parts = {i: WeightUnits(*(tensors[f"{i}/{x}"] for x in ("left", "values", "right"))) for i in layers}
            found = cls(model, parts, meta["side"], meta["how"], meta["tower"])
            digest = meta["model_sha256"]
        except (KeyError, ValueError) as error:
            raise CorruptFile(str(path), f"it misses a part ({error})", "make the units again") from error
        if digest != identity(model)[1]:
            raise BadInput(f"units of {meta['model_id']}", f"the model is {model.name}", "make them of this model")
        return found


def _named(parts: Mapping[int, WeightUnits]) -> Iterator[tuple[str, Tensor]]:
    for layer, part in parts.items():
        yield from ((f"{layer}/{x}", getattr(part, x)) for x in ("left", "values", "right"))


def detector_effector_units(
    model: Model,
    layers: int | Iterable[int] | None = None,
    *,
    side: str = "write",
    how: str = "svd",
    seed: int = 0,
    tower: str | None = None,
) -> MLPUnits:
    """Cut the MLPs of a model into units, exactly. Paper 05 (NaNA, Xue & Andrzejak 2026).

    Args:
        model: an opened model: plain, gated, or with a norm after its parts.
        layers: which; None for every layer that has an MLP of its own.
        side: a row of `SIDES`.
        how: a row of `SPLITS`: "svd", or "neurons", "rotated", "rotated-within" to compare with.
        seed: of the random ones; each layer draws its own.
        tower: of a model with several.

    Returns:
        `MLPUnits`, in fp32 (fp64 for a model in fp64).

    Raises:
        BadInput: no such side or split. NotServed: an MLP that is no such matrix (experts), with the reason.
        UnknownSite: a layer that does not exist.
    """
    opened_model(model)
    one_of("side", side, SIDES)
    one_of("how", how, SPLITS)
    depth = len(model.architecture.tower(tower).blocks)
    if layers is None:
        found = [i for i in range(depth) if model.serves(Site("mlp_act", i, tower=tower))]
        found = found or [0]  # its refusal says why there is none
    else:
        found = list(integers([layers] if isinstance(layers, int) else layers, "layers"))
    parts = {}
    for layer in found:
        model.tap(Site("mlp_act", layer, tower=tower))
        weight = model.weight(f"{SIDES[side]}.{layer}", tower).value
        weight = weight if side == "write" else Fold.of(model, layer, "mlp", tower).matrix(weight.float())
        parts[layer] = SPLITS[how](weight, seed * depth + layer)
    return MLPUnits(model, parts, side, how, tower)
