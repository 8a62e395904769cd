"""Reading under a policy: the rows that `Drop` keeps, and the norms it compares with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from mechanome.activations.activations import Activations
from mechanome.activations.drop import Drop
from mechanome.activations.reader import Reader

CALIBRATION = 1024
"""Tokens that median norms are taken over."""


def median_norms(reader: Reader) -> dict[str, float]:
    """Per site, the median norm over the first tokens of the data."""
    first = int(np.searchsorted(reader.data.offsets, CALIBRATION))
    rows = reader.read(np.arange(min(max(first, 1), len(reader.data))))
    return {site: float(x.float().norm(dim=1).median()) for site, x in rows.values.items()}


def kept_rows(reader: Reader, wanted: np.ndarray, drop: Drop, medians: Mapping[str, float]) -> tuple[Activations, int]:
    """The rows of some sequences that the policy keeps, and how many it left out."""
    rows = reader.read(wanted)
    keep = torch.from_numpy(drop.by_place(reader.data, *reader.data.places(wanted)))
    keep &= drop.by_norm(rows.values, medians)
    return rows.take(keep), int((~keep).sum())


def chunks(lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Consecutive sequences, cut where a multiple of `size` tokens is passed."""
    begins = (np.cumsum(lengths) - lengths) // size
    return np.split(np.arange(len(lengths)), np.flatnonzero(np.diff(begins)) + 1)
