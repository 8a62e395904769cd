"""Activation patching: the effect of replacing each part, exactly, for every cell of a grid.

`activation_patching` runs the wavefront (`mechanome.engine.wavefront`) where it serves and the plain loop where
it does not, and says which. Both give the same numbers; a test holds them to 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from mechanome.core.errors import BadInput, NotFinite, NotServed, ShapeMismatch, nearest
from mechanome.core.progress import track
from mechanome.engine import memory
from mechanome.engine.edits import Edit, Where
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch, Inputs
from mechanome.engine.metrics import Metric
from mechanome.engine.plan import Plan
from mechanome.engine.points import POINTS
from mechanome.engine.resume import Prefix, Recorded, can_prefix, record
from mechanome.engine.run import execute, run
from mechanome.engine.site import Site
from mechanome.engine.taps import hidden
from mechanome.engine.wavefront import Cell, groups, sweep_rows

if TYPE_CHECKING:
    from mechanome.engine.model import Model

Ablation = Literal["zero"]
# Rows times positions below which a piece is too small for its matrix products to be efficient.
_SPLIT_TOKENS = 128


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
    runner = _Runner(model, point, over, wanted, sites, pos, metric, ablation, method, tower, prefix, budget)
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
        runner.method,
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
    for i, (a, b) in enumerate(zip(clean.frame.lengths, other.frame.lengths)):
        if a != b:
            raise ShapeMismatch(
                f"example {i}: {a} clean and {b} corrupted tokens",
                "patching by position needs equal lengths",
                "choose a counterfactual of the same token length",
            )


@dataclass
class _Runner:
    """Sweeps one example after another."""

    model: Model
    point: str
    over: str
    layers: Sequence[int]
    sites: Sequence[Site]
    pos: Positions
    metric: Metric
    ablation: Any
    method: str
    tower: str | None
    prefix: Prefix | None
    budget: memory.Budget
    notes: list[str] = field(default_factory=list)

    def example(self, base: Batch, donor: Batch, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values `[layer, pos|head]`, and the metric of both runs, for one example."""
        base, donor = _unpadded(base), _unpadded(donor)
        if self.method in ("auto", "wavefront"):
            why = _no_wavefront(self.model, self.tower)
            if why is None:
                try:
                    result = self._wavefront(base, donor, index)
                    self.method = "wavefront"
                    return result
                except (RuntimeError, TypeError, ValueError, IndexError) as error:
                    why = f"the model does not run with appended rows ({type(error).__name__})"
            if self.method == "wavefront":
                raise NotServed(f"a wavefront sweep of {self.model.name}", why, "use method='auto' or 'naive'")
            self.notes.append(f"plain loop, because {why}")
            self.method = "naive"
        return self._naive(base, donor, index)

    # Both ways share the grid, the donor and the metric.

    def _measure(self, logits: Tensor, index: int) -> Tensor:
        rows = torch.full((logits.shape[0],), index, dtype=torch.long, device=logits.device)
        return self.metric(logits, rows).detach().float().cpu()

    def _donor(self, donor: Batch) -> tuple[Callable[[Site], Tensor], Tensor | None]:
        if self.ablation is None:
            kept = run(self.model, donor, self.sites, logits="last", prefix=self.prefix)
            assert kept.logits is not None
            return lambda site: kept.captured[site], kept.logits
        kept = run(self.model, donor, self.sites[:1], logits=False, prefix=self.prefix)
        shapes = kept.captured[self.sites[0]].shape
        return lambda site: _ablated(self.ablation, site, shapes), None

    def _grid(self, base: Batch, values: Callable[[Site], Tensor]) -> tuple[list[Cell], int]:
        seen = values(self.sites[0]).shape[1]
        frame = base.frame.resolved(1, seen)
        length = frame.lengths[0]
        positions = frame.positions(self.pos, 0)
        if self.prefix is not None:
            positions = [p for p in positions if p >= len(self.prefix)]
        if not positions:
            raise BadInput("positions", "none is selected", "choose at least one")
        heads = range(values(self.sites[0]).shape[2]) if self.over == "head" else range(1)
        axis = POINTS[self.point].heads or "head"
        cells: list[Cell] = []
        for i, site in enumerate(self.sites):
            if self.over == "pos":
                cells += [Cell(site, (p,), (i, j)) for j, p in enumerate(positions)]
            elif self.over == "layer":
                cells.append(Cell(site, tuple(positions), (i, 0)))
            else:
                heads_of = [Site(self.point, site.layer, tower=self.tower, **{axis: h}) for h in heads]
                cells += [Cell(s, tuple(positions), (i, h)) for h, s in enumerate(heads_of)]
        return cells, length

    def _wavefront(self, base: Batch, donor: Batch, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        values, donor_logits = self._donor(donor)
        cells, length = self._grid(base, values)
        resumes = can_prefix(self.model) is None and "input_ids" in base.arguments and length > 1
        offset = len(self.prefix) if self.prefix is not None else 0
        cache = self.prefix.thaw() if self.prefix is not None else DynamicCache()
        plan = Plan(root=self.model.module)
        finish = record(self.model, self.model.architecture.tower(self.tower), plan, offset)
        extra: dict[str, Any] = dict(self.model.keep_logits(1))
        extra |= {"cache": cache, "use_cache": True} if resumes else {}
        passed = self.prefix.rest(self.model, base) if self.prefix is not None else base
        with torch.no_grad():
            logits = _last(execute(self.model, passed, plan, **extra))
        recorded = finish()
        tokens = tuple(base.input_ids[0].tolist()) if resumes else ()
        whole = Prefix(tokens, cache, self.model.weights_version) if resumes else None
        base_value = self._measure(logits, index)[0]
        out = base_value.expand(len(self.layers), max(c.index[1] for c in cells) + 1).clone()
        alive = self._trimmed(cells, base, donor, length) if self.ablation is None else cells
        for start, members in groups(alive, length, whole is not None, _SPLIT_TOKENS):
            start = min(start, length - 1)
            for piece in self._pieces(members, recorded, length - start):
                found = sweep_rows(self.model, base, piece, values, recorded, start, whole)
                for cell, value in zip(piece, self._measure(found, index)):
                    out[cell.index] = value
        return out, base_value, None if donor_logits is None else self._measure(donor_logits, index)[0]

    def _trimmed(self, cells: list[Cell], base: Batch, donor: Batch, width: int) -> list[Cell]:
        """Without cells, and positions of cells, before the first token that differs: they change nothing."""
        ids, others = base.arguments.get("input_ids"), donor.arguments.get("input_ids")
        tower = self.model.architecture.tower(self.tower)
        if ids is None or others is None or not tower.causal or len(self.model.architecture.towers) > 1:
            return cells
        differs = (ids[0] != others[0]).nonzero()
        first = int(differs[0]) if len(differs) else width
        cut = [Cell(c.site, tuple(p for p in c.pos if p >= first), c.index) for c in cells]
        return [c for c in cut if c.pos]

    def _pieces(self, cells: list[Cell], recorded: Recorded, width: int) -> Iterable[list[Cell]]:
        # A row's largest tensors at once: the stream a few times, the MLP's neurons, scores where they are explicit.
        d_model = recorded.first.shape[-1]
        each = memory.nbytes(width, d_model) * 24 + memory.nbytes(64, width, width)
        budget = min(memory.parse_budget(self.budget, self.model.device), 2**31)
        size = memory.pieces(len(cells), each, budget, "row of the sweep")
        for i in range(0, len(cells), size):
            yield cells[i : i + size]

    def _naive(self, base: Batch, donor: Batch, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        values, donor_logits = self._donor(donor)
        cells, _ = self._grid(base, values)
        plain = run(self.model, base, logits="last", prefix=self.prefix).logits
        assert plain is not None
        base_value = self._measure(_flat(plain), index)[0]
        out = torch.zeros(len(self.layers), max(c.index[1] for c in cells) + 1)
        for cell in cells:
            shift = 0 if self.prefix is None or self.point in ("k", "v") else len(self.prefix)
            whole = values(cell.site.whole)[:, [p - shift for p in cell.pos]]
            for axis, i in cell.site.selector:
                whole = whole.select(2 if axis in ("head", "kv") else -1, i)
            edit = Edit(cell.site, "set", whole, Where(pos=list(cell.pos)))
            logits = run(self.model, base, (), [edit], logits="last", prefix=self.prefix).logits
            assert logits is not None
            out[cell.index] = self._measure(_flat(logits), index)[0]
        return out, base_value, None if donor_logits is None else self._measure(_flat(donor_logits), index)[0]


def _flat(logits: Tensor) -> Tensor:
    return logits[:, -1] if logits.dim() == 3 else logits


def _last(output: Any) -> Tensor:
    logits = hidden(output)
    if logits is None:
        raise NotServed("the metric", "this model has no logits", "open a model with a head")
    return _flat(logits)


def _ablated(ablation: Any, site: Site, shape: torch.Size) -> Tensor:
    if ablation == "zero":
        return torch.zeros(shape)
    value = torch.as_tensor(ablation(site))
    return value.expand(shape) if value.dim() <= len(shape) - 2 else value.reshape(shape)


def _unpadded(batch: Batch) -> Batch:
    """One row without its padding, so that it runs without a mask."""
    frame = batch.frame
    if not frame.width or not frame.padded:
        arguments = {k: v for k, v in batch.arguments.items() if k != "attention_mask" or not frame.width}
        return Batch(arguments, frame, batch.frames, batch.tokens, batch.bos)
    lo, hi = frame.starts[0], frame.starts[0] + frame.lengths[0]
    arguments = {
        k: v[:, lo:hi] if isinstance(v, Tensor) and v.dim() >= 2 and v.shape[1] == frame.width else v
        for k, v in batch.arguments.items()
        if k not in ("attention_mask", "position_ids")
    }
    short = type(frame)((0,), (hi - lo,), hi - lo, spans=frame.spans)
    return Batch(arguments, short, batch.frames, batch.tokens, batch.bos)


def _no_wavefront(model: Model, tower: str | None) -> str | None:
    if len(model.architecture.towers) != 1:
        return "it has several towers"
    if model.architecture.towers[0].feature_map:
        return "its stream is a feature map"
    return None
