"""Certificates checked without sampling: every mask of a small dataset, and every dataset near it.

With few examples all masks can be listed, so the share of masks that find a component is a number and not an estimate.
Doing this again for every dataset that one edit reaches tests the theorem itself: where the share is above tau, no
majority may turn around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanome.circuits.certification.discovery import Discoverer
from mechanome.core import BadInput

MOST = 16
"""Examples whose masks are listed; 65,536 of them."""


def share_of_masks(discovery: Discoverer, members: Sequence[int], p_del: float) -> Tensor:
    """The exact share of masks of a dataset on which each component is found.

    Args:
        discovery: the method, with all examples there are.
        members: the examples of the dataset.
        p_del: the chance that a mask deletes an example.

    Returns:
        `[component]` float64.

    Raises:
        BadInput: more than `MOST` members.
    """
    n = len(members)
    if n > MOST:
        raise BadInput(f"all masks of {n} examples", f"there are 2^{n}", f"use at most {MOST} examples")
    inside = (torch.arange(2**n)[:, None] >> torch.arange(n)) % 2 == 1
    kept = torch.zeros(2**n, discovery.examples, dtype=torch.bool)
    kept[:, torch.tensor(list(members), dtype=torch.long)] = inside
    sizes = inside.sum(1).double()
    chance = (1 - p_del) ** sizes * p_del ** (n - sizes)
    return chance @ discovery.sets(kept).double()


def one_edit_away(members: Sequence[int], pool: Sequence[int]) -> Iterator[list[int]]:
    """Every dataset at edit distance 1: one example fewer, one more out of a pool, or one replaced."""
    for i in range(len(members)):
        yield [*members[:i], *members[i + 1 :]]
    for new in pool:
        yield [*members, new]
    for i in range(len(members)):
        for new in pool:
            yield [*members[:i], new, *members[i + 1 :]]


@dataclass(frozen=True)
class Neighborhood:
    """What becomes of majorities one edit away.

    Args:
        share: of masks that find each component, `[component]`.
        flips: datasets one edit away whose majority is another, `[component]`.
        datasets: how many there are.
    """

    share: Tensor
    flips: Tensor
    datasets: int

    def certified(self, tau: float) -> Tensor:
        """Components whose share of masks, one way or the other, is above tau, `[component]` of booleans."""
        return torch.maximum(self.share, 1 - self.share) > tau


def neighborhood(discovery: Discoverer, members: Sequence[int], pool: Sequence[int], p_del: float) -> Neighborhood:
    """Compare the majority of every component with that of every dataset one edit away.

    Args:
        discovery: the method, with the examples of dataset and pool.
        members: the dataset. pool: examples that may come in. p_del: the chance of deletion.
    """
    share = share_of_masks(discovery, members, p_del)
    flips = torch.zeros(len(share), dtype=torch.long)
    datasets = 0
    for other in one_edit_away(members, pool):
        flips += (share_of_masks(discovery, other, p_del) > 0.5) != (share > 0.5)
        datasets += 1
    return Neighborhood(share, flips, datasets)
