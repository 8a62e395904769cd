"""Memory budgets: estimate before a large call, cut it into pieces that fit, refuse what cannot fit.

Sizes are bytes; a budget is a number of bytes, a text such as `"2GB"`, or None for a quarter of what is free now.
"""

from __future__ import annotations

import re
from math import ceil, isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

import psutil

from mechanome.core.errors import BadInput, BudgetTooSmall

if TYPE_CHECKING:
    import torch

Budget = int | str | None

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def available(device: torch.device | str = "cpu") -> int:
    """Free bytes on a device."""
    import torch

    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return int(psutil.virtual_memory().available)


def parse_budget(budget: Budget, device: torch.device | str = "cpu") -> int:
    """A budget in bytes.

    Raises:
        BadInput: not a size, or not a positive finite one.
    """
    if budget is None:
        return available(device) // 4
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", budget.upper())
        if not match or match[2] not in _UNITS:
            raise BadInput(
                f"budget '{budget}'", "it is not a size", "write for example 2GB, 512MiB or a number of bytes"
            )
        size: Any = float(match[1]) * _UNITS[match[2]]
    else:
        size = budget
    if not isinstance(size, Real) or isinstance(size, bool) or not isfinite(size) or size < 1:
        raise BadInput(f"budget {budget!r}", "it is not a positive number of bytes", "write for example '2GB'")
    return int(float(size)) if not isinstance(size, int) else size


def pieces(total: int, bytes_each: int, budget: int, what: str, kept: int = 0) -> int:
    """How many of `total` equal units fit into a budget at once.

    Args:
        total: of units. bytes_each: what one takes. budget: bytes for all. what: the name of a unit.
        kept: bytes that are held beside them, whatever the number.

    Raises:
        BudgetTooSmall: not even one does; the message names a budget that suffices.
    """
    if kept + bytes_each > budget:
        beside = f", beside {show(kept)} that are kept" if kept else ""
        raise BudgetTooSmall(
            f"a budget of {show(budget)}",
            f"one {what} needs about {show(bytes_each)}{beside}",
            f"give at least {show(kept + bytes_each, up=True)}",
        )
    return max(1, min(total, (budget - kept) // max(bytes_each, 1)))


def show(size: float, up: bool = False) -> str:
    """A size for people: `1.5 GB`; `up` rounds up, so that what is written is enough."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{ceil(10 * size / scale) / 10 if up else size / scale:.1f} {unit}"
    return f"{ceil(size) if up else int(size)} B"


def nbytes(*shape: int, dtype: Any = None) -> int:
    """Bytes of a tensor of this shape, of float32 by default."""
    import torch

    size = torch.empty((), dtype=torch.float32 if dtype is None else dtype).element_size()
    for n in shape:
        size *= n
    return size
