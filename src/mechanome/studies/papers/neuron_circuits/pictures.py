"""Pictures of paper 20's study: curves of circuits, where their neurons are, their edges, and steering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from mechanome.circuits.neurons import ratio
from mechanome.report import HeatMap, Section, Sheet, number
from mechanome.studies.papers.neuron_circuits import BASES, KINDS, SCALES, Settings

if TYPE_CHECKING:
    from mechanome.studies.papers.neuron_circuits.measuring import Stored


def sections(stored: Stored, size: Settings) -> tuple[Section, ...]:
    """All of them."""
    return (_curves(stored), _bases(stored), _places(stored), _wired(stored), _steered(stored, size))


def _ratios(runs: Sequence[Mapping[str, Any]], what: str) -> list[float]:
    found = []
    for i in range(len(runs[0]["sizes"])):
        rows = torch.cat([torch.stack([r[what][i], r["clean"], r["empty"]], 1) for r in runs])
        found.append(ratio(rows.double().numpy()))
    return found


def _table(named: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sheet:
    rows = []
    for name, runs in named.items():
        for n, f, c in zip(runs[0]["sizes"], _ratios(runs, "values"), _ratios(runs, "without")):
            rows.append([name, str(n), number(f), number(c)])
    columns = (("circuit", ""), ("nodes", ""), ("faithfulness", "1: does what the model does"),
               ("completeness", "0: nothing is left without it"))  # fmt: skip
    return Sheet(columns, rows)


def _curves(stored: Stored) -> Section:
    named: dict[str, Sequence[Mapping[str, Any]]] = {}
    for kind in KINDS:
        cells = [cell for at, cell in stored.circuits.items() if at[0] == kind]
        named |= {f"{kind}, {method}": [cell[method] for cell in cells] for method in ("relp", "gradient", "random")}
        if integrated := [runs for at, runs in stored.integrated.items() if at[0] == kind]:
            named[f"{kind}, integrated gradients"] = integrated
    lead = ("Circuits of neurons found on some nouns, run on others: only they speak, all other neurons are at their "
            "means; or all but they.",)  # fmt: skip
    return Section("Circuits of neurons", lead, _table(named))


def _bases(stored: Stored) -> Section:
    named = {base: [found[base] for found in stored.bases] for base in BASES}
    lead = ("The same by RelP on the simple template, with other parts as nodes.",)
    return Section("Other parts as nodes", lead, _table(named))


def _places(stored: Stored) -> Section:
    kind, cells = "nounpp", [cell["layers"] for at, cell in stored.circuits.items() if at[0] == "nounpp"]
    mean = torch.stack(cells).double().mean(0)
    words = ("The", "subject", "near", "the", "other noun")
    picture = HeatMap(list(words), [str(i) for i in range(len(mean))], mean.T.tolist(), "layer", "token")
    lead = (f"How many of the top neurons are where, {kind}; means over seeds.",)
    return Section("Where the neurons are", lead, picture)


def _wired(stored: Stored) -> Section:
    rows = [[source, target, number(gives), f"{100 * share:.0f} %"] for source, target, gives, share in stored.edges]
    columns = (("from", ""), ("to", ""), ("gives", "to its activation, or to the metric"), ("share", "of the target"))
    lead = ("The strongest direct edges among the top neurons of the simple template, first seed, relative to what the "
            "target's activation is on average.",)  # fmt: skip
    return Section("Edges", lead, Sheet(columns, rows))


def _steered(stored: Stored, size: Settings) -> Section:
    found = stored.facts
    rows = [
        [city, *(number(float(p)) for p in scaled), number(float(random))]
        for city, scaled, random in zip(found["cities"], found["scaled"], found["random"])
    ]
    columns = (("city", ""), *((f"x {factor:g}", "") for factor in SCALES), ("random x 0", "as active neurons"))
    lead = (f"Probability of the state when the {size.steered} neurons that are specific to it are multiplied.",)
    return Section("Steering what state a city is in", lead, Sheet(columns, rows))
