"""How much of what a model says survives when a dictionary's reconstruction stands in for its activations.

Losses of the model as it is, of every dictionary, of zero and of the mean come from one pass over the text: blocks
before the site run once, and the variants are copies of the rows in the pass behind it. The first position may be left
as it is (`first="keep"`): in many models it holds a huge activation that no dictionary was trained on, and what happens
there moves the loss of all other tokens. What was done is part of the split's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from mechanome.core import BadInput, Table
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.metrics.measure import Measure, measure, ratio_interval
from mechanome.dictionaries.metrics.suffix import Losses, Suffix
from mechanome.engine.asked import one_of

if TYPE_CHECKING:
    from mechanome.engine import Model, Site
    from mechanome.engine import memory as sizes
    from mechanome.engine.inputs import Inputs

First = Literal["replace", "keep"]

_BASELINES = ("zero", "mean")


@dataclass(frozen=True)
class LossRecovered:
    """Losses per sequence, in sums, so that means are over tokens and intervals over sequences.

    Args:
        tokens: predicted in each sequence, `[row]`.
        clean: loss of the model as it is, `[row]`, nats, summed over tokens.
        ce: the same by variant: each dictionary's name, "zero" and "mean".
        kl, top1: KL and agreements, by variant, summed likewise.
        first: what was done at the first position.
        skipped: blocks that no variant ran.
    """

    tokens: np.ndarray = field(repr=False)
    clean: np.ndarray = field(repr=False)
    ce: Mapping[str, np.ndarray] = field(repr=False)
    kl: Mapping[str, np.ndarray] = field(repr=False)
    top1: Mapping[str, np.ndarray] = field(repr=False)
    first: First = "replace"
    skipped: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The dictionaries."""
        return tuple(name for name in self.ce if name not in _BASELINES)

    def measures(self, name: str, seed: int = 0) -> Iterator[Measure]:
        """All numbers of one dictionary; intervals draw whole sequences."""
        quantities = {
            "tokens": self.tokens, "clean": self.clean, "recon": self.ce[name], "zero": self.ce["zero"],
            "mean": self.ce["mean"], "kl": self.kl[name], "top1": self.top1[name],
        }  # fmt: skip
        sums, places = np.stack(list(quantities.values()), axis=1), {q: i for i, q in enumerate(quantities)}
        n = int(self.tokens.sum())
        for metric, over, under in _METRICS:

            def ratio(totals: np.ndarray, over: _Sum = over, under: _Sum = under) -> float:
                top, bottom = (sum(s * totals[places[q]] for q, s in part.items()) for part in (over, under))
                return float(top / bottom) if bottom != 0 else float("nan")

            value = ratio(sums.sum(0))
            yield measure(metric, value, n, ratio_interval(sums, ratio, seed) if np.isfinite(value) else None)

    def table(self) -> Table:
        """One line a dictionary."""
        records = []
        for name in self.names:
            found = {m.definition.metric: m.value for m in self.measures(name)}
            records.append({"dictionary": name, **found})
        return Table.of(records, f"loss recovered, first position {_SAID[self.first]}")


_Sum = Mapping[str, float]
_SAID = {"replace": "replaced", "keep": "kept"}

_METRICS: tuple[tuple[str, _Sum, _Sum], ...] = (
    ("ce_clean.v1", {"clean": 1}, {"tokens": 1}),
    ("ce_recon.v1", {"recon": 1}, {"tokens": 1}),
    ("ce_zero.v1", {"zero": 1}, {"tokens": 1}),
    ("ce_mean.v1", {"mean": 1}, {"tokens": 1}),
    ("ce_recovered_zero.v1", {"zero": 1, "recon": -1}, {"zero": 1, "clean": -1}),
    ("ce_recovered_mean.v1", {"mean": 1, "recon": -1}, {"mean": 1, "clean": -1}),
    ("delta_loss.v1", {"recon": 1, "clean": -1}, {"clean": 1}),
    ("kl.v1", {"kl": 1}, {"tokens": 1}),
    ("top1.v1", {"top1": 1}, {"tokens": 1}),
)
"""Metric, and the two weighted sums that it is the ratio of."""


def ce_recovered(
    model: Model,
    dictionaries: Dictionary | Mapping[str, Dictionary],
    inputs: Inputs,
    *,
    site: str | Site | None = None,
    mean: Tensor | None = None,
    first: First = "replace",
    budget: sizes.Budget = None,
) -> LossRecovered:
    """Loss, KL and agreement with reconstructions in the place of activations, for dictionaries of one site.

    Args:
        model: a causal language model.
        dictionaries: one, or several by name; all read and write the same sites.
        inputs: texts, chats or ids.
        site: where they stand in; None for the site they were made for.
        mean: what mean ablation writes, `[d]`; None for the mean over the tokens of `inputs`.
        first: what happens at the first position of each sequence: "replace" it too, or "keep" it as it is.
        budget: of memory, such as "4GB".

    Raises:
        BadInput: no dictionary, several output sites, names that baselines have.
        NotServed, UnknownSite, ShapeMismatch: as `Suffix`.
    """
    one_of("first", first, _SAID, "there is no such choice")
    named = by_name(dictionaries)
    reads, writes = _sites(named, site)
    suffix = Suffix(model, inputs, writes, reads=() if reads == writes else (reads,), budget=budget)
    own, read = suffix.values(), suffix.values(reads)
    with torch.no_grad():
        variants = {name: made(d, read) for name, d in named.items()}
    variants |= {"zero": torch.zeros_like(own), "mean": (own.double().mean(0) if mean is None else mean).to(own)}
    if first == "keep":
        variants = {name: _kept(suffix, own, given) for name, given in variants.items()}
    found = suffix.losses(variants)
    clean = Losses(suffix.ce, suffix.ce, suffix.ce)
    sums = {name: _per_row(losses) for name, losses in found.items()}
    tokens = (~suffix.ce.isnan()).sum(1).double().numpy()
    ce, kl, top1 = ({name: each[i] for name, each in sums.items()} for i in range(3))
    return LossRecovered(tokens, _per_row(clean)[0], ce, kl, top1, first, suffix.skipped)


def made(dictionary: Dictionary, x: Tensor) -> Tensor:
    """What a dictionary makes of activations `[row, d_in]`: `[row, d_out]`, in their dtype and where they are."""
    own = x.to(dictionary.norm.shift.device)
    return dictionary.decode(dictionary.encode(own), own).to(x)


def by_name(dictionaries: Dictionary | Mapping[str, Dictionary]) -> dict[str, Dictionary]:
    """Dictionaries by name; a single one is called "dictionary".

    Raises:
        BadInput: none, or something that is no dictionary.
    """
    named = dict(dictionaries) if isinstance(dictionaries, Mapping) else {"dictionary": dictionaries}
    if not named:
        raise BadInput("dictionaries", "there are none", "give at least one, under a name")
    if wrong := [name for name, each in named.items() if not isinstance(each, Dictionary)]:
        kind = type(named[wrong[0]]).__name__
        raise BadInput(f"'{wrong[0]}'", f"a {kind} is no dictionary", "give what fit or load returned")
    return named


def _sites(named: Mapping[str, Dictionary], site: str | Site | None) -> tuple[str, str]:
    clash = [name for name in named if name in _BASELINES]
    if clash:
        raise BadInput("dictionaries", f"'{clash[0]}' names a baseline", "give it another name")
    if site is not None:
        return str(site), str(site)
    pairs = {(d.spec.sites_in, d.spec.sites_out) for d in named.values()}
    if len(pairs) > 1:
        raise BadInput("dictionaries", "they are made for different sites", "measure those of one site at a time")
    ((reads, writes),) = pairs
    if len(reads) != 1 or len(writes) != 1:
        raise BadInput("these dictionaries", f"they read {reads} and write {writes}", "give site=, or one of one site")
    return reads[0], writes[0]


def _kept(suffix: Suffix, own: Tensor, given: Tensor) -> Tensor:
    """The variant with each sequence's first token as it is."""
    starts = torch.zeros_like(suffix.real)
    starts[torch.arange(len(starts)), suffix.real.int().argmax(1)] = True
    return torch.where(starts[suffix.real][:, None].to(own.device), own, given.expand_as(own))


def _per_row(losses: Losses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ce, kl, top1 = (part.nansum(1).numpy() for part in (losses.ce, losses.kl, losses.top1))
    return ce, kl, top1
