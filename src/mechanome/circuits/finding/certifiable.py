"""How many examples it takes to certify anything: refused before the work, not found out after it."""

from __future__ import annotations

import torch

from mechanome.circuits.certification import Level
from mechanome.circuits.certification.bounds import clopper_pearson
from mechanome.core import TooFewRows


def fewest_examples(components: int, level: Level | None = None) -> int:
    """Examples from which on a part that is found on all of them, however many are deleted, is likely certified.

    A sub-dataset without examples finds nothing, so with n of them no more than `1 - p_del ** n` of all masks agree.

    Args:
        components: that are certified together. level: how much is asked for; None for the paper's settings.
    """
    level = level or Level()
    alpha = level.alpha if level.correction == "none" else level.alpha / components
    n = 2
    while True:
        agree = torch.tensor([int(level.n * (1 - level.p_del**n))])
        if float(clopper_pearson(agree, level.n, alpha)) > level.tau:
            return n
        n += 1


def check_certifiable(examples: int, components: int, fix: str) -> None:
    """Refuse a certificate that could certify nothing.

    Raises:
        TooFewRows: too few examples.
    """
    needed = fewest_examples(components)
    if examples < needed:
        raise TooFewRows(
            f"a certificate from {examples} example{'s' if examples != 1 else ''}",
            f"of {components:,} parts not even one that is found on all of them can be certified with fewer than "
            f"{needed}, because masks that delete everything find nothing",
            fix,
        )
