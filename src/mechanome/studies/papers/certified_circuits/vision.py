"""Circuits of channels, plain and certified, of the residual network that learned a spurious cue."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.certification import Certificate, certify, random_abstention, same_size
from mechanome.circuits.channels import Channels, channel_scores, prune_channels
from mechanome.circuits.effects import Effects
from mechanome.circuits.layerwise import SelectEach
from mechanome.engine import load
from mechanome.studies.papers.certified_circuits import SCORERS, Settings
from mechanome.zoo import CLASSES, SHIFTS, Recipe, Shapes, SmallResNet, draw_shapes, shifted_shapes, train_on_shapes
from mechanome.zoo.spurious import accuracy

STAGES = tuple(f"path:stages.{i}" for i in range(4))
METHODS = ("certified", "plain", "same size", "random")
"""Kinds of circuits: certified, plain, plain of the certified one's size, random parts of the plain one."""
SETS = ("as in training", *SHIFTS)
_CONCEPT, _USUAL, _SHIFTED = 10_000, 20_000, 30_000
"""Seeds of image sets are those of the study plus one of these, so that no two sets share an image."""


def trained(seed: int, size: Settings) -> dict[str, Tensor]:
    """The weights of a seed."""
    return train_on_shapes(seed, Recipe(images=size.train, epochs=size.epochs), quiet=True).state_dict()


def measured(seed: int, weights: dict[str, Tensor], size: Settings) -> dict[str, Any]:
    """Everything about the network of one seed.

    Returns:
        full: accuracy on each set; per scorer, `kept [method, class, share]` (share of channels kept) and
        `right [method, set, class, share]`; for relevance also `elsewhere [2, 3, class, share]`, of images of other
        classes the share done right and the share called the circuit's class (certified, plain, same size);
        `iou [3, class, share]` of circuits from two halves (certified, plain of the same size) and of the certified
        with the plain one of its size; and `cost [class]`.
    """
    module = SmallResNet(len(CLASSES))
    module.load_state_dict(weights)
    sets = [draw_shapes(size.tests * len(CLASSES), _USUAL + seed)]
    sets += [shifted_shapes(size.tests * len(CLASSES), _SHIFTED + seed, shift) for shift in SHIFTS]
    concept = draw_shapes(size.concept * len(CLASSES), _CONCEPT + seed)
    model = load(module.eval(), device="cpu", example={"pixel_values": concept.images[:1]})
    channels = Channels.of(model, STAGES, concept.images)
    found: dict[str, Any] = {"full": [accuracy(module, each) for each in sets]}
    for scorer in SCORERS:
        classes = [
            _of_class(channels, concept.of(c), [s.of(c) for s in sets], scorer, size) for c in range(len(CLASSES))
        ]
        found[scorer] = {name: torch.stack([each[name] for each in classes], -2) for name in classes[0]}
    labels = range(len(CLASSES))
    scored = [channel_scores(channels, concept.of(c).images, concept.of(c).labels) for c in labels]
    found["iou"] = torch.stack([_halves(channels, each, size) for each in scored], 1)
    found["cost"] = torch.tensor([_cost(channels, concept.of(c), size) for c in labels])
    found["elsewhere"] = torch.stack([_elsewhere(channels, scored[c], sets[0], c, size) for c in labels], 2)
    return found


def circuits(channels: Channels, scores: Effects, shares: tuple[float, ...], masks: int) -> list[Certificate]:
    """The certified circuit of every share."""
    return [certify(SelectEach(share, channels.groups), scores, n=masks, quiet=True) for share in shares]


def _of_class(
    channels: Channels, concept: Shapes, sets: list[Shapes], scorer: str, size: Settings
) -> dict[str, Tensor]:
    """One class: `kept [method, share]`, `right [method, set, share]`."""
    scores = channel_scores(channels, concept.images, concept.labels, scorer)
    mean = scores.values.double().mean(0)
    certificates = circuits(channels, scores, size.shares, size.masks)
    random = [random_abstention(c, size.abstentions, i, channels.groups) for i, c in enumerate(certificates)]
    kept = torch.cat(
        [
            torch.stack([c.certified_in for c in certificates]),
            torch.stack([c.found for c in certificates]),
            torch.stack([same_size(c, mean, "highest", channels.groups) for c in certificates]),
            torch.cat(random),
        ]
    )
    share = _by_method(kept.double().mean(1), len(size.shares), size.abstentions)
    right = torch.stack([_right(channels, each, kept) for each in sets], 1)
    return {"kept": share, "right": _by_method(right, len(size.shares), size.abstentions)}


def _right(channels: Channels, images: Shapes, kept: Tensor) -> Tensor:
    """Share of images that each circuit does right, `[circuit]`."""
    said = prune_channels(channels, images.images, kept).argmax(-1)
    return (said == images.labels).double().mean(1)


def _by_method(values: Tensor, shares: int, abstentions: int) -> Tensor:
    """Values of all circuits `[circuit(, set)]` as `[method(, set), share]`, random ones averaged."""
    plain, random = values[: 3 * shares], values[3 * shares :]
    each = random.unflatten(0, (shares, abstentions)).mean(1)
    whole = torch.cat([plain.unflatten(0, (3, shares)), each[None]])
    return whole.movedim(1, -1)


def _halves(channels: Channels, scores: Effects, size: Settings) -> Tensor:
    """IoU of circuits from two halves, certified and plain of the same size, and of these two, `[3, share]`.

    NaN where none is certified.
    """
    half = scores.inputs // 2
    parts = [Effects(scores.values[:half], scores.components), Effects(scores.values[half:], scores.components)]
    found = [circuits(channels, part, size.shares, size.masks) for part in parts]
    means = [part.values.double().mean(0) for part in parts]
    rows = []
    for pair in zip(*found):
        certified = [c.certified_in for c in pair]
        plain = [same_size(c, mean, "highest", channels.groups) for c, mean in zip(pair, means)]
        rows.append([overlap(*certified), overlap(*plain), overlap(certified[0], plain[0])])
    return torch.tensor(rows, dtype=torch.float64).T


def overlap(a: Tensor, b: Tensor) -> float:
    """Shared over all members of two sets of booleans; NaN where both are empty."""
    union = int((a | b).sum())
    return int((a & b).sum()) / union if union else float("nan")


def _elsewhere(channels: Channels, scores: Effects, images: Shapes, label: int, size: Settings) -> Tensor:
    """What a class's circuits say of images of other classes: right, and their own class, `[2, method, share]`."""
    others = images.labels != label
    rest = Shapes(images.images[others], images.labels[others], images.grounds[others])
    found = circuits(channels, scores, size.shares, size.masks)
    mean = scores.values.double().mean(0)
    kept = [c.certified_in for c in found] + [c.found for c in found]
    kept += [same_size(c, mean, "highest", channels.groups) for c in found]
    few = torch.arange(0, len(rest), max(1, len(rest) // (2 * size.tests)))
    said = prune_channels(channels, rest.images[few], torch.stack(kept)).argmax(-1)
    answers = torch.stack([said == rest.labels[few], said == label]).double().mean(2)
    return answers.unflatten(1, (3, len(size.shares)))


def _cost(channels: Channels, concept: Shapes, size: Settings) -> float:
    """Seconds of scoring, selecting and certifying over those of scoring and selecting."""
    rule = SelectEach(0.2, channels.groups)
    start = time.perf_counter()
    scores = channel_scores(channels, concept.images, concept.labels)
    rule.sets(scores.values.double().mean(0, keepdim=True), scores.components)
    found = time.perf_counter()
    certify(rule, scores, n=size.masks, quiet=True)
    return (time.perf_counter() - start) / (found - start)
