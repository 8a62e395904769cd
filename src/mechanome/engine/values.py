"""What an edit writes: a number, a tensor, a pair of bounds, or a donor (other rows, another run).

`checked` makes a value plain and refuses what its operation cannot use, so that nothing wrong reaches a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotFinite
from mechanome.engine import plain
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.site import Site


@dataclass(frozen=True)
class FromRows:
    """A value taken from other rows of the same batch, at the same site, before this edit.

    Args:
        rows: one donor row per edited row, or a single row for all.
        pos: donor positions, as many per row as are edited; None means the same positions.
    """

    rows: Sequence[int]
    pos: Positions = None

    def __post_init__(self) -> None:
        if self.rows is None:
            raise BadInput("donor rows", "FromRows names none", "give one row, or one per edited row")
        _plain_donor(self)


class Donor(Protocol):
    """Where values of another run come from: a `Run`, or one site of a run read from a file."""

    def source(self, site: Site) -> tuple[Tensor, Frame]:
        """The whole tensor `[row, pos, feature...]` of a site, and where its real tokens are."""
        ...


@dataclass(frozen=True)
class FromRun:
    """A value taken from another run, which must have captured the same site at all positions.

    Args:
        run: the donor.
        rows: one donor row per edited row, or a single row for all; None pairs rows by index (or takes the only one).
        pos: donor positions; None means the same positions.
    """

    run: Donor
    rows: Sequence[int] | None = None
    pos: Positions = None

    def __post_init__(self) -> None:
        if isinstance(self.run, type) or not callable(getattr(self.run, "source", None)):
            raise BadInput(
                f"a donor of type {type(self.run).__name__}", "it is not a run", "give what model.run returned"
            )
        _plain_donor(self)


@dataclass(frozen=True)
class Resample:
    """A value taken from a random other row of the batch.

    Args:
        seed: of the random derangement.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        seed = plain.whole(self.seed)
        if seed is None or not 0 <= seed < 2**63:
            raise BadInput(f"seed {self.seed!r}", "it is not an integer of at least 0", "use seed=0")
        object.__setattr__(self, "seed", seed)


Value = float | Tensor | FromRows | FromRun | Resample | tuple[float | None, float | None] | None

_DONORS = (FromRows, FromRun, Resample)
_KINDS = "give a number, a tensor, a NumPy array, a run, FromRows, FromRun or Resample"
_INFINITE = ("scores", "cross_scores", "router", "logits")


def checked(value: Any, op: str, site: Site) -> Value:
    """A value as an operation takes it.

    Args:
        value: as the caller gave it. op: of the edit. site: for messages, and for whether infinity makes sense.

    Raises:
        BadInput: a kind of value that the operation cannot use. NotFinite: NaN, or infinity where nothing is masked.
    """
    what = f"value of '{op}' at {site}"
    if op == "custom":
        if value is not None:
            raise BadInput(what, "a custom edit takes a function only", "close over the value in the function")
        return None
    if value is None:
        raise BadInput(f"edit of {site}", f"'{op}' needs a value", _KINDS)
    if op == "clamp":
        return bounds(value, site)
    return value if isinstance(value, _DONORS) else _finite(amount(value, what), what, site)


def amount(value: Any, what: str) -> float | Tensor:
    """A number or a tensor of real numbers; NumPy's are converted.

    Raises:
        BadInput: anything else; `what` names it.
    """
    if isinstance(value, np.ndarray) and value.ndim:
        value = plain.array(value, what)
    if not isinstance(value, Tensor):
        return plain.number(value, what, _KINDS)
    if value.is_complex() or value.device.type == "meta":
        why = "its numbers are complex" if value.is_complex() else "it is on the meta device, so it has no numbers"
        raise BadInput(what, why, "give a tensor of real numbers")
    return value


def bounds(value: Any, site: Site) -> tuple[float | None, float | None]:
    """The bounds of a clamp.

    Raises:
        BadInput: not a pair of numbers or None in order. NotFinite: NaN.
    """
    what = f"clamp of {site}"
    if not (isinstance(value, (tuple, list)) and len(value) == 2):
        raise BadInput(what, "its value is a pair (lo, hi)", "use None for an open end")
    lo, hi = (None if v is None else plain.number(v, what, "give numbers, or None for an open end") for v in value)
    if any(v is not None and math.isnan(v) for v in (lo, hi)):
        raise NotFinite(what, f"({lo}, {hi}) holds NaN", "give numbers, or None for an open end")
    if lo is not None and hi is not None and lo > hi:
        raise BadInput(what, f"lo = {lo} is above hi = {hi}", "swap them")
    return lo, hi


def has_gaps(value: Value) -> bool:
    """Whether a tensor holds cells of NaN, which end the rows of ragged captures and must not be written."""
    return isinstance(value, Tensor) and value.is_floating_point() and bool(torch.isnan(value.detach()).any())


def _finite(value: float | Tensor, what: str, site: Site) -> float | Tensor:
    x = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value))
    if bool(torch.isfinite(x).all()):
        return value
    nan = torch.isnan(x)
    if x.dim() > 2:
        nan = nan.flatten(2)
        nan = nan.any(-1) & ~nan.all(-1)
    if bool(nan.any()):
        raise NotFinite(what, "it holds NaN", "check how it was computed")
    if bool(torch.isinf(x).any()) and not (site.is_path or site.point in _INFINITE):
        raise NotFinite(what, "it holds infinity", f"only {', '.join(_INFINITE)} can be infinite")
    return value


def _plain_donor(donor: FromRows | FromRun) -> None:
    object.__setattr__(donor, "rows", plain.chosen(donor.rows, "donor rows"))
    object.__setattr__(donor, "pos", plain.somewhere(donor.pos, "donor positions"))
