"""Removals of paper 05's study: one task and seed; half of the prompts choose units, the other half lose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mechanome.attribution import direct_logit_attribution
from mechanome.circuits.native import MLPUnits, ablate_units, detector_effector_units, keep_units, sca
from mechanome.core import spearman
from mechanome.engine import Batch, Edit, LogitDiff
from mechanome.studies.papers.nana import Settings
from mechanome.studies.papers.nana.prompts import part

Unit = tuple[int, int]
_NEAREST = 20
"""Units of similar output length that a random one is drawn from."""


def cell(units: MLPUnits, prompts: Mapping[str, Any], seed: int, size: Settings) -> dict[str, Any]:
    """Everything of one task and seed that needs the model.

    Returns:
        whole, top, gradient, random, sigma, neurons: logit differences `[prompt]` of the held-out prompts, as they are
        and without units; kept: with only the best units, `[prompt, size]`; sizes; output, attribution: errors of sums
        `[prompt]`; ranks-gradient, ranks-direct: correlations with single removals; matched: length of random units'
        outputs over that of the chosen ones'.
    """
    model, n = units.model, len(prompts["ids"])
    own, held = part(model, prompts, 0, n // 2), part(model, prompts, n // 2, n)
    direct = sca(units, *own)
    top = direct.top(size.removed)
    estimated = sca(units, *own, mode="gradient").top(size.removed)
    sigma = _strongest(units, size.removed)
    neurons = detector_effector_units(model, units.layers, how="neurons")
    length = _lengths(units, own[0])
    drawn = [_matched(units, top, length, seed * size.draws + i) for i in range(size.draws)]
    mean = units.mean(own[0])
    kept = [
        _difference(units, held, keep_units(units, direct.top(k, by=direct.size), fill=mean, pos="last"))
        for k in size.kept
    ]

    def without(source: MLPUnits, chosen: Sequence[Unit]) -> Tensor:
        return _difference(source, held, ablate_units(source, chosen, pos="last"))

    return {
        "whole": _difference(units, held, []),
        "top": without(units, top),
        "gradient": without(units, estimated),
        "random": torch.stack([without(units, some) for some in drawn]).mean(0),
        "sigma": without(units, sigma),
        "neurons": without(neurons, sca(neurons, *own).top(size.removed)),
        "kept": torch.stack(kept, 1).flatten(),
        "sizes": list(size.kept),
        "matched": _sum(length, [u for some in drawn for u in some]) / (size.draws * _sum(length, top)),
        **_errors(units, held),
        **_ranks(units, prompts, seed, size),
    }


def _difference(units: MLPUnits, data: tuple[Batch, LogitDiff], edits: Sequence[Edit]) -> Tensor:
    batch, metric = data
    logits = units.model.run(batch, edits=edits, logits="last").logits
    assert logits is not None
    return metric(logits, torch.arange(batch.rows)).double()


def _strongest(units: MLPUnits, k: int) -> list[Unit]:
    """Units with the largest singular values of all layers."""
    values = torch.cat([units[layer].values for layer in units.layers])
    return [(int(layer), int(unit)) for layer, unit in units.each[values.topk(k).indices].tolist()]


def _lengths(units: MLPUnits, batch: Batch) -> dict[Unit, float]:
    """Mean length of what each unit writes at the last position."""
    run = units.model.run(batch, capture=[units.site(layer) for layer in units.layers], pos="last", logits=False)
    found: dict[Unit, float] = {}
    for layer in units.layers:
        size = (units.gates(layer, run[units.site(layer)]).abs() * units[layer].values).mean(0)
        found |= {(layer, i): value for i, value in enumerate(size.tolist())}
    return found


def _matched(units: MLPUnits, chosen: Sequence[Unit], length: Mapping[Unit, float], seed: int) -> list[Unit]:
    """For each chosen unit another one, drawn among those whose output is closest in length."""
    generator = torch.Generator().manual_seed(seed)
    free = {unit: length[unit] for unit in length if unit not in set(chosen)}
    found = []
    for unit in sorted(chosen, key=lambda u: -length[u]):
        near = sorted(free, key=lambda u: abs(free[u] - length[unit]))[:_NEAREST]
        one = near[int(torch.randint(len(near), (1,), generator=generator))]
        found.append(one)
        del free[one]
    return found


def _sum(length: Mapping[Unit, float], some: Sequence[Unit]) -> float:
    return sum(length[unit] for unit in some)


def _errors(units: MLPUnits, data: tuple[Batch, LogitDiff]) -> dict[str, Tensor]:
    """How far sums of units are from what they should be, the worst layer of each prompt."""
    batch, metric = data
    model = units.model
    sites = [s for layer in units.layers for s in (units.site(layer), f"mlp_out.{layer}")]
    run = model.run(batch, capture=sites, pos="last", logits=False)
    output = []
    for layer in units.layers:
        total = units.gates(layer, run[units.site(layer)]) * units[layer].values @ units[layer].right + units.bias(
            layer
        )
        exact = run[f"mlp_out.{layer}"]
        output.append((total - exact).norm(dim=-1) / exact.norm(dim=-1))
    shares = direct_logit_attribution(model, batch, metric.answer, metric.foil, heads=False)  # type: ignore[arg-type]
    columns = [shares.parts.index(f"mlp_out.{layer}") for layer in units.layers]
    apart = (sca(units, batch, metric).by_layer() - shares.shares[:, columns]).abs().amax(1)
    return {"output": torch.stack(output).amax(0).double(), "attribution": apart / shares.total.abs()}


def _ranks(units: MLPUnits, prompts: Mapping[str, Any], seed: int, size: Settings) -> dict[str, float]:
    """Rank correlations of estimates with exact single removals, over random units, on the same prompts."""
    n = len(prompts["ids"])
    data = part(units.model, prompts, n // 2, n // 2 + size.ablated)
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed))[: size.sampled]
    chosen = [(int(layer), int(unit)) for layer, unit in units.each[order].tolist()]
    exact = sca(units, *data, mode="ablation", chosen=chosen, quiet=True)
    found = {}
    for mode in ("gradient", "direct"):
        estimate = sca(units, *data, mode=mode)
        at = {(layer, unit): i for i, (layer, unit) in enumerate(estimate.each.tolist())}
        rows = [at[layer, unit] for layer, unit in exact.each.tolist()]
        found[f"ranks-{mode}"] = spearman(estimate.mean[rows], exact.mean, resamples=1).estimate
    return found
