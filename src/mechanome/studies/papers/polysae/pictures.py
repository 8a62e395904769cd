"""Pictures of paper 42's study: dictionaries of planted interactions, what they say of pairs, the language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.report import HeatMap, Section, Sheet, number
from mechanome.studies.papers.polysae import ARMS

if TYPE_CHECKING:
    from mechanome.studies.papers.polysae.measuring import Stored

_BINS = 5


def sections(stored: Stored) -> tuple[Section, ...]:
    """The study's sections, in order."""
    return _reconstruction(stored), _pairs(stored), _language(stored)


def _reconstruction(stored: Stored) -> Section:
    rows = [
        [what, *(number(value) for value in stored.of(arm, "fvu")), *(str(int(n)) for n in stored.of(arm, "found"))]
        for arm, what in ARMS.items()
    ]
    columns = (
        ("dictionary", ""),
        *((f"FVU, seed {seed}", "share of the variance of held-out rows that is missed") for seed in stored.seeds),
        *((f"found, seed {seed}", "features with an atom of cosine 0.9 or more") for seed in stored.seeds),
    )
    lead = ("How well each dictionary rebuilds rows with planted interactions, and how many features it finds.",)
    return Section("Planted interactions: reconstruction", lead, Sheet(columns, rows))


def _pairs(stored: Stored) -> Section:
    """Means over fifths of the pairs, as shares of the largest."""
    poly, sae = ([each[arm]["pairs"] for each in stored.planted] for arm in ("poly", "sae"))
    rows = {
        "interaction strength, by true interaction": _fifths(poly, "truth", "strength"),
        "|covariance|, by true interaction": _fifths(sae, "truth", "covariance"),
        "interaction strength, by occurring together": _fifths(poly, "together", "strength"),
        "|covariance|, by occurring together": _fifths(sae, "together", "covariance"),
    }
    columns = ["lowest fifth", "second", "third", "fourth", "highest fifth"]
    picture = HeatMap(
        list(rows), columns, [row.tolist() for row in rows.values()], "pairs", "what", breaks=(2,),
        ends=("", "the fifth that has most"),
    )  # fmt: skip
    lead = (
        "Pairs of features in fifths, by how strongly they were made to interact and by how often they are active "
        "together: what PolySAE and the autoencoder's covariance say of them, means, as shares of the largest.",
    )
    return Section("Planted interactions: pairs", lead, picture)


def _fifths(of: list[Mapping[str, Tensor]], by: str, what: str) -> Tensor:
    means = torch.zeros(_BINS, dtype=torch.float64)
    for pairs in of:
        order = pairs[by].argsort(stable=True)
        means += torch.stack([part.mean() for part in pairs[what][order].tensor_split(_BINS)]) / len(of)
    return means / means.max().clamp_min(1e-300)


def _language(stored: Stored) -> Section:
    rows = []
    for seed, each in zip(stored.seeds, stored.language):
        for arm in ("sae", "poly"):
            found = each[arm]
            f1 = found["f1"].mean(0)
            rows.append(
                [
                    f"{ARMS[arm]}, seed {seed}",
                    *(number(float(value)) for value in f1),
                    number(float(found["distance"].mean())),
                    number(found["dead"]),
                    number(found["share"]) if "share" in found else "",
                ]
            )
    columns = (
        ("dictionary", ""),
        ("F1, 1 latent", "probes of six subjects"),
        ("F1, 5 latents", "probes of six subjects"),
        ("W1", "mean over latents, in standard deviations"),
        ("dead", "share of latents without a row"),
        ("interactions", "their length over that of the linear part"),
    )
    lead = ("Two dictionaries of a language model's activations, fitted to the same rows.",)
    return Section("A language model", lead, Sheet(columns, rows))
