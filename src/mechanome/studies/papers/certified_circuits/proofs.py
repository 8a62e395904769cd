"""The theorem of paper 26, checked without sampling; and how often sampling certifies what is not so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.circuits.certification import Discoverer, Function, Scored, certify, neighborhood, share_of_masks
from mechanome.circuits.effects import Effects
from mechanome.circuits.selecting import Select

P_DEL, TAU = 0.6, 0.95
_MEMBERS, _POOL = 8, 12
_COMPONENTS, _SIZE = 30, 8
_ALPHA, _MASKS = 0.05, 400


def random_scores(seed: int) -> Tensor:
    """Scores whose means differ between components, of dataset and pool, `[example, component]`."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(_COMPONENTS, generator=generator)
    return means + torch.randn(_MEMBERS + _POOL, _COMPONENTS, generator=generator)


def listed(discovery: Discoverer) -> dict[str, int]:
    """Certified and other components of the first examples, and the majorities that one edit turns around.

    Returns:
        certified, other: pairs of a component and a dataset that were compared; flips, other_flips: of them.
    """
    near = neighborhood(discovery, range(_MEMBERS), range(_MEMBERS, discovery.examples), P_DEL)
    sure = near.certified(TAU)
    return {
        "certified": int(sure.sum()) * near.datasets,
        "other": int((~sure).sum()) * near.datasets,
        "flips": int(near.flips[sure].sum()),
        "other_flips": int(near.flips[~sure].sum()),
    }


def of_random_scores(seed: int, datasets: int) -> dict[str, int]:
    """`listed` of random scores, summed over datasets."""
    found = [listed(Scored(Effects.of(random_scores(1000 * seed + i)), Select(_SIZE))) for i in range(datasets)]
    return {name: sum(each[name] for each in found) for name in found[0]}


def wrong_certificates(seed: int, repeats: int) -> int:
    """Certificates with a component whose exact share of masks is not above tau; ten share a dataset."""
    wrong = 0
    for i in range(repeats):
        if i % 10 == 0:
            effects = Effects.of(random_scores(1000 * seed + i)[:_MEMBERS])
            share = share_of_masks(Scored(effects, Select(_SIZE)), range(_MEMBERS), P_DEL)
        correction = ("bonferroni", "holm")[i % 2]
        found = certify(
            Select(_SIZE), effects, n=_MASKS, alpha=_ALPHA, correction=correction, seed=repeats * seed + i, quiet=True
        )
        true = (found.certified_in & (share > TAU)) | (found.certified_out & (1 - share > TAU))
        wrong += bool((~found.abstained & ~true).any())
    return wrong


def of_foreign_methods(seed: int) -> dict[str, int]:
    """`listed` of scikit-learn's feature selection and of a rule written by hand, summed."""
    found = [listed(Function.of(method, labelled(_MEMBERS + _POOL, seed))) for method in (by_scikit_learn, by_hand)]
    return {name: sum(each[name] for each in found) for name in found[0]}


def by_scikit_learn(rows: Sequence[tuple[Any, int]]) -> np.ndarray:
    """The best 2 features by the F test; none where one class alone is left."""
    from sklearn.feature_selection import SelectKBest, f_classif

    x, y = np.stack([row for row, _ in rows]), np.array([label for _, label in rows])
    if len(rows) < 3 or len(set(y.tolist())) < 2:
        return np.zeros(x.shape[1], dtype=bool)
    order = np.lexsort(x.T)  # a sum in one fixed order: rounding must not decide
    return np.asarray(SelectKBest(f_classif, k=2).fit(x[order], y[order]).get_support())


def by_hand(rows: Sequence[tuple[Any, int]]) -> list[bool]:
    """Features that are positive in most examples."""
    return [sum(float(x[i]) > 0 for x, _ in rows) * 2 > len(rows) for i in range(len(rows[0][0]))]


def labelled(n: int, seed: int) -> list[tuple[Any, int]]:
    """Examples of two classes in turn: of ten features the first tells the class, the next two tell it less.

    Two others are always positive, and one never is.
    """
    generator = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = generator.normal(size=(n, 10))
    x[:, :3] += np.outer(y, [12, 3, 3])
    x[:, 3:6] += [6, 6, -6]
    return [(row, int(label)) for row, label in zip(x, y)]
