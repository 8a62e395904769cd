"""The measurement of paper 50: dictionaries of every path, their errors on held-out dialogues, losses, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.activations import Activations, ArrayActivations
from mechanome.core import Interval, bootstrap
from mechanome.dictionaries import SparseAutoencoder, TopK, fit
from mechanome.dictionaries.fitting.ends import first_rows
from mechanome.dictionaries.fitting.fit import START
from mechanome.dictionaries.fitting.start import started
from mechanome.dictionaries.metrics import ReconstructionSums, Suffix, gsnr
from mechanome.engine import Model
from mechanome.studies.context import Context
from mechanome.studies.papers.fast_sae import MAIN, PATHS, SHOWN, SPLITS, Settings, pictures
from mechanome.studies.papers.fast_sae.paths import HeldOut, held_out, splits, token_rows, training
from mechanome.studies.study import Effect, Measured

STATES = ("fast", "blocks")
"""Paths at whose dictionaries gradients are measured."""
AGES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Positions in a dialogue from which its tokens are told apart, for what moves them."""
_RESAMPLES = 2000
_AT_ONCE = 8
"""Dialogues that losses are measured on at a time, of similar length."""

Found = Sequence[Mapping[str, Any]]
"""What each seed gave, as `_one` returns it."""


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    size, model = context.settings, context.model("chat")
    found = context.each("seed", context.seeds, lambda seed: _one(model, seed, size))
    effects = {**_errors(found), **_alone(found), **_losses(found), **_context(found), **_gradients(found)}
    told = [each["told"] for each in found]
    remarks = (
        f"Dialogues of each seed: {', '.join(str(len(each['moved']['blocks'])) for each in found)} trained on, "
        f"{size.dialogues} held out, for which {', '.join(str(each['left_out']) for each in told)} more were drawn and "
        f"left out as known. All begin with the same {told[0]['shared']} tokens.",
    )
    return Measured(effects, pictures.sections(found, size), remarks)


# What a seed measures ---------------------------------------------------------------------------------------------


def _one(model: Model, seed: int, size: Settings) -> dict[str, Any]:
    """Everything of one seed.

    Returns:
        error: per path and split, and scatter, cells: per split, sums of each held-out dialogue `[dialogue]`;
        blocks: errors in blocks, per path; loss: sums of each dialogue; live: latents, per path; isolated: the largest
        relative difference in each dialogue; moved: mean relative distance in each dialogue of training; ages: the
        same by position; gradients: one record a state; told: for the remarks.
    """
    rows, held = training(model, seed, size), held_out(model, seed, size)
    fits = {path: _fitted(rows[path], seed, size, size.steps) for path in PATHS}
    parts = splits(model, held.alone, held.shared)
    units = {path: _units(d, held.alone, parts) for path, d in fits.items()}
    own = next(iter(units.values()))
    moved = {path: _distance(rows[path], rows["fast"]) for path in ("blocks", "whole")}
    apart = _distance(held.isolated, held.alone)
    return {
        "error": {path: {split: each["error"] for split, each in of.items()} for path, of in units.items()},
        "scatter": {split: each["scatter"] for split, each in own.items()},
        "cells": {split: each["rows"] * fits["fast"].spec.d_in for split, each in own.items()},
        "blocks": {
            path: _units(d, held.blocks, {"all": torch.ones_like(parts["all"])}, "doc")["all"]["error"]
            for path, d in fits.items()
        },
        "loss": _loss(model, {path: fits[path] for path in MAIN}, held, size),
        "live": {path: int((d.encode(held.alone.x).counts() > 0).sum()) for path, d in fits.items()},
        "isolated": _by(apart, held.alone.labels["seq"], "amax"),
        "moved": {path: _by(x, rows["fast"].labels["seq"], "mean") for path, x in moved.items()},
        "ages": {path: _by_age(x, rows["fast"].labels["pos"]) for path, x in moved.items()},
        "gradients": _signals(rows, held.alone, fits, seed, size),
        "told": {"left_out": held.left_out, "shared": held.shared},
    }


def _stream(rows: Activations, seed: int, size: Settings) -> ArrayActivations:
    return ArrayActivations(rows, batch=size.batch, seed=seed)


def _fitted(rows: Activations, seed: int, size: Settings, steps: int) -> SparseAutoencoder:
    """A dictionary after so many steps. The rate is level, so what fewer steps give is on the way to what more do."""
    recipe, stream = TopK(size.width, k=size.k, aux_k=0), _stream(rows, seed, size)
    options = {"lr": size.lr, "warmup": 0.0, "decay": 0.0, "normalize": "scale"}
    done = fit(recipe, stream, steps=max(steps, 1), seed=seed, log_every=max(steps, 1), quiet=True, **options)
    if steps:
        return done.dictionary
    x = done.dictionary.norm(first_rows(_stream(rows, seed, size), START)[0].x)
    norm = done.dictionary.norm
    return started(recipe, done.dictionary.spec, norm, norm, x, x, seed).eval()


def _units(
    dictionary: SparseAutoencoder, rows: Activations, parts: Mapping[str, Tensor], label: str = "seq"
) -> dict[str, dict[str, np.ndarray]]:
    """Sums of each dialogue, per split."""
    with torch.no_grad():
        made = dictionary(rows.x)
    return {
        name: ReconstructionSums(rows.x.shape[1]).update(rows.x[mask], made[mask], rows.labels[label][mask]).units()
        for name, mask in parts.items()
    }


def _loss(model: Model, fits: Mapping[str, SparseAutoencoder], held: HeldOut, size: Settings) -> dict[str, np.ndarray]:
    """Cross-entropy of each dialogue, nats summed over tokens, with every dictionary's reconstructions and without."""
    ids = sorted(token_rows(held.alone)[: size.losses], key=len)
    found: dict[str, list[Tensor]] = {name: [] for name in ("tokens", "clean", *fits)}
    for start in range(0, len(ids), _AT_ONCE):
        suffix = Suffix(model, ids[start : start + _AT_ONCE], size.site)
        own = suffix.values()
        with torch.no_grad():
            losses = suffix.losses({path: dictionary(own) for path, dictionary in fits.items()})
        found["tokens"].append((~suffix.ce.isnan()).sum(1))
        found["clean"].append(suffix.ce.nansum(1))
        for path, each in losses.items():
            found[path].append(each.ce.nansum(1))
    return {name: torch.cat(parts).double().numpy() for name, parts in found.items()}


def _distance(rows: Activations, others: Activations) -> Tensor:
    """Relative distance of each activation to that of the same token elsewhere, `[row]`."""
    assert torch.equal(rows.labels["token"], others.labels["token"]), "the same tokens in the same order"
    return (rows.x - others.x).double().norm(dim=1) / others.x.double().norm(dim=1)


def _by(values: Tensor, groups: Tensor, how: str) -> Tensor:
    """The largest ("amax") or the mean of each group's values, `[group]`."""
    which = groups.unique_consecutive(return_inverse=True)[1]
    zeros = torch.zeros(int(which.max()) + 1, dtype=values.dtype, device=values.device)
    return zeros.scatter_reduce(0, which, values, how, include_self=False).cpu()


def _by_age(values: Tensor, pos: Tensor) -> Tensor:
    """Means by position, `[age]`; NaN where there is no such position."""
    age = torch.bucketize(pos, torch.tensor(AGES, device=pos.device), right=True)
    return torch.stack([values[age == i].mean() for i in range(len(AGES) + 1)]).cpu()


def _signals(
    rows: Mapping[str, Activations],
    clean: Activations,
    fits: Mapping[str, SparseAutoencoder],
    seed: int,
    size: Settings,
) -> list[dict[str, Any]]:
    """Gradients of all paths at every state."""
    found = []
    for path in STATES:
        for step in size.at:
            state = fits[path] if step == size.steps else _fitted(rows[path], seed, size, step)
            held = gsnr(state, _stream(clean, seed, size), clean.rows // size.batch)
            record: dict[str, Any] = {"path": path, "step": step}
            for name in MAIN:
                signal = gsnr(state, _stream(rows[name], seed, size), size.batches)
                record[name] = {
                    "aligned": signal.alignment(held),
                    "gsnr": signal.median,
                    "gsnr-mean": signal.average,
                    "silent": signal.silent / len(signal.mean),
                }
            found.append(record)
    return found


# From what was stored ---------------------------------------------------------------------------------------------


def _ratio(over: Sequence[Any], under: Sequence[Any], log: bool = True) -> Effect:
    """log2 of a ratio of sums over dialogues, or the ratio; the note gives each seed's."""

    def value(sums: np.ndarray) -> float:
        share = sums[:, 0].sum() / sums[:, 1].sum()
        return float(np.log2(share) if log else share)

    pairs = [np.stack([np.asarray(a), np.asarray(b)], 1) for a, b in zip(over, under)]
    return _of_dialogues(pairs, value)


def _first(over: Sequence[Any], under: Sequence[Any]) -> Effect:
    """log2 of ratios of sums, one a seed: all dialogues of a seed have the same first activation."""
    return _of_seeds([float(np.log2(np.sum(a) / np.sum(b))) for a, b in zip(over, under)])


def _of_dialogues(pairs: Sequence[np.ndarray], value: Any) -> Effect:
    """A function of sums, over all seeds' dialogues `[dialogue, quantity]`."""
    said = ", ".join(f"{value(each):.3f}" for each in pairs)
    interval = bootstrap(np.concatenate(pairs), value, resamples=_RESAMPLES)
    return Effect(interval, f"resampled over dialogues; by seed {said}")


def _of_seeds(values: Sequence[float], note: str = "resampled over seeds") -> Effect:
    return Effect(bootstrap(values), f"{note}; by seed {', '.join(f'{value:.4g}' for value in values)}")


def _between(found: Found, path: str, other: str, split: str = "all") -> Effect:
    """Error of one path over that of another, log2."""
    return _ratio([each["error"][path][split] for each in found], [each["error"][other][split] for each in found])


def _errors(found: Found) -> dict[str, Effect]:
    return {
        "fast-error": _between(found, "fast", "blocks"),
        "fast-error-special": _between(found, "fast", "blocks", "special"),
        "blocks-error": _between(found, "blocks", "prose"),
        "blocks-error-special": _between(found, "blocks", "prose", "special"),
        "isolated-error": _between(found, "isolated", "fast"),
        "leak-error": _between(found, "whole", "fast"),
        "cut-error": _between(found, "blocks", "whole"),
        "own-error": _between(found, "fast", "blocks", "own"),
        "own-error-special": _between(found, "fast", "blocks", "own-special"),
        "in-blocks": _ratio([each["blocks"]["fast"] for each in found], [each["blocks"]["blocks"] for each in found]),
    }


def _alone(found: Found) -> dict[str, Effect]:
    """Each path by itself."""
    effects = {}
    for path in SHOWN:
        for split in SPLITS:
            errors, cells = [each["error"][path][split] for each in found], [each["cells"][split] for each in found]
            made = _first if split == "first" else _ratio
            effects[f"log2-{split}-{path}"] = made(errors, cells)
        missed = _ratio([e["error"][path]["rest"] for e in found], [e["scatter"]["rest"] for e in found], log=False)
        effects[f"explained-{path}"] = Effect(_from_one(missed.interval), "resampled over dialogues, mean held fixed")
        effects[f"live-{path}"] = _of_seeds([each["live"][path] for each in found])
    return effects


def _from_one(of: Interval | None) -> Interval:
    """1 minus an interval."""
    assert of is not None
    return replace(of, estimate=1 - of.estimate, lo=1 - of.hi, hi=1 - of.lo)


def _losses(found: Found) -> dict[str, Effect]:
    def rise(sums: np.ndarray, column: int) -> float:
        return float((sums[:, column] - sums[:, 0]).sum() / sums[:, 0].sum())

    columns = [np.stack([each["loss"][name] for name in ("clean", *MAIN)], 1) for each in found]
    places = {path: i for i, path in enumerate(MAIN, 1)}
    fast, blocks = places["fast"], places["blocks"]
    return {
        "loss": _of_dialogues(columns, lambda sums: abs(rise(sums, fast)) - abs(rise(sums, blocks))),
        **{f"delta-{path}": _of_dialogues(columns, lambda sums, i=i: rise(sums, i)) for path, i in places.items()},
    }


def _context(found: Found) -> dict[str, Effect]:
    """What the other tokens of a block do to activations."""
    largest = torch.cat([each["isolated"] for each in found])
    return {
        "isolated-same": Effect(
            bootstrap(largest, lambda x: float(x.max()), resamples=_RESAMPLES, method="percentile"),
            "resampled over held-out dialogues",
        ),
        **{
            f"moved-{path}": Effect(bootstrap(torch.cat([each["moved"][path] for each in found])), "over dialogues")
            for path in ("blocks", "whole")
        },
    }


def _gradients(found: Found) -> dict[str, Effect]:
    def means(path: str, what: str) -> list[float]:
        return [float(np.mean([state[path][what] for state in each["gradients"]])) for each in found]

    gain = [a - b for a, b in zip(means("fast", "aligned"), means("blocks", "aligned"))]
    states = [
        np.mean([each["gradients"][i]["fast"]["aligned"] - each["gradients"][i]["blocks"]["aligned"] for each in found])
        for i in range(len(found[0]["gradients"]))
    ]
    named = ", ".join(f"{s['path']} {s['step']}: {v:.3f}" for s, v in zip(found[0]["gradients"], states))
    return {
        "alignment": _of_seeds(gain, f"mean over states, resampled over seeds; by state {named}"),
        **{
            f"{what}-{path}": _of_seeds(means(path, what), "mean over states, resampled over seeds")
            for what in ("aligned", "gsnr", "gsnr-mean", "silent")
            for path in MAIN
        },
    }
