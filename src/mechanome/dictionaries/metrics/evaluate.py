"""Measure dictionaries: one pass over activations, one over text if a model is there, one long table for all."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.activations import Activations
from mechanome.core import BadInput, Table, TooFewRows
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.metrics.legacy import LegacySums
from mechanome.dictionaries.metrics.loss_recovered import First, by_name, ce_recovered
from mechanome.dictionaries.metrics.matching import planted_mcc
from mechanome.dictionaries.metrics.measure import Measure
from mechanome.dictionaries.metrics.reconstruction import ReconstructionSums, reconstruction_measures
from mechanome.dictionaries.metrics.results import Result, Source, results_table
from mechanome.dictionaries.metrics.sparsity import FiringCounts, sparsity_measures
from mechanome.dictionaries.metrics.splits import EVERY, By, Split, chosen, splits
from mechanome.engine.asked import count, seed_of

if TYPE_CHECKING:
    from mechanome.engine import Model
    from mechanome.engine import memory as sizes
    from mechanome.engine.inputs import Inputs


@dataclass
class _Passed:
    """What one dictionary showed on the rows that passed."""

    sums: dict[str, ReconstructionSums]
    firing: FiringCounts
    legacy: LegacySums = field(default_factory=LegacySums)

    def update(self, rows: Activations, dictionary: Dictionary, parts: Mapping[str, Split], legacy: bool) -> None:
        x, target = (joined(rows, sites, dictionary) for sites in (dictionary.spec.sites_in, dictionary.spec.sites_out))
        with torch.no_grad():
            codes = dictionary.encode(x)
            made = dictionary.decode(codes, x)
        self.firing.update(codes)
        if legacy:
            self.legacy.update(target, made)
        units, active = rows.labels.get("seq"), codes.l0()
        for name, split in parts.items():
            mask = chosen(rows, name, split).to(target.device)
            own = None if units is None else units.to(target.device)[mask]
            self.sums[name].update(target[mask], made[mask], own, active[mask.to(active.device)])


def joined(rows: Activations, sites: Sequence[str], dictionary: Dictionary) -> Tensor:
    """Values of sites side by side, fp32, where the dictionary is; of the only site where it does not say which."""
    values = torch.cat([rows[site] for site in sites], dim=-1) if sites else rows.x
    return values.to(dictionary.norm.shift.device, torch.float32)


def evaluate(
    dictionaries: Dictionary | Mapping[str, Dictionary],
    data: Iterable[Activations] | Any,
    model: Model | None = None,
    texts: Inputs | None = None,
    *,
    rows: int | None = None,
    by: By = None,
    tokenizer: Any = None,
    features: Tensor | None = None,
    first: First = "replace",
    legacy: bool = False,
    run: str = "",
    method: str = "",
    seed: int = 0,
    budget: sizes.Budget = None,
) -> Table:
    """Measure dictionaries on held-out activations, and on text if a model is given.

    Args:
        dictionaries: one, or several by name, which becomes `dict_id`.
        data: batches of `Activations`; a store is read in order.
        model: for loss recovered; needs `texts`.
        texts: that losses are measured on.
        rows: stop after so many; None for one epoch of the data, which must then end.
        by: also on parts of the rows: "role", "token class" or own splits (`splits`).
        tokenizer: whose special tokens count as special; None for the model's.
        features: planted directions `[feature, d]`, for recovery.
        first: what loss recovered does at first positions (`ce_recovered`).
        legacy: also other tools' explained variance, to compare with their numbers.
        run, method: for the table. seed: of bootstraps. budget: of memory for losses.

    Returns:
        the long table, columns `COLUMNS`. Splits without rows are left out.

    Raises:
        BadInput: a model without texts or the reverse, no dictionary, a label that a split needs and is not there.
        TooFewRows: no rows. NotFinite, ShapeMismatch, UnknownSite: rows that do not fit.
    """
    named = by_name(dictionaries)
    seed = seed_of(seed)
    if (model is None) != (texts is None):
        raise BadInput("loss recovered", "it needs a model and texts", "give both, or neither")
    known = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    parts = splits(by, getattr(known, "all_special_ids", ()))
    sources = {name: _source(name, d, run, method) for name, d in named.items()}
    found: list[Result] = []
    with _timed() as spent:
        passed = _pass(named, data, rows, parts, legacy)
    for name, seen in passed.items():
        found += [sources[name].result(s, m, *spent) for s, m in _measures(seen, legacy, seed)]
    if features is not None:
        for name, d in named.items():
            found += [sources[name].result("planted", m) for m in planted_mcc(features, d.atoms())]
    if model is not None and texts is not None:
        found += _losses(model, named, texts, sources, first, seed, budget)
    return results_table(found, "dictionaries")


def _source(name: str, dictionary: Dictionary, run: str, method: str) -> Source:
    spec = dictionary.spec
    return Source(run, method, spec.architecture, ",".join(spec.sites_out), name, spec.provenance.get("seed"))


def _pass(
    named: Mapping[str, Dictionary],
    data: Iterable[Activations] | Any,
    rows: int | None,
    parts: Mapping[str, Split],
    legacy: bool,
) -> dict[str, _Passed]:
    passed = {
        name: _Passed({part: ReconstructionSums(d.spec.d_out) for part in parts}, FiringCounts(d.spec.width))
        for name, d in named.items()
    }
    seen = 0
    for batch in batches(data, rows):
        for name, dictionary in named.items():
            passed[name].update(batch, dictionary, parts, legacy)
        seen += batch.rows
    if not seen:
        raise TooFewRows("an evaluation", "the data have no rows", "give a stream or store with rows")
    return passed


def batches(data: Iterable[Activations] | Any, rows: int | None = None) -> Iterator[Activations]:
    """Batches of a stream, a store (one epoch, in order) or a list, up to so many rows.

    Raises:
        BadInput: no end: an endless stream without `rows`.
    """
    stream = data.stream(epochs=1, shuffle=False) if hasattr(data, "stream") else data
    if rows is None and getattr(stream, "epochs", 1) is None:
        raise BadInput("this stream", "it has no end", "say how many rows, or give a stream of one epoch")
    left = None if rows is None else count("rows", rows)
    for batch in stream:
        if not isinstance(batch, Activations):
            raise BadInput(
                "the data", f"they give a {type(batch).__name__}", "wrap rows as ArrayActivations(x, epochs=1)"
            )
        part = batch if left is None else batch.take(slice(0, left))
        yield part
        if left is not None:
            left -= part.rows
            if left <= 0:
                return


def _measures(seen: _Passed, legacy: bool, seed: int) -> Iterator[tuple[str, Measure]]:
    for part, sums in seen.sums.items():
        if sums.rows:
            yield from ((part, m) for m in reconstruction_measures(sums, seed))
    yield from ((EVERY, m) for m in sparsity_measures(seen.firing))
    if legacy:
        yield from ((EVERY, m) for m in seen.legacy.measures())


def _losses(
    model: Model,
    named: Mapping[str, Dictionary],
    texts: Inputs,
    sources: Mapping[str, Source],
    first: First,
    seed: int,
    budget: sizes.Budget,
) -> Iterator[Result]:
    """Dictionaries of the same sites are measured in one pass."""
    groups: dict[Any, dict[str, Dictionary]] = {}
    for name, d in named.items():
        groups.setdefault((d.spec.sites_in, d.spec.sites_out), {})[name] = d
    split = EVERY if first == "replace" else "all, first position kept"
    for same in groups.values():
        with _timed() as spent:
            losses = ce_recovered(model, same, texts, first=first, budget=budget)
        for name in same:
            yield from (sources[name].result(split, m, *spent) for m in losses.measures(name, seed))


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Seconds of a block and the largest memory of the process so far, in MB; filled when the block ends."""
    spent: list[float] = []
    start = time.perf_counter()
    yield spent
    unit = 1e-6 if sys.platform == "darwin" else 1024e-6  # getrusage counts bytes there, kibibytes elsewhere
    spent += [time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]
