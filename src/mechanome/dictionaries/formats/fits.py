"""Whether a dictionary fits activations: refused where the site or the normalization is evidently another.

A dictionary fed with the tensor of another place still gives numbers. Two of them tell: how well it reconstructs, and
how long its inputs are, against what its provenance says of the activations it was made for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, TooFewRows
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.metrics.reconstruction import fvu

WORSE_THAN_MEAN = 1.0
"""An FVU from here on is no reconstruction: the mean of the activations would do as well."""
LONGER, LESS = 2.0, 0.25
"""Refused: norms that differ by this factor, or an FVU this far above the expected one."""


@dataclass(frozen=True)
class Fit:
    """What was measured.

    Args:
        fvu: fraction of the variance that is not explained.
        expected_fvu: what the dictionary's provenance says; None where it says nothing.
        mean_norm: mean length of the activations.
        expected_mean_norm: as `expected_fvu`.
        rows: how many activations.
    """

    fvu: float
    expected_fvu: float | None
    mean_norm: float
    expected_mean_norm: float | None
    rows: int


def check(dictionary: Dictionary, activations: Tensor, target: Tensor | None = None) -> Fit:
    """Refuse activations that a dictionary was not made for.

    Args:
        dictionary: in `eval()` mode, its provenance perhaps with `mean_norm` and `fvu`.
        activations: `[..., d_in]`; some hundred rows are enough.
        target: what it should write `[..., d_out]`; None for dictionaries that write what they read.

    Raises:
        BadInput: the FVU is 1 or more, or 0.25 above the expected; mean norms differ by a factor of 2 or more; a
            transcoder and no target.
        TooFewRows: fewer than two rows. NotFinite, ShapeMismatch: as `Dictionary.encode`.
    """
    spec = dictionary.spec
    if target is None and (spec.sites_in != spec.sites_out or spec.d_in != spec.d_out):
        raise BadInput("check", "the dictionary writes elsewhere than it reads", "pass target=")
    rows = dictionary.rows_of(activations)
    wanted = rows if target is None else target.reshape(len(rows), spec.d_out).float()
    if len(rows) < 2:
        raise TooFewRows(f"{len(rows)} rows to check a dictionary", "variance needs two", "give some hundred")
    with torch.no_grad():
        unexplained = fvu(wanted, dictionary(rows))
    expected, length = (_number(spec.provenance.get(name)) for name in ("fvu", "mean_norm"))
    found = Fit(unexplained, expected, float(rows.norm(dim=1).mean()), length, len(rows))
    complaint = _complaint(found)
    if complaint:
        where = f", which is for {', '.join(spec.sites_in)}" if spec.sites_in else ""
        raise BadInput(
            f"this dictionary does not fit these activations{where}",
            complaint,
            "check the site, the model and the normalization of the activations",
        )
    return found


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _complaint(found: Fit) -> str:
    expected, length = found.expected_fvu, found.expected_mean_norm
    if length and not 1 / LONGER < found.mean_norm / length < LONGER:
        return f"their mean norm is {found.mean_norm:.3g}, it expects {length:.3g}"
    if expected is not None and found.fvu > expected + LESS:
        return f"FVU {found.fvu:.2f}, it expects {expected:.2f}"
    if found.fvu >= WORSE_THAN_MEAN:
        return f"FVU {found.fvu:.2f}"
    return ""
