"""How far apart the values of each latent lie between classes: Wasserstein-1 distances of sparse codes.

Zeros count: a latent that fires for one class only differs where the others are 0. All latents are done at once:
values sorted within each latent, each with its row's share of its side, give both distribution functions as one running
sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.core import ShapeMismatch, TooFewRows
from mechanome.dictionaries.metrics.measure import Measure, measure

if TYPE_CHECKING:
    from mechanome.dictionaries.codes import SparseCodes


def class_distances(codes: SparseCodes, y: Tensor) -> Tensor:
    """W1 of each latent between the rows of each class and all others, over its standard deviation.

    Args:
        codes: `[row, latent]`. y: class of each row, `[row]` of integers.

    Returns:
        `[class, latent]` float64, classes in ascending order; 0 for a latent that is constant.

    Raises:
        ShapeMismatch: not one class per row. TooFewRows: fewer than two classes.
    """
    y = y.to("cpu", torch.int64)
    if y.shape != (codes.rows,):
        raise ShapeMismatch("classes", f"shape {list(y.shape)} for {codes.rows} rows", "give one class a row")
    classes = y.unique()
    if len(classes) < 2:
        raise TooFewRows("distances between classes", "there is one class only", "give rows of at least two")
    codes = codes.to("cpu", torch.float64)
    latents, values, rows = codes.indices, codes.values, codes.pattern.rows
    spread = _deviation(latents, values, codes.rows, codes.width)
    found = [_one_against_rest(latents, values, rows, y == c, codes.width) for c in classes]
    scaled = torch.stack(found) / spread.clamp_min(torch.finfo(torch.float64).tiny)
    return torch.where(spread > 0, scaled, torch.zeros_like(scaled))


def wasserstein(codes: SparseCodes, y: Tensor) -> Measure:
    """Mean distance over classes and latents (`wasserstein.v1`); arguments and errors as `class_distances`."""
    return measure("wasserstein.v1", float(class_distances(codes, y).mean()), codes.rows)


def _deviation(latents: Tensor, values: Tensor, rows: int, width: int) -> Tensor:
    mean = torch.zeros(width, dtype=torch.float64).index_add_(0, latents, values) / rows
    active = torch.bincount(latents, minlength=width)
    centred = torch.zeros(width, dtype=torch.float64).index_add_(0, latents, (values - mean[latents]).square())
    return ((centred + (rows - active) * mean.square()) / rows).sqrt()


def _one_against_rest(latents: Tensor, values: Tensor, rows: Tensor, own: Tensor, width: int) -> Tensor:
    shares = torch.where(own, 1.0 / own.sum().double(), -1.0 / (~own).sum().double())[rows]
    # Zeros of a latent are one more value, with whatever share its active rows leave; then every latent's shares sum
    # to 0 and one running sum serves all of them.
    zero_shares = -torch.zeros(width, dtype=torch.float64).index_add_(0, latents, shares)
    every = torch.cat([latents, torch.arange(width)])
    at = torch.cat([values, torch.zeros(width, dtype=torch.float64)])
    weight = torch.cat([shares, zero_shares])
    order = at.argsort(stable=True)
    order = order[every[order].argsort(stable=True)]
    every, at, weight = every[order], at[order], weight[order]
    gap = weight.cumsum(0)[:-1].abs() * at.diff()
    same = every[1:] == every[:-1]
    return torch.zeros(width, dtype=torch.float64).index_add_(0, every[:-1][same], gap[same])
