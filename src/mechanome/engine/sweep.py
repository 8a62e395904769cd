"""Activation patching: the effect of replacing each part, exactly, for every cell of a grid.

`activation_patching` runs the wavefront (`mechanome.engine.wavefront`) where it serves and the plain loop where
it does not, and says which. Both give the same numbers; a test holds them to 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite, NotServed, ShapeMismatch, nearest
from mechanome.core.progress import track
from mechanome.engine import memory
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch, Inputs
from mechanome.engine.metrics import Metric
from mechanome.engine.points import POINTS
from mechanome.engine.resume import Prefix
from mechanome.engine.site import Site
from mechanome.engine.sweep_runner import Runner

if TYPE_CHECKING:
    from mechanome.engine.model import Model

Ablation = Literal["zero"]


@dataclass(frozen=True)
class Sweep:
    """Effects of patching, exact.

    Attributes:
        values: the metric after patching, `[example, layer, pos]` or `[example, layer, head]`; NaN where a row has no
            such position.
        axes: names of the axes of `values`.
        layers: the layers along axis 1.
        into, source: the metric of the run that was patched, and of the run patches came from, `[example]`.
        point: what was patched. method: "wavefront" or "naive", with the reason for the latter in `notes`.
    """

    values: Tensor = field(repr=False)
    axes: tuple[str, ...]
    layers: tuple[int, ...] = field(repr=False)
    into: Tensor = field(repr=False)
    source: Tensor | None = field(repr=False)
    point: str
    method: str
    notes: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    @property
    def effects(self) -> Tensor:
        """The metric's change against the run that was patched."""
        return self.values - self.into.reshape(-1, 1, 1)

    def normalized(self) -> Tensor:
        """0 where patching does nothing, 1 where it brings back the source run's metric.

        Raises:
            NotServed: no source run (an ablation). NotFinite: source and patched run hardly differ.
        """
        if self.source is None:
            raise NotServed("a normalized effect", "an ablation has no source run", "use .effects")
        gap = (self.source - self.into).reshape(-1, 1, 1)
        if bool((gap.abs() < 1e-6).any()):
            raise NotFinite("normalized effects", "the two runs have the same metric", "use .effects, or another pair")
        return self.effects / gap


def activation_patching(
    model: Model,
    clean: Inputs,
    corrupted: Inputs | Ablation | Callable[[Site], Tensor],
    point: str,
    metric: Metric,
    *,
    over: Literal["pos", "head", "layer"] | None = None,
    layers: Iterable[int] | None = None,
    pos: Positions = None,
    into: Literal["corrupted", "clean"] = "corrupted",
    tower: str | None = None,
    method: Literal["auto", "wavefront", "naive"] = "auto",
    prefix: Prefix | None = None,
    budget: memory.Budget = None,
    quiet: bool = False,
) -> Sweep:
    """Patch a point in every layer and position (or head), and measure the metric at the last token.

    Args:
        model: an opened model.
        clean, corrupted: inputs of equal token length per example. `corrupted` may be "zero", or a function from a
            whole site to a replacement `[feature...]` or `[example, pos, feature...]` (a mean, a resample): then
            the clean run is ablated.
        point: any per-layer point: `resid_pre`, `z`, `mlp_out`, `q`, `pattern` ...
        metric: `metric(logits [rows, vocab], rows) -> [rows]`, such as `LogitDiff(answer, foil)`.
        over: the second axis: "pos" (each position alone), "head" (each head, at all of `pos`), "layer" (all of
            `pos` at once); by default "head" for points with heads, else "pos".
        layers: which layers, None for all.
        pos: which positions take part, None for all.
        into: which run is patched: "corrupted" (clean values restore the answer) or "clean".
        tower: of a model with several.
        method: "auto" takes the wavefront where it serves.
        prefix: tokens encoded before that both inputs of every example start with; `pos` must lie after them.
        budget: memory for the largest piece, such as "2GB".
        quiet: no progress bar.

    Returns:
        a `Sweep`.

    Raises:
        ShapeMismatch: an example whose two inputs differ in length.
        BadInput, NotServed, BudgetTooSmall: see their messages.
    """
    over = over or ("head" if POINTS.get(point) and POINTS[point].heads else "pos")
    clean_batch = model.encode(clean)
    ablation = corrupted if corrupted == "zero" or callable(corrupted) else None
    other = clean_batch if ablation is not None else model.encode(corrupted)
    _check(model, point, over, clean_batch, other, into)
    base, donor = (other, clean_batch) if into == "corrupted" and ablation is None else (clean_batch, other)
    wanted = list(range(len(model.architecture.tower(tower).blocks))) if layers is None else list(layers)
    sites = [Site(point, layer, tower=tower) for layer in wanted]
    for site in sites:
        model.tap(site)
    runner = Runner(model, point, over, wanted, sites, pos, metric, ablation, method, tower, prefix, budget)
    rows = [
        runner.example(base.take([i]), donor.take([i]), i) for i in track(range(base.rows), "patching", quiet=quiet)
    ]
    width = max(v.shape[-1] for v, _, _ in rows)
    values = torch.full((len(rows), len(wanted), width), float("nan"))
    for i, (v, _, _) in enumerate(rows):
        values[i, :, : v.shape[-1]] = v
    source = None if ablation is not None else torch.stack([s for _, _, s in rows if s is not None])
    return Sweep(
        values,
        ("example", "layer", over),
        tuple(wanted),
        torch.stack([b for _, b, _ in rows]),
        source,
        point,
        " and ".join(sorted(runner.taken)),
        tuple(dict.fromkeys(runner.notes)),
        base.tokens,
    )


def _check(model: Model, point: str, over: str, clean: Batch, other: Batch, into: str) -> None:
    if point not in POINTS or not POINTS[point].per_layer or not POINTS[point].writable:
        valid = [p.name for p in POINTS.values() if p.per_layer and p.writable]
        raise BadInput(f"point '{point}'", "it cannot be patched per layer", nearest(point, valid))
    if over not in ("pos", "head", "layer"):
        raise BadInput(f"over '{over}'", "there is no such axis", "use 'pos', 'head' or 'layer'")
    if into not in ("corrupted", "clean"):
        raise BadInput(f"into '{into}'", "there is no such run", "use 'corrupted' or 'clean'")
    if over == "head" and not POINTS[point].heads:
        raise BadInput(f"over 'head' at {point}", "this point has no heads", "use over='pos', or point 'z'")
    if clean.rows != other.rows:
        raise ShapeMismatch(
            f"{clean.rows} clean and {other.rows} corrupted inputs", "they are compared in pairs", "give equally many"
        )
    sides = [(clean.frame, other.frame), *((f, other.frames[t]) for t, f in clean.frames.items() if t in other.frames)]
    for i in range(clean.rows):
        for one, two in sides:
            if one.lengths[i] != two.lengths[i]:
                raise ShapeMismatch(
                    f"example {i}: {one.lengths[i]} clean and {two.lengths[i]} corrupted tokens",
                    "patching by position needs equal lengths",
                    "choose a counterfactual of the same token length",
                )
    if any(one.starts != two.starts for one, two in sides[1:]):
        raise ShapeMismatch("the encoder's inputs", "they are padded on different sides", "pad both on one side")
