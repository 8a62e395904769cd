"""Pictures of paper 28's study: toys, the real model's heads layer by layer, the small model's training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mechanome.report import HeatMap, Section, Sheet, number
from mechanome.studies.papers.singular_features import Settings

if TYPE_CHECKING:
    from mechanome.studies.papers.singular_features.measuring import Stored


def sections(stored: Stored, size: Settings) -> tuple[Section, ...]:
    """All of them."""
    return (_toys(stored), _layers(stored, size), _training(stored))


def _toys(stored: Stored) -> Section:
    rows = []
    for name in stored.toys[0]:
        each = [one[name] for one in stored.toys]
        cells = [sum(float(one[what]) for one in each) / len(each) for what in ("mean", "chance", "second", "crowding")]
        spectrum = ", ".join(number(v) for v in each[0]["values"][:10].tolist())
        rows.append([name, *(number(v) for v in cells), spectrum])
    columns = (
        ("toy", ""),
        ("|cos|", "of features and matched singular vectors, mean over pairs, sides and seeds"),
        ("by chance", "with random orthonormal directions"),
        ("second value", "over the first"),
        ("crowding", "mean |cos| of attended features with all others"),
        ("singular values", "of the first seed, the largest ten"),
    )
    lead = (
        "Toys whose features are known: do the singular vectors of the head's map equal the features it attends by?",
    )
    return Section("Toys with known features", lead, Sheet(columns, rows))


def _layers(stored: Stored, size: Settings) -> Section:
    heads = torch.cat([found["head"] for found in stored.cases])
    saved = torch.cat([found["rotated"] - found["own"] for found in stored.cases])
    layers = sorted({int(layer) for layer in heads[:, 0]})
    columns = range(int(heads[:, 1].max()) + 1)
    cells = [[_mean(saved[(heads[:, 0] == layer) & (heads[:, 1] == head)]) for layer in layers] for head in columns]
    picture = HeatMap(
        [str(head) for head in columns], [str(layer) for layer in layers], cells, "layer", "head",
        ends=("denser than rotated", "sparser than rotated"),
    )  # fmt: skip
    lead = (f"How much sparser terms are than after a rotation (difference of sparseness), mean over a head's pairs "
            f"with attention of at least {size.threshold}; gray: no such pair.",)  # fmt: skip
    return Section("Where attention is a few terms", lead, picture)


def _mean(values: torch.Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _training(stored: Stored) -> Section:
    rows = []
    for i in range(len(stored.small[0]["own"])):
        means = (
            sum(one[what][i] for one in stored.small) / len(stored.small) for what in ("own", "rotated", "induction")
        )
        rows.append([str(i), *(number(v) for v in means)])
    columns = (
        ("checkpoint", "0 is the untrained model"),
        ("sparseness", "of the induction head's terms"),
        ("rotated", "of the control's"),
        ("induction", "attention to what followed the same token"),
    )
    lead = ("A small model learns to continue repeated tokens; means over seeds.",)
    return Section("The induction head in training", lead, Sheet(columns, rows))
