"""Taps: where a module is hooked, and the hooks themselves, which only look up the active plan.

A hook is installed once per module and side, when a plan first needs it, and stays. Which site has which tap is
decided in `mechanome.engine.tap_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mechanome.core.errors import NotServed
from mechanome.engine.architecture import Part
from mechanome.engine.plan import active
from mechanome.engine.views import View

Side = Literal["input", "output", "attention"]


@dataclass(frozen=True)
class Tap:
    """Where a point is read.

    Args:
        module: the module that is hooked.
        side: its input, its output, or inside its attention function.
        view: from the raw tensor to the point's axes.
        slot: within attention: q, k, v, scores or pattern.
        through: for a point that is read at one place and must be written at another (see `resid_mid`): the tap of
            the part that adds last, and the tap of the stream it adds to.
    """

    part: Part
    side: Side
    view: View
    slot: str = ""
    through: tuple[Tap, Tap] | None = None

    @property
    def module(self) -> nn.Module:
        """The hooked module."""
        return self.part.module


def hidden(value: Any) -> Tensor | None:
    """The main tensor of what a module takes or returns: itself, the first of a tuple, or a model output's logits."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "logits") and isinstance(value.logits, Tensor):
        return value.logits
    if hasattr(value, "last_hidden_state"):
        return value.last_hidden_state
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
        return value[0]
    return None


def logits_of(output: Any) -> Tensor | None:
    """The logits in what a whole model returned, None where there are none.

    A structured output says so by a field; a plain module's tensor, or the first of its tuple, counts as logits.
    """
    if hasattr(output, "logits") or not hasattr(output, "keys"):
        return hidden(output)
    return None


def replaced(value: Any, tensor: Tensor) -> Any:
    """The same structure with its main tensor replaced."""
    if isinstance(value, Tensor):
        return tensor
    if hasattr(value, "logits") or hasattr(value, "last_hidden_state"):
        value["logits" if getattr(value, "logits", None) is not None else "last_hidden_state"] = tensor
        return value
    return type(value)([tensor, *value[1:]])


_INSTALLED = "_mechanome_taps"
_installing = Lock()


def install(module: nn.Module, side: Literal["input", "output", "attention", "begin"]) -> None:
    """Put the hook for one side on a module, once. Attention needs none: its function is registered.

    `begin` is for the whole model: it tells plans that a forward pass begins.
    """
    if side == "attention" or side in module.__dict__.get(_INSTALLED, ()):
        return
    with _installing:
        sides: dict[str, RemovableHandle] = module.__dict__.setdefault(_INSTALLED, {})
        if side in sides:
            return
        if side == "output":
            sides[side] = module.register_forward_hook(_output_hook)
        else:
            hook = _input_hook if side == "input" else _begin_hook
            sides[side] = module.register_forward_pre_hook(hook, with_kwargs=True)


@contextmanager
def temporary(root: nn.Module) -> Iterator[None]:
    """Take off, at the end of a `with` block, the hooks that were put on in it: each costs microseconds a call, so a
    test that puts them everywhere leaves none behind. `begin` stays."""
    before = {module: set(module.__dict__.get(_INSTALLED, ())) for module in root.modules()}
    try:
        yield
    finally:
        with _installing:
            for module, kept in before.items():
                sides: dict[str, RemovableHandle] = module.__dict__.get(_INSTALLED, {})
                for side in sides.keys() - kept - {"begin"}:
                    sides.pop(side).remove()


def _output_hook(module: nn.Module, args: Any, output: Any) -> Any:
    plan = active()
    bounds = plan.outputs.get(module) if plan is not None else None
    if plan is None or not bounds:
        return None
    raw = hidden(output)
    if raw is None:
        raise NotServed(
            f"the output of {type(module).__name__}",
            "it is not a tensor or a tuple that starts with one",
            "tap a child",
        )
    new = plan.apply(bounds, raw)
    return None if new is raw else replaced(output, new)


def _input_hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    plan = active()
    bounds = plan.inputs.get(module) if plan is not None else None
    if plan is None or not bounds:
        return None
    name = (
        None if args else next((k for k, v in kwargs.items() if isinstance(v, Tensor) and k != "attention_mask"), None)
    )
    if not args and "hidden_states" in kwargs:
        name = "hidden_states"
    raw = args[0] if args else kwargs[name] if name else None
    if not isinstance(raw, Tensor):
        raise NotServed(f"the input of {type(module).__name__}", "its first argument is not a tensor", "tap its output")
    new = plan.apply(bounds, raw)
    if new is raw:
        return None
    return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, str(name): new})


def _begin_hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    plan = active()
    if plan is not None and plan.begin and plan.root is module:
        plan.call.step += 1
        for begin in plan.begin:
            begin(plan.call, kwargs)
