"""Which nodes tell a label: the area under the ROC curve of each node's score."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from mechanome.core import BadInput, NotFinite, ShapeMismatch


def label_auroc(scores: Tensor, labels: Tensor) -> Tensor:
    """The chance that an example with the label has a higher score than one without, ties counting half.

    Args:
        scores: `[example, ...]`, such as `NodeScores.each`.
        labels: booleans `[example]`, such as which prompts name a plural.

    Returns:
        `[...]` in float64: 1 or 0 where a score tells the label, 0.5 where it knows nothing of it.

    Raises:
        ShapeMismatch: other numbers of examples. BadInput: only one kind of example. NotFinite: scores that are NaN.
    """
    labels = labels.bool()
    if labels.dim() != 1 or scores.dim() < 1 or len(scores) != len(labels):
        raise ShapeMismatch("labels", f"{list(labels.shape)} for scores {list(scores.shape)}", "give one an example")
    with_label, without = int(labels.sum()), int((~labels).sum())
    if not (with_label and without):
        raise BadInput("labels", f"all {len(labels)} are the same", "give examples of both kinds")
    if not bool(torch.isfinite(scores).all()):
        raise NotFinite("scores", "some are NaN or infinite", "leave those nodes out")
    ranks = torch.from_numpy(np.asarray(rankdata(scores.double().cpu().numpy(), axis=0)))
    above = ranks[labels.cpu()].sum(0) - with_label * (with_label + 1) / 2
    return above / (with_label * without)
