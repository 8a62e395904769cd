"""The measurement of paper 26: the theorem by enumeration, a small residual network, a language model, photographs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mechanome.core import Interval, binomial, bootstrap
from mechanome.studies.context import Context
from mechanome.studies.papers.certified_circuits import (
    SCORERS,
    Settings,
    language,
    photos,
    pictures,
    proofs,
    vision,
)
from mechanome.studies.study import Effect, Measured

CERTIFIED, PLAIN, SAME, RANDOM = range(4)
_SMALLER, _AS_GOOD = 0.8, 0.01
"""What "smaller and as good" means: at most this share of the plain circuit, at most so much less accuracy."""
_EACH = "resampled over circuits, one a class and seed"


@dataclass(frozen=True)
class Curves:
    """What circuits of one seed do over K.

    Args:
        kept: share of parts kept, `[method, class, share]`.
        right: share of images done right, `[method, set, class, share]`.
    """

    kept: np.ndarray = field(repr=False)
    right: np.ndarray = field(repr=False)

    @property
    def accuracy(self) -> np.ndarray:
        """Mean over classes, `[method, set, share]`."""
        return self.right.mean(2)

    def peak(self, method: int, images: int = 0) -> int:
        """The place of the smallest K with the highest accuracy on a set."""
        return int(self.accuracy[method, images].argmax())

    def at_peak(self, method: int, images: int, of: int | None = None) -> np.ndarray:
        """Accuracy of each class on a set, at the peak of the method (or of another, `of`), `[class]`."""
        return self.right[method, images, :, self.peak(method if of is None else of, images)]

    def kept_at_peak(self, method: int) -> np.ndarray:
        """Share kept by each class's circuit at the peak, images as in training, `[class]`."""
        return self.kept[method, :, self.peak(method)]


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    size = context.settings
    proved = context.each("masks listed", context.seeds, lambda s: proofs.of_random_scores(s, size.datasets))
    foreign = context.each("foreign methods", context.seeds, proofs.of_foreign_methods)
    wrong = context.each("sampled masks", context.seeds, lambda s: proofs.wrong_certificates(s, size.repeats))
    weights = context.each("residual network", context.seeds, lambda s: vision.trained(s, size))
    trained = dict(zip(context.seeds, weights))
    networks = context.each("circuits of channels", context.seeds, lambda s: vision.measured(s, trained[s], size))
    decoder = context.model("decoder")
    nodes = context.each("circuits of nodes", context.seeds, lambda s: language.measured(decoder, s, size))
    classifier = context.model("photos")
    taken = photos.photographs()
    items = [f"{seed} {name}" for seed in context.seeds for name in taken]
    shots = context.each("circuits on", items, lambda item: _photo(classifier, taken, item, size))
    effects = {
        **_proofs(proved, foreign, sum(wrong), size.repeats * len(context.seeds)),
        **_network(networks, size),
        **_language(nodes),
        **_photos(shots, size),
    }
    tried, right = (sum(found["prompts"][i] for found in nodes) for i in (0, 1))
    remarks = (
        f"Agreement: {right} of {tried} prompts done right.",
        f"Photographs: the model's own class on {_listed([found['full'] for found in shots])} of crops.",
    )
    return Measured(effects, pictures.sections(_curves(networks, SCORERS[0]), nodes, shots, size), remarks)


def _photo(model: Any, taken: Mapping[str, Any], item: str, size: Settings) -> dict[str, Any]:
    seed, name = item.split()
    return photos.measured(model, taken[name], int(seed), size)


def _curves(networks: Sequence[Mapping[str, Any]], scorer: str) -> list[Curves]:
    return [Curves(found[scorer]["kept"].numpy(), found[scorer]["right"].numpy()) for found in networks]


def over(values: Sequence[Any] | np.ndarray, note: str) -> Effect:
    """The mean of numbers, one a unit, with its bootstrap interval; undefined ones are left out and counted."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    known = flat[np.isfinite(flat)]
    left = f"; {len(flat) - len(known)} of {len(flat)} are not defined" if len(known) < len(flat) else ""
    if len(known) < 2:
        return Effect(None, f"a single value has no interval{left}")
    return Effect(bootstrap(known), note + left)


def _count(value: int, n: int) -> Interval:
    """A number that was counted, not sampled."""
    return Interval(float(value), float(value), float(value), n, method="count")


# A. The theorem --------------------------------------------------------------------------------------------------


def _proofs(
    proved: Sequence[Mapping[str, int]], foreign: Sequence[Mapping[str, int]], wrong: int, repeats: int
) -> dict[str, Effect]:
    def total(found: Sequence[Mapping[str, int]], name: str) -> int:
        return sum(each[name] for each in found)

    checks, others = total(proved, "certified"), total(proved, "other")
    own, strange = total(foreign, "certified"), total(foreign, "other")
    turned = total(foreign, "other_flips")
    return {
        "no-flips": Effect(_count(total(proved, "flips"), checks), f"all {checks} pairs of component and dataset"),
        "teeth": Effect(binomial(total(proved, "other_flips"), others), f"of {others} pairs"),
        "foreign-no-flips": Effect(
            _count(total(foreign, "flips"), own),
            f"all {own} pairs; of {strange} pairs that are not certified {turned} turn around",
        ),
        "rarely-wrong": Effect(binomial(wrong, repeats), f"{repeats} certificates, Bonferroni and Holm in turn"),
    }


# B. The residual network -----------------------------------------------------------------------------------------


def _network(networks: Sequence[Mapping[str, Any]], size: Settings) -> dict[str, Effect]:
    curves = _curves(networks, SCORERS[0])
    sets = range(len(vision.SETS))
    shifted, below = sets[1:], [i for i, share in enumerate(size.shares) if share < 1]
    full = np.array([found["full"] for found in networks])
    iou = np.stack([found["iou"].numpy() for found in networks])[..., below]
    elsewhere = [found["elsewhere"].numpy() for found in networks]
    good = [_as_good(each) for each in curves]
    named = ", ".join(f"{_percent(1 - kept)} fewer and {gain:+.3f}" for kept, gain in good)
    passed = sum(kept <= _SMALLER and gain >= -_AS_GOOD for kept, gain in good)

    def peaks(method: int, images: Sequence[int]) -> list[np.ndarray]:
        return [np.mean([each.at_peak(method, i) for i in images], 0) for each in curves]

    def against(method: int) -> list[np.ndarray]:
        return [
            np.mean([each.at_peak(CERTIFIED, i) - each.at_peak(method, i, CERTIFIED) for i in sets], 0)
            for each in curves
        ]

    def everywhere(method: int) -> list[np.ndarray]:
        return [(each.right[CERTIFIED] - each.right[method])[..., below].mean((0, 2)) for each in curves]

    plain = np.mean([each.accuracy[PLAIN, 1:].max(-1).mean() for each in curves])
    effects = {
        "smaller-as-good": Effect(
            _count(passed, len(curves)) if len(curves) > 1 else None, f"channels and accuracy, each seed: {named}"
        ),
        "better-shifted": over(_differences(curves, shifted), f"plain {plain:.3f}; {_EACH}"),
        "found-again": over(_mean_known(iou[:, 0] - iou[:, 1]), f"mean over K below 1; {_EACH}"),
        "cost": over([found["cost"].numpy() for found in networks], "resampled over classes and seeds"),
        "full-usual": over(full[:, 0], "resampled over seeds"),
        "full-shifted": over(full[:, 1:].mean(1), f"resampled over seeds; {_by_set(full.mean(0)[1:])}"),
        "dropped": over([_dropped(each) for each in curves], _EACH),
        "peak-certified": over(peaks(CERTIFIED, sets[:1]), f"{_EACH}; at K = {_peaks(curves, CERTIFIED, size)}"),
        "peak-plain": over(peaks(PLAIN, sets[:1]), f"{_EACH}; at K = {_peaks(curves, PLAIN, size)}"),
        "shifted-certified": over(peaks(CERTIFIED, shifted), _EACH),
        "shifted-plain": over(peaks(PLAIN, shifted), _EACH),
        "minus-same-size": over(against(SAME), _EACH),
        "minus-random": over(against(RANDOM), _EACH),
        "all-shares-minus-same-size": over(everywhere(SAME), _EACH),
        "all-shares-minus-random": over(everywhere(RANDOM), _EACH),
        "iou-certified": over(_mean_known(iou[:, 0]), _EACH),
        "iou-plain": over(_mean_known(iou[:, 1]), _EACH),
        "iou-both": over(_mean_known(iou[:, 2]), f"mean over K below 1; {_EACH}"),
    }
    for i, name in enumerate(("certified", "plain")):
        values = [other[0, i, :, each.peak(i)] for other, each in zip(elsewhere, curves)]
        effects[f"other-classes-{name}"] = over(values, _EACH)
    effects |= _detection(curves, [other[1] for other in elsewhere], size)
    for scorer in SCORERS[1:]:
        found = _curves(networks, scorer)
        effects[f"{scorer}-dropped"] = over([_dropped(each) for each in found], _EACH)
        effects[f"{scorer}-peak"] = over(_differences(found, sets[:1]), _EACH)
        effects[f"{scorer}-shifted"] = over(_differences(found, shifted), _EACH)
    return effects


def _detection(curves: Sequence[Curves], called: Sequence[np.ndarray], size: Settings) -> dict[str, Effect]:
    """Circuits as detectors of their class: the mean of images of it done right and of others not called it."""
    found = [Curves(each.kept[:3], ((each.right[:3, 0] + 1 - said) / 2)[:, None]) for each, said in zip(curves, called)]
    at = {m: f"{_EACH}; at K = {_peaks(found, m, size)}" for m in (CERTIFIED, PLAIN)}
    return {
        "detection-certified": over([each.at_peak(CERTIFIED, 0) for each in found], at[CERTIFIED]),
        "detection-plain": over([each.at_peak(PLAIN, 0) for each in found], at[PLAIN]),
        "detection-minus-plain": over(_differences(found, [0]), _EACH),
        "detection-minus-same-size": over(
            [each.at_peak(CERTIFIED, 0) - each.at_peak(SAME, 0, CERTIFIED) for each in found], _EACH
        ),
        "detection-dropped": over([_dropped(each) for each in found], _EACH),
    }


def _as_good(each: Curves) -> tuple[float, float]:
    """Size of the certified circuit over that of the plain one, each at its peak, and how much more accurate it is."""
    kept = each.kept_at_peak(CERTIFIED).mean() / each.kept_at_peak(PLAIN).mean()
    return float(kept), float(each.at_peak(CERTIFIED, 0).mean() - each.at_peak(PLAIN, 0).mean())


def _dropped(each: Curves) -> np.ndarray:
    return 1 - each.kept_at_peak(CERTIFIED) / each.kept_at_peak(PLAIN)


def _differences(curves: Sequence[Curves], images: Sequence[int]) -> list[np.ndarray]:
    """Accuracy at the peak, certified minus plain, mean over sets, per seed `[class]`."""
    return [np.mean([each.at_peak(CERTIFIED, i) - each.at_peak(PLAIN, i) for i in images], 0) for each in curves]


def _mean_known(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis of what is defined; NaN where nothing is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(-1)
    return np.where(known.any(-1), total / np.maximum(known.sum(-1), 1), np.nan)


def _peaks(curves: Sequence[Curves], method: int, size: Settings) -> str:
    return _listed([size.shares[each.peak(method)] for each in curves])


def _by_set(values: Sequence[float] | np.ndarray) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in zip(vision.SETS[1:], values))


# C. The language model, and photographs --------------------------------------------------------------------------


def _language(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Effect]:
    right = [found["right"].double().numpy() for found in nodes]
    kept = [found["kept"].double().numpy() for found in nodes]
    peaks = [int(each[PLAIN, 0].mean(-1).argmax()) for each in right]
    at = [each[:, :, peak] for each, peak in zip(right, peaks)]
    sizes = [each[:, peak] for each, peak in zip(kept, peaks)]
    note = "resampled over prompts"
    counted = "; ".join(f"{int(s[CERTIFIED])} of {int(s[PLAIN])}" for s in sizes)

    def apart(other: int, kind: int) -> Effect:
        return over(np.concatenate([each[CERTIFIED, kind] - each[other, kind] for each in at]), note)

    return {
        "language-accuracy": apart(PLAIN, 0),
        "language-smaller": over(
            [1 - s[CERTIFIED] / s[PLAIN] for s in sizes], f"resampled over seeds: {counted} nodes"
        ),
        "language-plain": over(np.concatenate([each[PLAIN, 0] for each in at]), note),
        "language-certified": over(np.concatenate([each[CERTIFIED, 0] for each in at]), note),
        "language-same-size": apart(SAME, 0),
        "language-held-out": apart(PLAIN, 1),
    }


def _photos(shots: Sequence[Mapping[str, Any]], size: Settings) -> dict[str, Effect]:
    curves = [Curves(found["kept"].numpy()[:, None], found["right"].numpy()[:, None, None]) for found in shots]
    iou = np.stack([found["iou"].numpy() for found in shots])
    note = "resampled over photographs and seeds"
    return {
        "photo-certified": over([each.at_peak(CERTIFIED, 0) for each in curves], note),
        "photo-minus-plain": over(_differences(curves, [0]), note),
        "photo-dropped": over([_dropped(each) for each in curves], note),
        "photo-minus-same-size": over(
            [each.at_peak(CERTIFIED, 0) - each.at_peak(SAME, 0, CERTIFIED) for each in curves], note
        ),
        "photo-found-again": over(_mean_known(iou[:, 0] - iou[:, 1]), note),
    }


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
