"""Pictures of paper 26's study: accuracy over the share that is kept, for each kind of circuit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mechanome.report import HeatMap, Section
from mechanome.studies.papers.certified_circuits import language, photos, vision

if TYPE_CHECKING:
    from mechanome.studies.papers.certified_circuits import Settings
    from mechanome.studies.papers.certified_circuits.measuring import Curves

_ENDS = ("", "every image right")


def sections(
    curves: Sequence[Curves], nodes: Sequence[Mapping[str, Any]], shots: Sequence[Mapping[str, Any]], size: Settings
) -> tuple[Section, ...]:
    """The study's sections, in order."""
    return _channels(curves, size), _sizes(curves, size), _nodes(nodes, size), _photos(shots, size)


def _channels(curves: Sequence[Curves], size: Settings) -> Section:
    mean = np.mean([each.accuracy for each in curves], 0)
    means = {"usual": mean[:, 0], "shift": mean[:, 1:].mean(1)}
    rows = [f"{images} {method}" for images in means for method in vision.METHODS]
    values = [row.tolist() for each in means.values() for row in each]
    lead = (
        "Accuracy of each class's circuit on images of its class, mean over classes and seeds; usual: images as in "
        "training, shift: mean over four shifted sets. K is the share of channels that the plain circuit keeps; the "
        "others of a column keep fewer: what is certified, the plain circuit of that size, random parts of it.",
    )
    picture = HeatMap(rows, _percents(size.shares), values, "K", "circuit", (len(vision.METHODS),), _ENDS)
    return Section("The residual network without the other channels", lead, picture)


def _sizes(curves: Sequence[Curves], size: Settings) -> Section:
    kept = np.mean([each.kept.mean(1) for each in curves], 0)
    picture = HeatMap(
        ["plain", "certified"], _percents(size.shares), [kept[1].tolist(), kept[0].tolist()], "K", "circuit",
        ends=("", "all channels"),
    )  # fmt: skip
    lead = ("The share of channels that are kept, mean over classes and seeds. What a certified circuit does not keep "
            "was found on all examples but not on almost every part of them.",)  # fmt: skip
    return Section("How much is certified", lead, picture)


def _nodes(nodes: Sequence[Mapping[str, Any]], size: Settings) -> Section:
    right = np.mean([found["right"].double().numpy().mean(-1) for found in nodes], 0)
    kept = np.mean([found["kept"].double().numpy() for found in nodes], 0)
    rows = [f"{kind} {method}" for kind in language.KINDS for method in language.METHODS]
    values = [right[m, k].tolist() for k in range(len(language.KINDS)) for m in range(len(language.METHODS))]
    picture = HeatMap(
        rows, _percents(size.node_shares), values, "K", "circuit", (len(language.METHODS),), ("", "every prompt right")
    )
    said = ", ".join(f"{certified:.0f} of {plain:.0f}" for certified, plain in kept[:2].T)
    finding = (f"Nodes that are certified, of those found: {said}.",)
    lead = ("Share of prompts on which the circuit prefers the right verb, mean over seeds; same: of the templates "
            "that circuits were found on, held: of others. K is the share of heads and MLPs that the plain circuit "
            "keeps.",)  # fmt: skip
    return Section("The language model with the other nodes patched", lead, picture, finding)


def _photos(shots: Sequence[Mapping[str, Any]], size: Settings) -> Section:
    right = np.mean([found["right"].numpy() for found in shots], 0)
    picture = HeatMap(
        list(photos.METHODS),
        _percents(size.photo_shares),
        right.tolist(),
        "K",
        "circuit",
        ends=("", "every crop right"),
    )
    lead = ("Share of crops that keep the class of the whole photograph, mean over photographs and seeds.",)
    return Section("EfficientNet-Lite0 without the other channels", lead, picture)


def _percents(shares: Sequence[float]) -> list[str]:
    return [f"{100 * share:g} %" for share in shares]
