"""The door through which rows enter an accumulator: dense tensors, or sparse codes by their entries alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mechanome.core.errors import BadInput, NotFinite, ShapeMismatch
from mechanome.core.numeric import numbers


@runtime_checkable
class Sparse(Protocol):
    """Rows of sparse codes, by their entries.

    Attributes:
        indices: unit of each entry ``[entry]``, row by row; a unit occurs at most once in a row. values: ``[entry]``.
        offsets: where each row begins, and the end, ``[row + 1]``. width: how many units there are.
    """

    @property
    def indices(self) -> Any: ...

    @property
    def values(self) -> Any: ...

    @property
    def offsets(self) -> Any: ...

    @property
    def width(self) -> int: ...


@dataclass(frozen=True)
class Entries:
    """The entries of rows that are not zero.

    Attributes:
        row, unit: int64 ``[entry]``. value: float64 ``[entry]``, never zero. rows, width: the shape they lie in.
    """

    row: np.ndarray
    unit: np.ndarray
    value: np.ndarray
    rows: int
    width: int

    def where(self, keep: np.ndarray) -> Entries:
        """The entries of a boolean mask ``[entry]``."""
        return Entries(self.row[keep], self.unit[keep], self.value[keep], self.rows, self.width)

    def sums(self, weights: np.ndarray | None = None) -> np.ndarray:
        """How many entries each unit has, int64 ``[unit]``; or their sum of weights ``[entry]``, float64."""
        return np.bincount(self.unit, weights=weights, minlength=self.width)


def dense(x: Any, what: str = "x") -> np.ndarray:
    """Rows as float64 ``[row, unit]``; leading axes are rows, and a vector is one unit.

    Raises:
        NotFinite: NaN or infinity. BadInput: not numbers.
    """
    data = numbers(x, what)
    return data[:, None] if data.ndim == 1 else data.reshape(-1, data.shape[-1])


def entries(x: Any, what: str = "x") -> Entries:
    """The entries of dense rows (as :func:`dense`) or of sparse codes.

    Raises:
        NotFinite: NaN or infinity. BadInput: not numbers. ShapeMismatch: parts of codes that do not fit each other.
    """
    if not isinstance(x, Sparse):
        data = dense(x, what)
        row, unit = np.nonzero(data)
        return Entries(row, unit, data[row, unit], *data.shape)
    starts, unit = (numbers(part, what).astype(np.int64) for part in (x.offsets, x.indices))
    value = numbers(x.values, what)
    if len(starts) < 1 or starts[0] != 0 or starts[-1] != len(unit) or len(unit) != len(value):
        why = f"{len(unit)} indices, {len(value)} values, offsets that end at {starts[-1:].tolist()}"
        raise ShapeMismatch(what, why, "pass whole codes")
    if len(unit) and not 0 <= unit.min() <= unit.max() < x.width:
        raise ShapeMismatch(what, f"an index beyond its {x.width} units", "pass whole codes")
    row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return Entries(row, unit, value, len(starts) - 1, x.width).where(value != 0)


def rows_of(labels: Any, rows: int, what: str) -> np.ndarray:
    """One whole number a row, int64 ``[row]``.

    Raises:
        ShapeMismatch: not one a row. BadInput: not whole numbers.
    """
    data = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if data.shape != (rows,):
        raise ShapeMismatch(what, f"shape {data.shape} for {rows} rows", "give one a row")
    if data.dtype.kind not in "iub":
        raise BadInput(what, f"{data.dtype} are not whole numbers", "give integers")
    return data.astype(np.int64)


def finite(data: np.ndarray, what: str) -> np.ndarray:
    """A statistic that must be a number.

    Raises:
        NotFinite: the sums have passed what float64 holds.
    """
    if not np.all(np.isfinite(data)):
        raise NotFinite(what, "the values are too large for float64 sums", "scale the rows down")
    return data
