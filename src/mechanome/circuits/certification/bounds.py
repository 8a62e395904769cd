"""Bounds: what counted votes prove of the share of all masks that vote alike, for one component or for all at once.

With `k` of `n` independent masks agreeing, the true share is above the one-sided Clopper-Pearson bound with confidence
`1 - alpha`. Many components are judged at once, so the statement about all of them needs a correction:

| correction | a false certificate anywhere has chance | bounds |
|---|---|---|
| `bonferroni` | at most alpha | each at alpha over the number of components; all hold together |
| `holm` | at most alpha, and it certifies at least as many | all hold together (Strassburger and Bretz 2008) |
| `none` | at most alpha for each component, not for all | each at alpha |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import betainc, betaincinv
from torch import Tensor

from mechanome.core import BadInput, holm
from mechanome.engine.asked import count, one_of
from mechanome.engine.plain import whole

CORRECTIONS = ("bonferroni", "holm", "none")


@dataclass(frozen=True, eq=False)
class Bounds:
    """What votes prove.

    Args:
        lower: the share of masks that vote with the majority is above this, `[component]` float64.
        certified: whether it is above tau, `[component]` of booleans.
    """

    lower: Tensor
    certified: Tensor


def clopper_pearson(agree: Tensor, n: int, alpha: float) -> Tensor:
    """The lower end of a share of which `agree` of `n` draws were seen, one-sided at level `1 - alpha`.

    Args:
        agree: counts, any shape. n: draws. alpha: chance that the share is below.

    Returns:
        float64 of the same shape; 0 where nothing agreed.
    """
    k = agree.numpy().astype(np.float64)
    found = betaincinv(np.maximum(k, 1), n - k + 1, alpha)
    return torch.from_numpy(np.where(k > 0, found, 0.0))


def judged(agree: Tensor, n: int, tau: float, alpha: float, correction: str) -> Bounds:
    """Lower bounds of all components, and which are above tau.

    Args:
        agree: of `n` fresh masks, those that vote as guessed beforehand, `[component]`.
        n: masks. tau: the share that is needed. alpha: chance of a false certificate. correction: see the table.
    """
    m = len(agree)
    if correction != "holm":
        lower = clopper_pearson(agree, n, alpha / m if correction == "bonferroni" else alpha)
        return Bounds(lower, lower > tau)
    k = agree.numpy().astype(np.float64)
    # The chance of so many agreeing masks where the share is tau.
    p = np.where(k > 0, betainc(np.maximum(k, 1), n - k + 1, tau), 1.0)
    certified = torch.from_numpy(holm(p) < alpha)
    left = int((~certified).sum())
    lower = clopper_pearson(agree, n, alpha / (left or m))
    # Having spent alpha on the certified ones, Holm's procedure says of them that they are above tau and no more,
    # unless there are no others.
    at_tau = lower.new_tensor(tau)
    lower = torch.where(certified, at_tau if left else lower.clamp(min=tau), torch.minimum(lower, at_tau))
    return Bounds(lower, certified)


def radius(share: Tensor, p_del: float) -> Tensor:
    """How many edits of the examples leave the majority as it is, where at least `share` of the masks vote with it.

    The largest r with `p_del ** r >= 1.5 - share`: an edit is the insertion, deletion or substitution of an example.

    Args:
        share: lower bounds, `[component]`. p_del: the chance that a mask deletes an example.

    Returns:
        `[component]` int64, 0 where nothing is proved.
    """
    # A whole number of edits must not be lost to the rounding of logarithms.
    edits = ((1.5 - share.clamp(0.5, 1)).log() / math.log(p_del) + 1e-12).floor()
    return edits.clamp(min=0).long()


def fewest_masks(tau: float, alpha: float, components: int, correction: str) -> int:
    """How many masks must agree, all of them, for a bound above tau: with fewer nothing can be certified."""
    level = alpha if correction == "none" else alpha / components
    return math.floor(math.log(level) / math.log(tau)) + 1


@dataclass(frozen=True)
class Level:
    """How much is asked for.

    Args:
        p_del: chance that a mask deletes an example.
        tau: share of masks that must vote alike.
        n: masks that are counted. n0: other masks, which guess what the majority is.
        alpha: chance of a false certificate.
        correction: for many components, a name of `CORRECTIONS`.
        seed: of the masks.

    Raises:
        BadInput: values that cannot be, and a deletion chance too small for any radius.
    """

    p_del: float = 0.6
    tau: float = 0.95
    n: int = 1000
    n0: int = 100
    alpha: float = 0.001
    correction: str = "bonferroni"
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("correction", self.correction, CORRECTIONS)
        count("n", self.n), count("n0", self.n0)
        if whole(self.seed) is None or not 0 <= self.seed < 2**62:
            raise BadInput(f"seed={self.seed!r}", "it is not a whole number of at least 0", "use seed=0")
        for name, least in (("p_del", 0.0), ("tau", 0.5), ("alpha", 0.0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not least <= value < 1 or value == 0:
                raise BadInput(f"{name}={value!r}", f"it is no share from {least:g} to 1", "leave it at its default")
        if self.promised < 1:
            raise BadInput(
                f"p_del={self.p_del:g} with tau={self.tau:g}",
                "a vote of that share proves a radius of 0, which is no certificate",
                f"use p_del of at least {1.5 - self.tau:.3g}, or tau of at least {max(1.5 - self.p_del, 0.5):.3g}",
            )

    @property
    def promised(self) -> int:
        """The radius that every certified component has, in edits."""
        return int(radius(torch.tensor([self.tau], dtype=torch.float64), self.p_del))

    def enough_for(self, components: int) -> None:
        """Check that as many masks can certify anything among so many components.

        Raises:
            BadInput: too few, with the number that is needed.
        """
        least = fewest_masks(self.tau, self.alpha, components, self.correction)
        if self.n < least:
            raise BadInput(
                f"n={self.n} masks",
                f"even if all of them agree, this shows no share above {self.tau:g} for {components} components at "
                f"alpha={self.alpha:g} ({self.correction})",
                f"use n of at least {least}",
            )
