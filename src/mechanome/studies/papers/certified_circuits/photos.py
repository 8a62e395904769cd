"""Circuits of channels of a real image classifier, found on crops of photographs that come with scikit-learn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mechanome.circuits.certification import certify, same_size
from mechanome.circuits.channels import Channels, channel_scores, prune_channels
from mechanome.circuits.effects import Effects
from mechanome.circuits.layerwise import SelectEach
from mechanome.engine import Model
from mechanome.studies.papers.certified_circuits import Settings
from mechanome.studies.papers.certified_circuits.vision import overlap

STAGES = tuple(f"path:blocks.{i}" for i in (0, 2, 4, 7, 10, 14, 15))
"""The last block of each stage."""
METHODS = ("certified", "plain", "same size")
_SIDE = 224


def photographs() -> dict[str, Tensor]:
    """The photographs by file name, `[color, height, width]`, as EfficientNet-Lite takes them."""
    from sklearn.datasets import load_sample_image

    images = {name: np.array(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")}
    return {name: (torch.from_numpy(x).movedim(-1, 0).float() - 127) / 128 for name, x in images.items()}


def crops(photo: Tensor, n: int, seed: int) -> Tensor:
    """Random crops of 50 to 100 % of each side, mirrored half the time, `[crop, color, 224, 224]`."""
    draw = random.Random(f"crops/{seed}")
    height, width = photo.shape[1:]
    found = []
    for _ in range(n):
        share = draw.uniform(0.5, 1.0)
        h, w = round(share * height), round(share * width)
        top, left = draw.randint(0, height - h), draw.randint(0, width - w)
        piece = photo[:, top : top + h, left : left + w]
        piece = piece.flip(-1) if draw.random() < 0.5 else piece
        found.append(functional.interpolate(piece[None], (_SIDE, _SIDE), mode="bilinear", antialias=True))
    return torch.cat(found)


def measured(model: Model, photo: Tensor, seed: int, size: Settings) -> dict[str, Any]:
    """Circuits of one photograph's class.

    Returns:
        label: the model's own class of the whole photograph; full: its accuracy on crops; kept, right:
        `[method, share]`; iou: `[2, share]` of two halves, certified and plain of the same size.
    """
    whole = functional.interpolate(photo[None], (_SIDE, _SIDE), mode="bilinear", antialias=True)
    label = int(model.run({"pixel_values": whole}).logits.argmax())  # type: ignore[union-attr]
    concept, asked = crops(photo, size.crops, 2 * seed), crops(photo, max(1, size.crops // 3), 2 * seed + 1)
    channels = Channels.of(model, STAGES, concept)
    scores = channel_scores(channels, concept, torch.full((len(concept),), label), batch=8)
    found = [_circuits(channels, scores, share, size) for share in size.photo_shares]
    kept = torch.stack(found, 1)
    said = prune_channels(channels, asked, kept.flatten(0, 1), batch=16).argmax(-1).unflatten(0, kept.shape[:2])
    half = len(concept) // 2
    parts = [Effects(values, scores.components) for values in (scores.values[:half], scores.values[half:])]
    pairs = [[_circuits(channels, part, share, size) for part in parts] for share in size.photo_shares]
    iou = [[overlap(a[method], b[method]) for a, b in pairs] for method in (0, 2)]
    full = model.run({"pixel_values": asked}).logits
    assert full is not None
    return {
        "label": label,
        "full": float((full.argmax(-1) == label).double().mean()),
        "kept": kept.double().mean(2),
        "right": (said == label).double().mean(2),
        "iou": torch.tensor(iou, dtype=torch.float64),
    }


def _circuits(channels: Channels, scores: Effects, share: float, size: Settings) -> Tensor:
    """The certified circuit, the plain one, and the plain one of the certified one's size, `[method, channel]`."""
    found = certify(SelectEach(share, channels.groups), scores, n=size.masks, quiet=True)
    same = same_size(found, scores.values.double().mean(0), "highest", channels.groups)
    return torch.stack([found.certified_in, found.found, same])
