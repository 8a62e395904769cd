"""Controls of a certified circuit: is it better because of what was certified, or only because it is smaller?

`same_size` is the plain method's circuit with as many components; `random_abstention` drops as many of the plain
circuit's components, but at random. A certificate is worth its name where it beats both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.circuits.certification.certificate import Certificate
from mechanome.circuits.selecting import RANKS, By
from mechanome.core import ShapeMismatch
from mechanome.engine.asked import count, one_of


def same_size(certificate: Certificate, scores: Tensor, by: By = "absolute", groups: Tensor | None = None) -> Tensor:
    """The strongest components by mean score, as many as are certified to be in.

    Args:
        certificate: whose size is met.
        scores: means over all examples, `[component]`.
        by: what components are ranked by, a name of `RANKS`.
        groups: a number for each component, such as its layer, `[component]`: sizes are met in each.

    Returns:
        `[component]` of booleans.

    Raises:
        ShapeMismatch: other components. BadInput: another rank.
    """
    one_of("by", by, RANKS)
    within = _groups(certificate, groups)
    if scores.shape != within.shape:
        raise ShapeMismatch(f"scores of shape {list(scores.shape)}", f"there are {len(within)} components", "one each")
    chosen = torch.zeros(len(within), dtype=torch.bool)
    rank = RANKS[by](scores.double())
    for group in within.unique():
        members = (within == group).nonzero()[:, 0]
        size = int(certificate.certified_in[members].sum())
        chosen[members[rank[members].argsort(descending=True, stable=True)[:size]]] = True
    return chosen


def random_abstention(certificate: Certificate, draws: int = 20, seed: int = 0, groups: Tensor | None = None) -> Tensor:
    """Random parts of the circuit found on all examples, as large as the certified one.

    Args:
        certificate: whose size is met; where it certifies more than the method finds on all examples, all of that.
        draws: how many. seed: of the draws.
        groups: a number for each component: sizes are met in each.

    Returns:
        `[draw, component]` of booleans.
    """
    within = _groups(certificate, groups)
    chosen = torch.zeros(count("draws", draws), len(within), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    for group in within.unique():
        here = within == group
        members = (here & certificate.found).nonzero()[:, 0]
        size = int((here & certificate.certified_in).sum())
        for row in chosen:
            row[members[torch.randperm(len(members), generator=generator)[:size]]] = True
    return chosen


def _groups(certificate: Certificate, groups: Tensor | None) -> Tensor:
    n = len(certificate.components)
    if groups is None:
        return torch.zeros(n, dtype=torch.long)
    if tuple(groups.shape) != (n,):
        raise ShapeMismatch(f"groups of shape {list(groups.shape)}", f"there are {n} components", "give one for each")
    return groups
