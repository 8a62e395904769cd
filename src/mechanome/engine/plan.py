"""A `Plan` says, for one call, what happens at each tap; taps look it up in a context variable.

Taps (hooks on modules, the attention function, block wrappers) are installed once and never changed. What they
do is decided by the plan that is active in the current thread, so two threads can steer one model differently
at the same time, an exception leaves nothing behind, and with no plan a tap costs one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torch import Tensor, nn

from mechanome.core.errors import NotServed
from mechanome.engine.frame import Frame
from mechanome.engine.views import View


@dataclass
class Call:
    """What an operation may know about the forward pass it runs in.

    Attributes:
        rows: batch rows flowing through the model now (a sweep may append rows on the way).
        frames: per tower, where each row's real tokens are (`None` is the tower of a one-tower model).
        step: number of forward passes of the model before this one: 0 in a plain run and in prefill.
        scratch: values that operations of one plan hand to each other.
    """

    rows: int = 0
    frames: dict[str | None, Frame] = field(default_factory=dict)
    step: int = -1
    scratch: dict[Any, Any] = field(default_factory=dict)


Operation = Callable[[Tensor, Call], Tensor | None]
"""Receives the tensor in the point's own axes and returns a new one, or None to leave it alone."""


@dataclass(frozen=True)
class Bound:
    """One operation, with the view that turns the raw tensor of its tap into the point's axes.

    Args:
        view: the layout. operation: what is done. tower: whose positions count.
        required: what it is for, if the call must fail when the tap is never reached.
    """

    view: View
    operation: Operation
    tower: str | None = None
    required: str = ""


@dataclass
class Plan:
    """Everything that happens in one call, by tap.

    Attributes:
        inputs, outputs: operations on a module's hidden-state input and output, in order.
        attention: operations inside the attention function of a module, by slot (q, k, v, scores, pattern).
        blocks: replacements for whole blocks (resuming): called with the original forward and its arguments.
        root: the whole model; `begin` is called with the keyword arguments of each of its forward passes.
        end: called after a single pass, to refuse what it did not do.
    """

    root: nn.Module | None = None

    inputs: dict[nn.Module, list[Bound]] = field(default_factory=dict)
    outputs: dict[nn.Module, list[Bound]] = field(default_factory=dict)
    attention: dict[nn.Module, dict[str, list[Bound]]] = field(default_factory=dict)
    blocks: dict[nn.Module, Callable[..., Any]] = field(default_factory=dict)
    begin: list[Callable[[Call, dict[str, Any]], None]] = field(default_factory=list)
    end: list[Callable[[], None]] = field(default_factory=list)
    call: Call = field(default_factory=Call)
    _reached: set[int] = field(default_factory=set, repr=False)

    def apply(self, bounds: list[Bound], raw: Tensor) -> Tensor:
        """Run operations on the raw tensor of a tap and return the raw tensor to use instead."""
        for bound in bounds:
            if bound.required:
                self._reached.add(id(bound))
            before = bound.view.read(raw, self.call)
            after = bound.operation(before, self.call)
            if after is not None and after is not before:
                raw = bound.view.write(raw, after, self.call)
        return raw

    def check(self) -> None:
        """Refuse a finished call in which something that was asked for could not happen.

        Raises:
            NotServed: an edit, a gradient or a rule whose tap was never reached.
        """
        for bounds in chain(
            self.inputs.values(), self.outputs.values(), *(s.values() for s in self.attention.values())
        ):
            for bound in bounds:
                if bound.required and id(bound) not in self._reached:
                    raise NotServed(
                        bound.required,
                        "the forward pass never came there",
                        "was the model changed after loading (its attention, a module)? Open it again with mn.load",
                    )


_active: ContextVar[Plan | None] = ContextVar("mechanome_plan", default=None)


def active() -> Plan | None:
    """The plan of the current context, or None."""
    return _active.get()


@contextmanager
def activate(plan: Plan | None) -> Iterator[None]:
    """Make a plan current inside a `with` block; always restored, also on an exception.

    Raises:
        NotServed: on leaving, if something the plan requires could not happen.
    """
    token = _active.set(plan)
    try:
        yield
    finally:
        _active.reset(token)
    if plan is not None:
        plan.check()
