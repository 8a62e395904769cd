"""Parts of a block, run alone: with other inputs, without what they do not need, until they have written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mechanome.circuits.masked_streams import Base
from mechanome.core import NotServed
from mechanome.engine import Site
from mechanome.engine.plan import Call, Plan, activate
from mechanome.engine.run import place
from mechanome.engine.taps import hidden, replaced


class _Enough(Exception):
    """What a part of a block was run for has been seen."""


def put(base: Base, plan: Plan, site: Site, value: Tensor) -> None:
    """Let a plan replace the value of a site."""
    place(plan, base.wiring.model.tap(site), lambda x, call: value.to(x), site.tower)


def leave_out(base: Base, plan: Plan, layer: int, roles: Sequence[str], rows: int, width: int | None = None) -> None:
    """Let parts of a block return nothing: what reads them reads something else.

    Args:
        base: knows what they return. plan: of the run. layer, roles: the parts; those that a block lacks do not matter.
        rows, width: of what they return; None as it was.
    """
    block = base.wiring.model.architecture.tower(base.wiring.graph.tower).blocks[layer]
    for role in roles:
        if role in block.roles:
            output = base.seen[role, layer].output
            value = hidden(output)
            assert value is not None
            nothing = value.new_zeros(rows, value.shape[1] if width is None else width, *value.shape[2:])
            plan.blocks[block.roles[role].module] = _Returns(output, nothing)


def run_until(
    base: Base, plan: Plan, site: Site, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Tensor:
    """Run a block until a site has its value, and return it.

    Args:
        base: of the model. plan: what happens in the block. site: where to stop.
        original: the block's own forward. args, kwargs: what it is called with.

    Raises:
        NotServed: the block never comes there.
    """
    seen: list[Tensor] = []

    def stop(x: Tensor, call: Call) -> None:
        seen.append(x)
        raise _Enough

    place(plan, base.wiring.model.tap(site), stop, site.tower)
    try:
        with activate(plan):
            original(*args, **kwargs)
    except _Enough:
        return seen[0]
    raise NotServed(f"running {base.wiring.model.name} in parts", f"it never came to {site}", "use method='dense'")


@dataclass(frozen=True)
class _Returns:
    """In place of a module's forward: return a value."""

    output: Any
    value: Tensor

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return like(self.output, self.value)


def like(output: Any, value: Tensor) -> Any:
    """A tensor in the structure that a module returned."""
    return replaced(output if isinstance(output, Tensor) else copy.copy(output), value)


def first_rows(given: Any, alone: Any, rows: int) -> Any:
    """A block's arguments for some circuits, which are those of the first ones: all run on the same examples.

    Args:
        given: for all circuits. alone: for one: a tensor that grew with the number of circuits has a row for each.
        rows: how many to take.
    """
    if isinstance(given, Tensor):
        grew = given.dim() and isinstance(alone, Tensor) and given.shape[0] > alone.shape[0]
        return given[:rows] if grew else given
    if isinstance(given, dict):
        return {k: first_rows(v, alone[k], rows) for k, v in given.items()}
    if type(given) in (tuple, list):
        return type(given)(first_rows(a, b, rows) for a, b in zip(given, alone))
    return given
