"""The measurement of paper 05: contributions, removals, concentration, cost; then intervals from what was stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.native import MLPUnits, Vocabulary, detector_effector_units, kurtosis, sca
from mechanome.core import Interval, bootstrap, paired_bootstrap
from mechanome.engine import Model
from mechanome.studies.context import Context
from mechanome.studies.papers.nana import BASES, Settings, dictionary, pictures, removing
from mechanome.studies.papers.nana.prompts import TASKS, kept, part
from mechanome.studies.study import Effect, Measured

_TOP = 0.01
"""The share of units that concentration is about."""


@dataclass(frozen=True)
class Stored:
    """Everything that was measured, before any statistic.

    Args:
        removals: per seed and task, as `removing.cell` returns them.
        shares: per seed and task, base to the share of the top units `[prompt]`, plain and centred.
        reading: per seed, of its top units: alike, peaked, of random directions likewise, and the units `[unit, 2]`.
        costs: per seed, seconds.
        right, drawn: prompts, by task.
    """

    removals: Sequence[Mapping[str, Any]] = field(repr=False)
    shares: Sequence[Mapping[str, Any]] = field(repr=False)
    reading: Sequence[Mapping[str, Any]] = field(repr=False)
    costs: Sequence[Mapping[str, Any]] = field(repr=False)
    right: Mapping[str, int]
    drawn: Mapping[str, int]


def measure(context: Context[Settings]) -> Measured:
    """The study's measurement, at any tier."""
    stored = _stored(context)
    effects = {**_removals(stored.removals), **_shares(stored.shares), **_reading(stored.reading)}
    effects |= _costs(stored.costs)
    counts = "; ".join(f"{task} {n} of {stored.drawn[task]}" for task, n in stored.right.items())
    used = sum(len(cell["whole"]) for cell in stored.removals)
    remarks = (f"Done right: {counts}. Units were removed on {used} prompts that did not choose them.",)
    return Measured(effects, pictures.sections(stored, context.settings), remarks)


def _stored(context: Context[Settings]) -> Stored:
    """Run the model. Each part is small and survives a kill."""
    size, model = context.settings, context.model("decoder")
    layers = range(0, model.n_layers, size.layers)
    cells = [(seed, task) for seed in context.seeds for task in TASKS]
    drawn = context.each("prompts", cells, lambda at: kept(model, at[1], at[0], size.prompts, size.candidates))
    prompts = dict(zip(cells, drawn))
    costs = context.each(
        "cost", context.seeds, lambda seed: _cost(model, seed, prompts[seed, "capitals"], size, layers)
    )

    @cache
    def units() -> MLPUnits:
        return detector_effector_units(model, layers)

    removals = context.each("removals", cells, lambda at: removing.cell(units(), prompts[at], at[0], size))
    reading = context.each(
        "reading", context.seeds, lambda s: _read(units(), [prompts[s, task] for task in TASKS], s, size)
    )
    shares: list[dict[str, Any]] = [{} for _ in cells]
    for base in BASES:
        for seed in context.seeds:
            own = [prompts[seed, task] for task in TASKS]
            found = context.part(f"share {base} {seed}", lambda: _share(model, base, seed, own, layers))  # noqa: B023
            for task, values in zip(TASKS, found):
                shares[cells.index((seed, task))][base] = values
    totals = ({task: sum(prompts[seed, task][what] for seed in context.seeds) for task in TASKS}
              for what in ("right", "drawn"))  # fmt: skip
    return Stored(removals, shares, reading, costs, *totals)


def _share(
    model: Model, base: str, seed: int, prompts: Sequence[Mapping[str, Any]], layers: Sequence[int]
) -> list[dict[str, Tensor]]:
    """Per task, the share of contributions that the top units of each prompt hold."""
    units = detector_effector_units(model, layers, how=base, seed=seed)
    top = max(1, round(_TOP * len(units)))
    found = []
    for rows in prompts:
        whole = sca(units, *part(model, rows, 0, len(rows["ids"])))
        found.append({"plain": whole.covered([top])[:, 0], "centred": whole.centred().covered([top])[:, 0]})
    return found


def _read(units: MLPUnits, prompts: Sequence[Mapping[str, Any]], seed: int, size: Settings) -> dict[str, Any]:
    """Coherence and peakedness of what the strongest units of all tasks write, and of random directions."""
    found = [sca(units, *part(units.model, rows, 0, len(rows["ids"]))) for rows in prompts]
    total = torch.stack([each.size / each.size.sum() for each in found]).sum(0)
    chosen = found[0].top(size.top, by=total)
    own = torch.stack([units[layer].right[unit] for layer, unit in chosen])
    random = torch.randn(size.directions, own.shape[1], generator=torch.Generator().manual_seed(seed))
    vocabulary = Vocabulary.of(units.model)
    read: dict[str, Any] = {"units": torch.tensor(chosen), "share": total[_rows(found[0].each, chosen)] / len(prompts)}
    for name, directions in (("own", own), ("random", random / random.norm(dim=1, keepdim=True))):
        scores = torch.cat([_turned(vocabulary.promoted(some)) for some in directions.split(100)])
        read[f"alike-{name}"], read[f"peaked-{name}"] = vocabulary.coherence(scores), kurtosis(scores)
        if name == "own":
            read["tokens"] = [list(vocabulary.tokens(row.topk(6).indices.tolist())) for row in scores[:12]]
    return read


def _rows(each: Tensor, chosen: Sequence[tuple[int, int]]) -> list[int]:
    where = {(layer, unit): i for i, (layer, unit) in enumerate(each.tolist())}
    return [where[at] for at in chosen]


def _turned(scores: Tensor) -> Tensor:
    """With the sign that makes the strongest score positive, as a card has it."""
    return scores * scores.gather(1, scores.abs().argmax(1, keepdim=True)).sign()


def _cost(model: Model, seed: int, prompts: Mapping[str, Any], size: Settings, layers: Sequence[int]) -> dict[str, Any]:
    """Processor seconds of cutting all layers, scoring one batch, and training a dictionary on one layer."""
    start = time.process_time()
    units = detector_effector_units(model, layers)
    cut = time.process_time() - start
    start = time.process_time()
    sca(units, *part(model, prompts, 0, len(prompts["ids"])))
    scored = time.process_time() - start
    data = dictionary.outputs(model, model.n_layers // 2, size.texts)
    found = dictionary.trained(data, seed, size.steps)
    return {"svd": cut, "sca": scored, "layers": len(layers), **found}


# Intervals -----------------------------------------------------------------------------------------------------------


def _removals(cells: Sequence[Mapping[str, Any]]) -> dict[str, Effect]:
    def over(name: str) -> Tensor:
        return torch.cat([cell[name] for cell in cells]).double()

    drops = {name: over("whole") - over(name) for name in ("top", "gradient", "random", "sigma", "neurons")}
    tasks = list(TASKS) * (len(cells) // len(TASKS))
    by_task = {task: [c["whole"] - c["top"] for c, t in zip(cells, tasks) if t == task] for task in TASKS}
    means = ", ".join(f"{task} {float(torch.cat(rows).mean()):.2f}" for task, rows in by_task.items())
    length = float(torch.tensor([cell["matched"] for cell in cells]).mean())
    note = "paired, resampled over prompts"
    effects = {
        "exact-output": Effect(bootstrap(over("output"))),
        "exact-shares": Effect(bootstrap(over("attribution"))),
        "beats-random": Effect(
            paired_bootstrap(drops["top"], 5 * drops["random"]),
            f"{note}; random units' outputs are {length:.2f} times as long; drop by task: {means}",
        ),
        "beats-sigma": Effect(paired_bootstrap(drops["top"], 1.5 * drops["sigma"]), note),
        "logit-difference": Effect(bootstrap(over("whole"))),
        "kept-recovered": Effect(bootstrap(over("kept").reshape(-1, len(cells[0]["sizes"]))[:, -1] / over("whole"))),
    }
    effects |= {f"drop-{name}": Effect(bootstrap(values)) for name, values in drops.items()}
    each = {name: [float(cell[f"ranks-{name}"]) for cell in cells] for name in ("gradient", "direct")}
    listed = ", ".join(f"{value:.2f}" for value in each["gradient"])
    ranks = f"mean over {len(cells)} pairs of seed and task ({listed}), resampled over them"
    effects |= {f"{name}-ranks": Effect(_mean(values), ranks) for name, values in each.items()}
    return effects


def _mean(values: Sequence[float]) -> Interval | None:
    return bootstrap(values) if len(values) > 1 else None


def _shares(cells: Sequence[Mapping[str, Any]]) -> dict[str, Effect]:
    share = {base: torch.cat([cell[base]["plain"] for cell in cells]) for base in BASES}
    centred = {base: torch.cat([cell[base]["centred"] for cell in cells]) for base in BASES}
    note = "paired, resampled over prompts"
    return {
        "concentrated": Effect(paired_bootstrap(share["svd"], share["rotated"]), note),
        "over-neurons": Effect(paired_bootstrap(share["svd"], share["neurons"]), note),
        "over-rotated-within": Effect(paired_bootstrap(share["svd"], share["rotated-within"]), note),
        "centred-concentrated": Effect(paired_bootstrap(centred["svd"], centred["rotated"]), note),
        **{f"share-{base}": Effect(bootstrap(values)) for base, values in share.items()},
    }


def _reading(found: Sequence[Mapping[str, Any]]) -> dict[str, Effect]:
    """The chance that a unit beats a random direction, over units; a unit that several seeds name counts once."""
    above: dict[str, dict[tuple[int, ...], float]] = {"alike": {}, "peaked": {}}
    for one in found:
        for name, rows in above.items():
            wins = (one[f"{name}-own"][:, None] > one[f"{name}-random"][None]).double().mean(1)
            rows |= {tuple(unit): float(win) for unit, win in zip(one["units"].tolist(), wins)}
    note = f"{len(above['alike'])} units, resampled; against {len(found[0]['alike-random'])} random directions a seed"
    return {
        "coherent": Effect(bootstrap(list(above["alike"].values()), level=0.99), note),
        "peaked": Effect(bootstrap(list(above["peaked"].values())), note),
    }


def _costs(costs: Sequence[Mapping[str, Any]]) -> dict[str, Effect]:
    ratios = [c["seconds"] / ((c["svd"] + c["sca"]) / c["layers"]) for c in costs]
    reached = sum(bool(c["reached"]) for c in costs)
    steps = ", ".join(str(c["steps"]) for c in costs)
    note = f"{reached} of {len(costs)} dictionaries reached FVU 0.3; steps: {steps}; resampled over seeds"
    single = "" if len(costs) > 1 else "a single seed"
    return {
        "cheaper": Effect(_mean(ratios), single or note),
        "seconds-svd": Effect(_mean([c["svd"] for c in costs]), single),
        "seconds-sca": Effect(_mean([c["sca"] for c in costs]), single),
        "seconds-dictionary": Effect(_mean([c["seconds"] for c in costs]), single),
        "dictionary-fvu": Effect(_mean([c["fvu"] for c in costs]), single),
    }
