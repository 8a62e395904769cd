"""Activation patching: the effect of replacing each part, exactly, for every cell of a grid.

`activation_patching` runs the wavefront (`mechanome.engine.wavefront`) where it serves and the plain loop where
it does not, and says which. Both give the same numbers; a test holds them to 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite, NotServed, ShapeMismatch, UnknownSite
from mechanome.core.progress import track
from mechanome.core.tables import Table
from mechanome.engine import memory
from mechanome.engine.asked import one_of, opened_model
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch, Inputs
from mechanome.engine.metrics import Metric, check_metric
from mechanome.engine.plain import whole
from mechanome.engine.points import POINTS
from mechanome.engine.resume import Prefix
from mechanome.engine.site import Site
from mechanome.engine.sweep_runner import Runner

if TYPE_CHECKING:
    from mechanome.engine.model import Model

Ablation = Literal["zero"]
_WITH_TOKENS = (None, "decoder", "text")
"""Towers whose positions are those of the tokens that are kept for tables."""
_OVER_SOURCE = ("cross_k", "cross_v")


@dataclass(frozen=True)
class Sweep:
    """Effects of patching, exact.

    Attributes:
        values: the metric after patching, `[example, layer, pos]` or `[example, layer, head]`, in the metric's own
            precision and at least float32; NaN where a row has no such position.
        axes: names of the axes of `values`.
        layers: the layers along axis 1.
        into, source: the metric of the run that was patched, and of the run patches came from, `[example]`.
        point: what was patched. tower: in a model with several.
        method: "wavefront" or "naive", with the reason for the latter in `notes`.
        tokens, positions: of the run that was patched, and which of its positions took part, per example.
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
    positions: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    tower: str | None = None

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

    def table(self, k: int | None = 12) -> Table:
        """The largest effects by size, their mean where there are several examples.

        Args:
            k: how many; None for all.
        """
        means = self.effects.nanmean(0)
        size = means.abs().flatten().nan_to_num(-1)
        order = [int(i) for i in size.argsort(descending=True, stable=True)[:k] if size[i] >= 0]
        rows = [(*self._place(*divmod(i, means.shape[1])), float(means.flatten()[i])) for i in order]
        n = len(self.values)
        title = f"effects of patching {self.point}" + (f", mean of {n} examples" if n > 1 else "")
        places = ("site", "position", "token") if self.axes[-1] == "pos" else ("site",)
        return Table((*places, "effect"), rows, title)

    def _place(self, row: int, column: int) -> tuple[Any, ...]:
        """The cells that name one entry; positions and tokens only where all examples have the same."""
        site = Site(self.point, self.layers[row], tower=self.tower)
        if self.axes[-1] == "head":
            head: dict[str, Any] = {POINTS[self.point].heads or "head": column}
            return (str(replace(site, **head)),)
        if self.axes[-1] == "layer":
            return (str(site),)
        there = [(n, own[column]) for n, own in enumerate(self.positions) if column < len(own)]
        known = bool(self.tokens) and self.tower in _WITH_TOKENS and self.point not in _OVER_SOURCE
        words = {self.tokens[n][p] for n, p in there} if known else set()
        spots = {p for _, p in there}
        return str(site), spots.pop() if len(spots) == 1 else None, repr(words.pop()) if len(words) == 1 else None

    def __repr__(self) -> str:
        shape = ", ".join(f"{n} {axis}" for n, axis in zip(self.values.shape, self.axes))
        first = self.table(1).records()
        place = "; ".join(f"{name} {cell}" for name, cell in first[0].items() if cell is not None) if first else "none"
        return f"Sweep({self.point}, {shape}; largest: {place}; {self.method})"

    def _repr_html_(self) -> str:
        return self.table().html()


def activation_patching(
    model: Model,
    clean: Inputs,
    corrupted: Inputs | Ablation | Callable[[Site], Tensor],
    point: str,
    metric: Metric,
    *,
    over: Literal["pos", "head", "layer"] | None = None,
    layers: int | Iterable[int] | None = None,
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
        layers: which layers, or one; None for all.
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
        ShapeMismatch: an example whose two inputs differ in length, a replacement that does not fit its site.
        BadInput: a name that does not exist, layers out of range, a metric that is not one real number per row.
        NotFinite: a metric that is NaN or infinite.
        NotServed: a model without logits, a point that some of the layers lack.
        BudgetTooSmall: not even one variant fits.
    """
    opened_model(model)
    axis = _names(point, over, into, method)
    clean_batch = model.encode(clean)
    ablation = corrupted if corrupted == "zero" or callable(corrupted) else None
    other = clean_batch if ablation is not None else model.encode(corrupted)
    _check(clean_batch, other)
    check_metric(metric, clean_batch.rows)
    base, donor = (other, clean_batch) if into == "corrupted" and ablation is None else (clean_batch, other)
    sites = _sites(model, point, layers, tower)
    wanted = [site.layer for site in sites if site.layer is not None]
    runner = Runner(model, point, axis, wanted, sites, pos, metric, ablation, method, tower, prefix, budget, base.rows)
    rows = [
        runner.example(base.take([i]), donor.take([i]), i) for i in track(range(base.rows), "patching", quiet=quiet)
    ]
    width = max(v.shape[-1] for v, _, _ in rows)
    values = torch.full((len(rows), len(wanted), width), float("nan"), dtype=rows[0][0].dtype)
    for i, (v, _, _) in enumerate(rows):
        values[i, :, : v.shape[-1]] = v
    source = None if ablation is not None else torch.stack([s for _, _, s in rows if s is not None])
    return Sweep(
        values,
        ("example", "layer", axis),
        tuple(wanted),
        torch.stack([b for _, b, _ in rows]),
        source,
        point,
        " and ".join(sorted(runner.taken)),
        tuple(dict.fromkeys(runner.notes)),
        base.tokens,
        tuple(runner.positions),
        tower,
    )


_NO_POINT = "it cannot be patched per layer"


def _names(point: str, over: str | None, into: str, method: str) -> str:
    """Check the names of a request, and return the second axis."""
    one_of("point", point, [p.name for p in POINTS.values() if p.per_layer and p.writable], _NO_POINT)
    one_of("into", into, ("corrupted", "clean"), "there is no such run")
    one_of("method", method, ("auto", "wavefront", "naive"))
    if over is None:
        return "head" if POINTS[point].heads else "pos"
    one_of("over", over, ("pos", "head", "layer"), "there is no such axis")
    if over == "head" and not POINTS[point].heads:
        raise BadInput(f"over='head' at {point}", "this point has no heads", "use over='pos', or point 'z'")
    return over


def _sites(model: Model, point: str, layers: int | Iterable[int] | None, tower: str | None) -> list[Site]:
    """The sites of a sweep, all of which the model can edit."""
    every = range(len(model.architecture.tower(tower).blocks))
    given = every if layers is None else layers if whole(layers) is None else [layers]
    wanted: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not wanted or not all(whole(layer) is not None and layer in every for layer in wanted):
        raise BadInput(
            f"layers={layers!r}",
            f"layers are whole numbers from 0 to {len(every) - 1}",
            "give one, a list of them, or None for all",
        )
    sites = [Site(point, int(layer), tower=tower) for layer in wanted]
    if lacking := {site: why for site in sites if (why := _lacks(model, site))}:
        first = next(iter(lacking))
        others = [layer for layer in every if not _lacks(model, Site(point, layer, tower=tower))]
        fix = f"the layers that have it: layers={others}" if others else "use another point; model.sites lists them"
        raise NotServed(f"a sweep of {point}", f"layer {first.layer}: {lacking[first]}", fix)
    return sites


def _lacks(model: Model, site: Site) -> str | None:
    try:
        model.tap(site)
    except (NotServed, UnknownSite) as error:
        return error.why
    return model.why_not_edit(site)


def _check(clean: Batch, other: Batch) -> None:
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
