"""How a sweep of one example is carried out: as a wavefront, or as the plain loop it must equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from mechanome.core.errors import BadInput, NotServed, ShapeMismatch
from mechanome.engine import memory
from mechanome.engine.edits import Edit, Where
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.inputs import Batch
from mechanome.engine.metrics import Metric, measure
from mechanome.engine.plan import Plan
from mechanome.engine.points import POINTS
from mechanome.engine.resume import Prefix, Recorded, can_prefix, record
from mechanome.engine.run import Run, execute, run
from mechanome.engine.site import Site
from mechanome.engine.taps import logits_of
from mechanome.engine.wavefront import Cell, Donor, groups, sweep_rows

if TYPE_CHECKING:
    from mechanome.engine.model import Model

# Rows times positions below which a piece is too small for its matrix products to be efficient.
_SPLIT_TOKENS = 128
# How far the checked cell may be from the same cell run alone: rounding of other matrix shapes, not a method's error.
_AGREE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


class _DoesNotRun(Exception):
    """The model fails on appended rows."""


@contextmanager
def _model_only() -> Iterator[None]:
    """Around forward passes alone, so that an error of the caller's metric or function stays what it is."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise _DoesNotRun(type(error).__name__) from error


@dataclass
class Runner:
    """Sweeps one example after another; both ways share the grid, the donor and the metric.

    Attributes:
        examples: how many there are in all.
        method: the way asked for: "auto", "wavefront" or "naive".
        taken: the ways taken so far.
        notes: why the plain loop was taken.
    """

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
    examples: int
    taken: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    positions: list[tuple[int, ...]] = field(default_factory=list)

    def example(self, base: Batch, donor: Batch, index: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values `[layer, pos|head]`, and the metric of both runs, for one example."""
        base, donor = _unpadded(base), _unpadded(donor)
        values, donor_logits = self._donor(donor, index)
        cells, length, positions = self._grid(base, values)
        self.positions.append(positions)
        source = None if donor_logits is None else self._measure(_flat(donor_logits), index)[0]
        if self.method != "naive":
            found, why = self._try_wavefront(base, donor, values, cells, length, index)
            if found is not None:
                self.taken.add("wavefront")
                return (*found, source)
            if self.method == "wavefront":
                raise NotServed(f"a wavefront sweep of {self.model.name}", why, "use method='auto' or 'naive'")
            self.notes.append(f"plain loop, because {why}")
        self.taken.add("naive")
        return (*self._naive(base, values, cells, index), source)

    def _try_wavefront(
        self, base: Batch, donor: Batch, values: Donor, cells: list[Cell], length: int, index: int
    ) -> tuple[tuple[Tensor, Tensor] | None, str]:
        """The wavefront's values and base metric, or why there are none.

        The first sweep of a point on a model is checked: its strongest cell is run alone, and must agree.
        """
        if why := _no_wavefront(self.model, base):
            return None, why
        try:
            out, base_value = self._wavefront(base, donor, values, cells, length, index)
        except _DoesNotRun as error:
            return None, f"the model does not run with appended rows ({error})"
        if self.point not in self.model.wavefront_checked:
            cell = max(cells, key=lambda c: float((out[c.index] - base_value).abs()))
            found, alone = out[cell.index], self._cell(base, values, cell, index)
            close = _AGREE[self.model.dtype]
            if not torch.allclose(found, alone, rtol=close, atol=close):
                return None, f"appended rows change its numbers ({float(found):.6g}, alone {float(alone):.6g})"
            if bool(found != base_value):
                self.model.wavefront_checked.add(self.point)
        return (out, base_value), ""

    def _frame(self, batch: Batch) -> Frame:
        """Where the real tokens of the swept tower are."""
        over_source = self.point in ("cross_k", "cross_v")
        return self.model.frames(batch)["encoder" if over_source else self.tower]

    def _measure(self, logits: Tensor, index: int) -> Tensor:
        rows = torch.full((logits.shape[0],), index, dtype=torch.long, device=logits.device)
        values = measure(self.metric, logits, rows).detach()
        return values.to(torch.promote_types(values.dtype, torch.float32)).cpu()

    def _donor(self, donor: Batch, index: int) -> tuple[Donor, Tensor | None]:
        if self.ablation is None:
            kept = run(self.model, donor, self.sites, logits="last", prefix=self.prefix)
            return lambda site: kept.captured[site], _scored(kept)
        kept = run(self.model, donor, self.sites, logits=False, prefix=self.prefix)
        # All of them now, so that a function that draws gives every cell and both ways the same.
        shapes = {site: kept.captured[site].shape for site in self.sites}
        replaced = {site: _ablated(self.ablation, site, shapes[site], index, self.examples) for site in self.sites}
        return lambda site: replaced[site], None

    def _grid(self, base: Batch, values: Donor) -> tuple[list[Cell], int, tuple[int, ...]]:
        """The cells of one example, its length, and which positions take part."""
        seen = values(self.sites[0]).shape[1]
        frame = self._frame(base).resolved(1, seen)
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
        return cells, length, tuple(positions)

    def _wavefront(
        self, base: Batch, donor: Batch, values: Donor, cells: list[Cell], length: int, index: int
    ) -> tuple[Tensor, Tensor]:
        resumes = can_prefix(self.model) is None and "input_ids" in base.arguments and length > 1
        offset = len(self.prefix) if self.prefix is not None else 0
        cache = self.prefix.thaw() if self.prefix is not None else DynamicCache()
        plan = Plan(root=self.model.module)
        finish = record(self.model, self.model.architecture.tower(self.tower), plan, offset)
        extra: dict[str, Any] = dict(self.model.keep_logits(1))
        extra |= {"cache": cache, "use_cache": True} if resumes else {}
        passed = self.prefix.rest(self.model, base) if self.prefix is not None else base
        with torch.no_grad(), _model_only():
            output = execute(self.model, passed, plan, **extra)
        logits = _last(output)
        recorded = finish()
        tokens = tuple(base.input_ids[0].tolist()) if resumes else ()
        whole = Prefix(tokens, cache, self.model.weights_state()) if resumes else None
        base_value = self._measure(logits, index)[0]
        out = base_value.expand(len(self.layers), max(c.index[1] for c in cells) + 1).clone()
        alive = self._trimmed(cells, base, donor, length) if self.ablation is None else cells
        for start, members in groups(alive, length, whole is not None, _SPLIT_TOKENS):
            start = min(start, length - 1)
            for piece in self._pieces(members, recorded, length - start):
                with _model_only():
                    found = sweep_rows(self.model, base, piece, values, recorded, start, whole)
                if len(found) != len(piece):
                    raise _DoesNotRun(f"{len(piece)} went in, {len(found)} came out")
                for cell, value in zip(piece, self._measure(found, index), strict=True):
                    out[cell.index] = value
        return out, base_value

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

    def _naive(self, base: Batch, values: Donor, cells: list[Cell], index: int) -> tuple[Tensor, Tensor]:
        plain = _scored(run(self.model, base, logits="last", prefix=self.prefix))
        # Twice, so that a metric that does not answer for each row is found out here as it is in a wavefront.
        base_value = self._measure(_flat(plain).repeat(2, 1), index)[0]
        out = base_value.new_zeros(len(self.layers), max(c.index[1] for c in cells) + 1)
        for cell in cells:
            out[cell.index] = self._cell(base, values, cell, index)
        return out, base_value

    def _cell(self, base: Batch, values: Donor, cell: Cell, index: int) -> Tensor:
        """The metric after patching one cell in a run of its own."""
        shift = 0 if self.prefix is None or self.point in ("k", "v") else len(self.prefix)
        shift -= self._frame(base).starts[0]
        value = values(cell.site.whole)[:, [p - shift for p in cell.pos]]
        for axis, i in cell.site.selector:
            value = value.select(2 if axis in ("head", "kv") else -1, i)
        edit = Edit(cell.site, "set", value, Where(pos=list(cell.pos)))
        logits = _scored(run(self.model, base, (), [edit], logits="last", prefix=self.prefix))
        return self._measure(_flat(logits), index)[0]


def _flat(logits: Tensor) -> Tensor:
    return logits[:, -1] if logits.dim() == 3 else logits


def _scored(found: Run) -> Tensor:
    if found.logits is None:
        raise NotServed("the metric", "this model has no logits", "open a model with a head")
    return found.logits


def _last(output: Any) -> Tensor:
    logits = logits_of(output)
    if logits is None:
        raise NotServed("the metric", "this model has no logits", "open a model with a head")
    return _flat(logits)


def _ablated(ablation: Any, site: Site, shape: torch.Size, index: int, examples: int) -> Tensor:
    if ablation == "zero":
        return torch.zeros(shape)
    given = ablation(site)
    if isinstance(given, (float, int)):
        given = torch.tensor(given, dtype=torch.float64)
    if not isinstance(given, Tensor) or given.is_complex():
        kind = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise BadInput(f"the replacement for {site}", f"it is {kind}, not a real tensor", "return a tensor")
    value = given
    if value.dim() == len(shape) and value.shape[0] in (1, examples):
        row = index if value.shape[0] == examples else 0
        value = value[row : row + 1, : shape[1]]
    fits = value.dim() in (len(shape), *range(len(shape) - 1))
    pairs = zip(reversed(value.shape), reversed(shape))
    if not fits or not all(have in (1, need) for have, need in pairs):
        raise ShapeMismatch(
            f"the replacement of shape {list(given.shape)} for {site}",
            f"the site of example {index} is {list(shape)}",
            f"give [feature...] {list(shape[2:])}, or [example, pos, feature...] {[examples, *shape[1:]]}",
        )
    return value.expand(shape)


_TEXT = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds")
_DECODER = ("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids", "decoder_inputs_embeds")


def _unpadded(batch: Batch) -> Batch:
    """One row, its main tokens without their padding and mask; an encoder's beside them stay as they are."""
    frame, given = batch.frame, batch.arguments
    own = _DECODER if "decoder_input_ids" in given else _TEXT
    if not frame.width or own[0] not in given:
        return batch
    lo, hi = frame.starts[0], frame.starts[0] + frame.lengths[0]
    arguments = {k: v[:, lo:hi] if k in own else v for k, v in given.items() if k not in own[1:3]}
    short = type(frame)((0,), (hi - lo,), hi - lo, spans=frame.spans)
    return Batch(arguments, short, batch.frames, batch.tokenizer, batch.bos)


def _no_wavefront(model: Model, base: Batch) -> str | None:
    if len(model.architecture.towers) != 1:
        return "it has several towers"
    if model.architecture.towers[0].feature_map:
        return "its stream is a feature map"
    if base.frame.width and base.frame.padded:
        return "its inputs keep their padding"
    return None
