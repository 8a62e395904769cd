"""One forward pass: build the plan, run the unmodified model under it, return what was captured.

`execute` is the one place that calls a model; runs, gradients and sweeps all go through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed, UnknownSite, nearest
from mechanome.engine.applying import ApplyEdit
from mechanome.engine.edits import Edit
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.habits import RUN, hint
from mechanome.engine.inputs import Batch
from mechanome.engine.operations import Capture, OpenGradient, Remember, Through, axis_of, frame_of, take_positions
from mechanome.engine.plan import Bound, Call, Operation, Plan, activate
from mechanome.engine.points import POINTS
from mechanome.engine.site import Site, parse
from mechanome.engine.taps import Tap, install, logits_of

if TYPE_CHECKING:
    from mechanome.engine.model import Model
    from mechanome.engine.resume import Prefix

_ORDER = {name: i for i, name in enumerate(POINTS)}
_EDIT, _GRADIENT, _CAPTURE, _REMEMBER = range(4)


@dataclass
class Run:
    """What one call produced.

    Attributes:
        batch: the inputs.
        logits: `batch pos vocab` (or `batch class`), None where they were not asked for or the model has none.
        captured: whole or partial sites, in the axes operations use (`batch pos feature...`). Sites that are one
            tensor in the model (`resid_post.0` and `resid_pre.1`) share it here: clone before changing one in place.
        pos: the positions that captures were restricted to, None for all.
        notes: remarks about how the call was carried out (chunks, budgets).
    """

    model: Model = field(repr=False)
    batch: Batch = field(repr=False)
    logits: Tensor | None = field(repr=False)
    captured: dict[Site, Tensor] = field(repr=False)
    pos: Positions = None
    notes: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """The captured sites."""
        return tuple(self.captured)

    def __getitem__(self, site: str | Site) -> Tensor:
        """The tensor of a site, axes as `axes(site)` says. A head of a captured whole site can be asked for.

        Raises:
            UnknownSite: a site that was not captured.
        """
        site = parse(site)
        if site.point == "head_out":
            return self._head_out(site)
        value = self._find(site)
        if "query" in self._point_axes(site) and self.axes(site).count("head") and not self._single:
            return value.transpose(1, 2)
        return value

    def __iter__(self) -> Iterator[Site]:
        return iter(self.captured)

    def __getattr__(self, name: str) -> Any:
        raise hint("a run", name, RUN)

    def __contains__(self, site: str | Site) -> bool:
        site = parse(site)
        target = replace(site, point="z") if site.point == "head_out" else site
        return target in self.captured or target.whole in self.captured

    def axes(self, site: str | Site) -> tuple[str, ...]:
        """Axis names of `run[site]`."""
        site = parse(site)
        every = self._point_axes(site)
        # A neuron is a coordinate of the last axis, whatever that is called.
        gone = {name if name in every else every[-1] for name, _ in site.selector}
        names = [a for a in every if a not in gone]
        if self._single:
            names = [a for a in names if a not in ("pos", "query")]
        return tuple(names)

    def source(self, site: Site) -> tuple[Tensor, Frame]:
        """A donor for edits: the whole tensor `batch pos feature...` and where its real tokens are.

        Raises:
            UnknownSite: not captured, or only a part of it. BadInput: captured at some positions only.
        """
        if self.pos is not None:
            raise BadInput(f"donor {site}", "this run kept only some positions", "capture it with pos=None")
        if site in self.captured and site.whole not in self.captured:
            raise UnknownSite(
                f"donor {site}", "the run captured only this part", f"capture the whole site {site.whole}"
            )
        if site.whole not in self.captured:
            raise UnknownSite(
                f"donor {site}", "the run did not capture it", nearest(str(site.whole), map(str, self.captured))
            )
        value = self.captured[site.whole]
        call = Call(self.batch.rows, self.model.frames(self.batch))
        return value, frame_of(site, value, call)

    @property
    def _single(self) -> bool:
        return isinstance(self.pos, int) or (isinstance(self.pos, str) and self.pos in ("first", "last"))

    def _point_axes(self, site: Site) -> tuple[str, ...]:
        if site.is_path:
            return self.model.path_axes(site, self._find(site).dim() + self._single)
        return POINTS[site.point].axes

    def _find(self, site: Site) -> Tensor:
        if site in self.captured:
            return self.captured[site]
        if site.whole not in self.captured:
            raise UnknownSite(
                f"site '{site}'", "this run did not capture it", nearest(str(site), [str(s) for s in self.captured])
            )
        value = self.captured[site.whole]
        for name, index in site.selector:
            value = value.select(axis_of(site, value, name, index, 1 if self._single else 2), index)
        return value

    def _head_out(self, site: Site) -> Tensor:
        z = self._find(replace(site, point="z"))
        if site.head is not None:
            return z @ self.model.weight(f"W_O.{site.layer}.h{site.head}", site.tower).value.to(z)
        return torch.einsum("...hd,hdm->...hm", z, self.model.weight(f"W_O.{site.layer}", site.tower).value.to(z))

    def __repr__(self) -> str:
        lines = [f"Run of {self.batch.rows} row(s)"]
        if self.logits is not None:
            lines.append(f"  logits  {list(self.logits.shape)}")
        shown = list(self.captured)[:12]
        lines += [f"  {s}  {' '.join(self.axes(s))}  {list(self[s].shape)}" for s in shown]
        if len(self.captured) > len(shown):
            lines.append(f"  ... and {len(self.captured) - len(shown)} more sites")
        return "\n".join([*lines, *(f"  note: {n}" for n in self.notes)])


def build_plan(
    model: Model,
    captures: Iterable[Capture] = (),
    edits: Iterable[Edit] = (),
    gradients: Iterable[tuple[Site, OpenGradient]] = (),
) -> Plan:
    """Compile a request: every operation goes to the tap of its site, in an order that does not depend on the request.

    At one site edits come first, then gradients, then captures, so a capture shows what the model goes on with.
    """
    todo: list[tuple[int, int, Site, Operation, str]] = []
    for edit in edits:
        _check_writable(model, edit.site, "an edit of")
        todo.append((_order(edit.site), _EDIT, edit.site, ApplyEdit(edit), f"an edit of {edit.site}"))
    for site, opened in gradients:
        _check_writable(model, site, "a gradient at")
        todo.append((_order(site), _GRADIENT, site, opened, f"a gradient at {site}"))
    todo += [(_order(capture.site), _CAPTURE, capture.site, capture, "") for capture in captures]
    plan = Plan(root=model.module)
    placed: list[tuple[tuple[int, int], Tap, Operation, Site, str]] = []
    for order, rank, site, operation, what in todo:
        tap = model.tap(site)
        if not (what and tap.through):
            placed.append(((order, rank), tap, operation, site, what))
            continue
        writer, stream = tap.through
        placed.append(((order, rank), writer, Through(stream.part.path, operation), site, what))
        placed.append(((_ORDER["resid_pre"], _REMEMBER), stream, Remember(stream.part.path), site, ""))
    for _, tap, operation, site, what in sorted(placed, key=lambda p: p[0]):
        place(plan, tap, operation, site.tower, what)
    return plan


def _check_writable(model: Model, site: Site, what: str) -> None:
    model.tap(site)
    if why := model.why_not_edit(site):
        raise NotServed(f"{what} {site}", why, "edit another site; model.why_not_edit(site) tells")


def _order(site: Site) -> int:
    return _ORDER.get(site.point, len(_ORDER))


def place(plan: Plan, tap: Tap, operation: Operation, tower: str | None = None, required: str = "") -> None:
    """Put one operation at a tap of a plan, installing the tap's hook if it is not there yet.

    Args:
        required: what the operation is for, if the call must fail when the tap is never reached.
    """
    install(tap.module, tap.side)
    bound = Bound(tap.view, operation, tower, required)
    if tap.side == "attention":
        plan.attention.setdefault(tap.module, {}).setdefault(tap.slot, []).append(bound)
    else:
        (plan.inputs if tap.side == "input" else plan.outputs).setdefault(tap.module, []).append(bound)


def execute(model: Model, batch: Batch, plan: Plan, **extra: Any) -> Any:
    """Call the model once under a plan and return its raw output.

    Args:
        extra: further keyword arguments of the forward, such as `logits_to_keep`.
    """
    arguments = {**model.arguments(batch), **extra}
    plan.begin.insert(0, _begin(model.frames(batch), batch.rows))
    with activate(plan):
        output = model.module(**arguments)
    for check in plan.end:
        check()
    return output


def _begin(frames: dict[str | None, Frame], rows: int) -> Any:
    def begin(call: Call, kwargs: dict[str, Any]) -> None:
        call.rows = rows
        call.frames = dict(frames)

    return begin


def run(
    model: Model,
    batch: Batch,
    capture: Sequence[Site] = (),
    edits: Sequence[Edit] = (),
    pos: Positions = None,
    *,
    logits: bool | str = True,
    keep_graph: bool = False,
    to: torch.device | torch.dtype | str | None = None,
    prefix: Prefix | None = None,
) -> Run:
    """Run a batch once; see `Model.run`."""
    extra: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    asked = batch
    if prefix is not None:
        prefix.refuse_earlier(batch, edits, pos)
        batch = prefix.rest(model, batch)
        extra = {"cache": prefix.cut(len(prefix)), "use_cache": True}
        notes = (f"positions from {len(prefix)} on; earlier ones come from a prefix",)
    captures = [
        Capture(site, pos, keep_graph, _mover(to), copy=site.whole in model.volatile) for site in _to_capture(capture)
    ]
    plan = build_plan(model, captures, edits)
    touches_logits = any(e.site.point == "logits" for e in edits) or any(c.site.point == "logits" for c in captures)
    if logits != True and not touches_logits and model.accepts("logits_to_keep"):  # noqa: E712
        extra["logits_to_keep"] = 1 if not batch.frame.ragged else 0
    with torch.set_grad_enabled(keep_graph and torch.is_grad_enabled()):
        output = execute(model, batch, plan, **extra)
    if fresh := {c.site.whole for c in captures if c.changed()}:
        # The model went on to change these tensors in place: note it, and read them again as copies.
        model.volatile |= fresh
        return run(model, asked, capture, edits, pos, logits=logits, keep_graph=keep_graph, to=to, prefix=prefix)
    values = {c.site: _single_value(c) for c in captures}
    found = logits_of(output) if logits is not False else None
    if logits == "last" and found is not None and found.dim() == 3:
        found = found[:, -1] if extra.get("logits_to_keep") == 1 else take_positions(found, batch.frame, "last")
    if batch.frame.width and batch.frame.ragged:
        notes = (*notes, "rows have different lengths: [:, -1] is padding in short ones; use pos='last', logits='last'")
    return Run(model, batch, found, values, pos, notes)


def joined(batch: Batch, pieces: Sequence[Run]) -> Run:
    """One run from runs of consecutive rows of a batch."""
    first = pieces[0]
    logits = None if first.logits is None else torch.cat([p.logits for p in pieces if p.logits is not None])
    captured = {site: torch.cat([p.captured[site] for p in pieces]) for site in first.captured}
    note = f"{batch.rows} rows were run in {len(pieces)} pieces to fit the memory budget"
    return Run(first.model, batch, logits, captured, first.pos, (*first.notes, note))


def _to_capture(sites: Iterable[Site]) -> Iterator[Site]:
    seen = set()
    for site in sites:
        target = replace(site, point="z") if site.point == "head_out" else site
        if target not in seen:
            seen.add(target)
            yield target


def _mover(to: torch.device | torch.dtype | str | None) -> Any:
    return None if to is None else lambda x: x.to(to)


def _single_value(capture: Capture) -> Tensor:
    """What a capture of one forward pass holds.

    Raises:
        NotServed: the site never fired, or a named point fired more than once.
    """
    if not capture.values:
        raise NotServed(
            f"site '{capture.site}'", "the forward pass never came there", "check the inputs, or use another site"
        )
    if len(capture.values) == 1:
        return capture.values[0]
    if capture.site.is_path:
        return torch.stack(capture.values, dim=1)
    raise NotServed(
        f"site '{capture.site}'",
        f"its module ran {len(capture.values)} times in one forward pass, so the name is ambiguous",
        "use a path: site, which stacks the calls",
    )
