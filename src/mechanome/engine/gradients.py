"""Gradients at named sites, of parameters, and the per-example factors that rebuild a parameter gradient.

Weights are frozen while gradients at sites are taken: nothing is computed for them, and their flags are
restored afterwards, also on an exception. Backward rules change only the backward pass; the forward pass keeps
every value (`mechanome.engine.rules`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mechanome.core.errors import BadInput, NotServed, UnknownName, nearest
from mechanome.engine.asked import names
from mechanome.engine.edits import Edit
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch
from mechanome.engine.metrics import Metric, check_metric, measure
from mechanome.engine.operations import Capture, OpenGradient, take_positions
from mechanome.engine.plan import Call
from mechanome.engine.rules import apply_rules
from mechanome.engine.run import Run, build_plan, execute
from mechanome.engine.site import Site, is_glob
from mechanome.engine.taps import logits_of

if TYPE_CHECKING:
    from mechanome.engine.model import Model
    from mechanome.engine.resume import Prefix


@dataclass(frozen=True)
class Factors:
    """What a linear module saw and received: its parameter gradient per example is `activation^T delta`.

    Attributes:
        activation: the module's input, `[batch, pos, in]`.
        delta: the gradient of the metric at its output, `[batch, pos, out]`.
    """

    activation: Tensor
    delta: Tensor

    def gradient(self, per_example: bool = False) -> Tensor:
        """The weight's gradient in the orientation `[in, out]`, or one per example `[batch, in, out]`."""
        if per_example:
            return torch.einsum("bpi,bpo->bio", self.activation, self.delta)
        return torch.einsum("bpi,bpo->io", self.activation, self.delta)


@dataclass(frozen=True)
class Gradients:
    """What `Model.grad` returns.

    Attributes:
        metric: per example, `[batch]`.
        run: captured values at the same sites, so that value and gradient can be multiplied.
        sites: site -> gradient, in the axes of `run[site]`.
        params: parameter name -> gradient; with `per_example` each has a leading batch axis.
        factors: module path -> `Factors`, for `wrt="factors"`.
    """

    metric: Tensor
    run: Run = field(repr=False)
    sites: dict[Site, Tensor] = field(default_factory=dict, repr=False)
    params: dict[str, Tensor] = field(default_factory=dict, repr=False)
    factors: dict[str, Factors] = field(default_factory=dict, repr=False)

    def __getitem__(self, site: str | Site) -> Tensor:
        """The gradient at a site; a head of a whole site can be asked for."""
        return Run(self.run.model, self.run.batch, None, self.sites)[site]


_locks: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()


@contextmanager
def frozen(module: nn.Module, train: Iterable[nn.Parameter] = ()) -> Iterator[None]:
    """Freeze all parameters but some; every flag is restored, also on an exception.

    Flags are the one thing that threads share, so gradients of one model wait for each other.
    """
    keep = {id(p) for p in train}
    with _locks.setdefault(module, RLock()):
        flags = [(p, p.requires_grad) for p in module.parameters()]
        try:
            for p, _ in flags:
                p.requires_grad_(id(p) in keep)
            yield
        finally:
            for p, flag in flags:
                p.requires_grad_(flag)


def grad(
    model: Model,
    metric: Metric,
    batch: Batch,
    sites: str | Site | Iterable[str | Site] = (),
    *,
    params: str | Sequence[str] = (),
    modules: str | Sequence[str] = (),
    per_example: bool = False,
    edits: Sequence[Edit] = (),
    rules: str | Sequence[str] = (),
    at: Positions = "last",
    prefix: Prefix | None = None,
) -> Gradients:
    """Gradients of a metric; see `Model.grad`.

    A glob leaves out what has no gradient; a site that is named and has none is refused.
    """
    check_metric(metric, batch.rows)
    params, modules, rules = names("params", params), names("modules", modules), names("rules", rules)
    asked = _sites(model, sites)
    extra: dict[str, Any] = {}
    if prefix is not None:
        if params or modules:
            raise NotServed("parameter gradients after a prefix", "the prefix holds no graph", "leave prefix out")
        prefix.refuse_earlier(batch, edits, at)
        batch = prefix.rest(model, batch)
        extra = {"cache": prefix.cut(len(prefix)), "use_cache": True}
    if any(s.point == "head_out" for s in asked):
        raise NotServed("a gradient at head_out", "it is derived from z and W_O", "take it at z")
    if getattr(model.core, "is_activation_checkpointing", False) and model.module.training:
        raise NotServed(
            "gradients under activation checkpointing",
            "blocks would run again outside the plan, without edits",
            "call model.module.gradient_checkpointing_disable() or .eval()",
        )
    chosen = _parameters(model, params)
    if not (asked or chosen or modules):
        raise BadInput("a gradient", "nothing to differentiate by", "give sites=, params= or modules=")
    if not _reaches_logits(model, [*asked, *(e.site for e in edits)], modules):
        extra |= _fewest_logits(model, batch, at)
    linear = _modules(model, modules)
    opened = [(site, _Open(site)) for site in dict.fromkeys(s.whole for s in asked)]
    deltas = {name: _Open(Site(f"path:{name}")) for name in modules}
    inputs = {name: Capture(Site(f"path:{name}:in")) for name in modules}
    captures = [Capture(site) for site, _ in opened] + list(inputs.values())
    targets = [*opened, *((g.site, g) for g in deltas.values())]
    with frozen(model.module, chosen.values()), torch.enable_grad():
        plan = build_plan(model, captures, edits, targets)
        apply_rules(model, plan, rules)
        values = _metric(model, metric, batch, execute(model, batch, plan, **extra), at)
        leaves = [_opened(site, g) for site, g in targets]
        wanted = [*leaves, *chosen.values()]
        if not values.requires_grad:
            raise BadInput("the metric", "no gradient leads back from it", "compute it from the logits, undetached")
        # One backward per example is exact for every parameter, also where factors do not exist.
        each = values.unbind() if per_example and chosen else (values.sum(),)
        found = [_backward(v, wanted, keep=i + 1 < len(each)) for i, v in enumerate(each)]
    columns = list(zip(*found))
    filled = [sum(g[1:], g[0]) for g in columns[: len(leaves)]]
    trained = [torch.stack(g) if per_example else g[0] for g in columns[len(leaves) :]]
    by_site = {site: filled[i] for i, (site, _) in enumerate(opened)}
    by_module = dict(zip(deltas, filled[len(opened) : len(opened) + len(deltas)]))
    factors = {n: Factors(_three(inputs[n].values[0]), _three(by_module[n])) for n in linear}
    run = Run(model, batch, None, {c.site: c.values[0] for c in captures[: len(opened)] if c.values})
    return Gradients(values.detach(), run, by_site, dict(zip(chosen, trained)), factors)


def _backward(value: Tensor, wanted: Sequence[Tensor], keep: bool) -> list[Tensor]:
    found = torch.autograd.grad(value, wanted, allow_unused=True, retain_graph=keep)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found)]


def _three(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.unsqueeze(1)


def _reaches_logits(model: Model, sites: Sequence[Site], modules: Sequence[str]) -> bool:
    """Whether logits, or what makes them, are read or edited, so that all positions count."""
    unembed = model.architecture.unembed
    paths = {s.module_path for s in sites if s.is_path} | set(modules)
    return any(s.point == "logits" for s in sites) or (unembed is not None and unembed.path in paths)


def _fewest_logits(model: Model, batch: Batch, at: Positions) -> dict[str, int]:
    """The argument that limits logits to those from the metric's first position on, where the model has it."""
    frame = batch.frame
    if not frame.width:
        return {}
    columns = [frame.column(p, row) for row in range(frame.rows) for p in frame.positions(at, row)]
    seen = [c for c in columns if c is not None]
    return model.keep_logits(frame.width - min(seen)) if seen else {}


def _metric(model: Model, metric: Metric, batch: Batch, output: Any, at: Any) -> Tensor:
    logits = logits_of(output)
    if logits is None:
        raise NotServed("the metric", "this model has no logits", "open a model with a head")
    if logits.dim() == 3:
        frame = batch.frame.resolved(*logits.shape[:2])
        kept = logits.shape[1]
        logits = take_positions(logits, frame.at(frame.offset + frame.width - kept, kept), at)
        if logits.dim() == 3 and logits.shape[1] == 1:
            logits = logits[:, 0]
        if logits.dim() == 3:
            raise BadInput(f"at={at!r}", f"it selects {logits.shape[1]} positions", "choose one, such as at='last'")
    return measure(metric, logits, torch.arange(batch.rows, device=logits.device))


def _sites(model: Model, sites: str | Site | Iterable[str | Site]) -> list[Site]:
    """The sites of a request, without those of a glob that have no gradient."""
    found: dict[Site, None] = {}
    for pattern in [sites] if isinstance(sites, (str, Site)) else sites:
        matches = model.expand([pattern])
        kept = [s for s in matches if model.why_not_edit(s) is None] if is_glob(pattern) else matches
        if not kept:
            raise NotServed(f"gradients at '{pattern}'", "no site that it matches has one", "name others")
        found |= dict.fromkeys(kept)
    return list(found)


class _Open(OpenGradient):
    """Opens a gradient at a site, where its tensor can have one."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        if not x.is_floating_point():
            raise NotServed(f"a gradient at {self.site}", f"its tensor is {x.dtype}", "use its output, or a stream")
        return super().__call__(x, call)


def _opened(site: Site, gradient: OpenGradient) -> Tensor:
    if len(gradient.opened) != 1:
        times = "never ran" if not gradient.opened else f"ran {len(gradient.opened)} times"
        raise NotServed(f"a gradient at {site}", f"its module {times} in the forward pass", "use another site")
    return gradient.opened[0]


def _parameters(model: Model, names: Sequence[str]) -> dict[str, nn.Parameter]:
    table = dict(model.module.named_parameters())
    for name in names:
        if name not in table:
            raise UnknownName(f"parameter '{name}'", "the model has none of this name", nearest(name, table))
    return {name: table[name] for name in names}


def _modules(model: Model, names: Sequence[str]) -> Sequence[str]:
    table = dict(model.module.named_modules())
    for name in names:
        if name not in table:
            raise UnknownName(f"module '{name}'", "the model has none of this name", nearest(name, table))
        weight = getattr(table[name], "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            raise NotServed(
                f"factors of '{name}'",
                f"{type(table[name]).__name__} is not linear",
                "name a projection, or use params=",
            )
    return names
