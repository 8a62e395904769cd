"""The units of MLPs that carry a behavior: the effect of each measured exactly, and that of all together.

Units are chosen by a score, on some examples. Here they are measured, on others where there are others: each alone
carries what it carries on the counterfactual, then all of them, then as many other units of the same layers, drawn at
random, then every unit there is. All runs are of the whole model, with nothing else changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.certification import Certificate
from mechanome.circuits.circuit import Circuit
from mechanome.circuits.execution import execute
from mechanome.circuits.finding.plainly import measured_record
from mechanome.circuits.finding.unit_graph import UNITS
from mechanome.circuits.finding.unit_readings import UnitReading, readings
from mechanome.circuits.graph import Graph
from mechanome.circuits.measured import Measured, over_examples
from mechanome.circuits.metrics import faithfulness
from mechanome.circuits.scoring import scores
from mechanome.core import Table, track
from mechanome.engine import Batch
from mechanome.engine.memory import Budget

SHOWN = 10
"""Units that are measured, the strongest first."""
RANDOM_SETS = 8
"""Sets of other units that these are compared with."""
_AT_ONCE = 4
"""Circuits in memory at once: each is as large as the graph."""


@dataclass(frozen=True)
class Carrier:
    """One unit.

    Args:
        reading: what it reads and writes.
        score: what it was chosen by.
        effect: by how much the metric changes where it carries something else; negative where the answer needs it.
        share: of the whole effect, positive where it works for the answer; None without a whole effect.
        certified: "in", "out" or "abstain", where a certificate was asked for.
        elsewhere: its mean share on other examples, each with an effect of its own; None where there are none.
    """

    reading: UnitReading
    score: float
    effect: Measured
    share: float | None
    certified: str = ""
    elsewhere: float | None = None


@dataclass(frozen=True)
class Carriers:
    """Units of a model, measured.

    Args:
        kind: a name of `mechanome.circuits.finding.unit_graph.UNITS`.
        units: the strongest, strongest first.
        among: from how many they were chosen. every: how many the model has.
        ranked_by: the method whose scores chose them.
        examples: on how many they were measured.
        together: the share of the effect that is lost where all of them carry something else.
        chance: the same for each set of as many other units of the same layers.
        whole: the same for every unit of the model: what MLPs, cut like this, carry at all.
    """

    kind: str
    units: tuple[Carrier, ...]
    among: int
    every: int
    ranked_by: str
    examples: int
    together: Measured | None = None
    chance: tuple[float, ...] = field(default=(), repr=False)
    whole: Measured | None = None

    def certified(self, certificate: Certificate, sources: Sequence[int]) -> Carriers:
        """With what a certificate says of each.

        Args:
            certificate: of sources. sources: numbers of the units, in order.
        """
        place = {at[0]: n for n, at in enumerate(certificate.components.where.nonzero().tolist())}
        said = [certificate.decisions[place[i]] for i in sources]
        return replace(self, units=tuple(replace(unit, certified=word) for unit, word in zip(self.units, said)))

    def table(self) -> Table:
        """One row a unit."""
        rows = [
            (
                unit.reading.source,
                unit.share,
                *_ends(unit.effect),
                unit.score,
                unit.certified,
                unit.elsewhere,
                ", ".join(name for name, _ in unit.reading.detects),
                ", ".join(name for name, _ in unit.reading.card.promotes),
                ", ".join(name for name, _ in unit.reading.card.suppresses),
            )
            for unit in self.units
        ]
        columns = [
            "unit", "share of the effect", "exact effect", "from", "to", f"score by {self.ranked_by}", "certified",
            "share elsewhere", "detects", "promotes", "suppresses",
        ]  # fmt: skip
        return Table(columns, rows, repr(self))

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "kind": self.kind,
            "among": self.among,
            "every": self.every,
            "ranked_by": self.ranked_by,
            "examples": self.examples,
            "together": None if self.together is None else measured_record(self.together),
            "random": list(self.chance),
            "all_units": None if self.whole is None else measured_record(self.whole),
            "units": [_unit(unit) for unit in self.units],
        }

    def __repr__(self) -> str:
        return f"{len(self.units)} of {self.among:,} {UNITS[self.kind]}, measured on {self.examples} examples"


def strongest(graph: Graph, chosen: Tensor, values: Tensor, k: int = SHOWN) -> list[int]:
    """The units with the largest scores, as numbers of sources.

    Args:
        graph: with units. chosen: among which sources, `[source]` of booleans. values: scores, `[source]`. k: how many.
    """
    sizes = torch.where(chosen & graph.kinds("unit"), values.abs().nan_to_num(), -1.0)
    best = sizes.topk(min(k, len(sizes)))
    return [i for i, size in zip(best.indices.tolist(), best.values.tolist()) if size >= 0]


def carriers(
    graph: Graph,
    kind: str,
    sources: Sequence[int],
    values: Tensor,
    data: Any,
    texts: Batch,
    *,
    among: int,
    ranked_by: str,
    intervention: str = "patch",
    seed: int = 0,
    budget: Budget = None,
    quiet: bool = False,
) -> Carriers:
    """Measure units.

    Args:
        graph: made by `graph_of`. kind: how it is cut. sources: numbers of units, strongest first.
        values: what they were ranked by, `[source]`.
        data: what they are measured on, as `scores` takes it.
        texts: in which it is told where they are on.
        among: from how many they were chosen. ranked_by: by which method.
        intervention: what a unit carries instead. seed: of random sets. budget: memory. quiet: no progress line.

    Raises:
        NotFinite, BudgetTooSmall: as `scores` and `execute`.
    """
    every = int(graph.kinds("unit").sum())
    if not sources:
        return Carriers(kind, (), among, every, ranked_by, texts.rows)
    own = Circuit.of_nodes(graph, _mask(graph, sources))
    shared: dict[str, Any] = {"intervention": intervention, "budget": budget, "quiet": True}
    alone = scores(graph, data, method="exact", level="node", only=own, per_input=True, **shared)
    assert alone.each is not None
    sets = [list(sources), *_others(graph, sources, seed), graph.kinds("unit").nonzero()[:, 0].tolist()]
    lost, total = _lost(graph, sets, data, shared, quiet)
    effects = [_effect(alone.each[:, i]) for i in sources]
    told = readings(graph, sources, texts)
    units = (
        Carrier(reading, float(values[i]), effect, float(effect) / total if total else None)
        for reading, i, effect in zip(told, sources, effects)
    )
    chance = tuple(float(m) for m in lost[1:-1] if m.value is not None)
    return Carriers(kind, tuple(units), among, every, ranked_by, len(alone.clean), lost[0], chance, lost[-1])


def _mask(graph: Graph, sources: Sequence[int]) -> Tensor:
    mask = torch.zeros(len(graph.sources), dtype=torch.bool)
    mask[list(sources)] = True
    return mask


def _others(graph: Graph, sources: Sequence[int], seed: int) -> Iterator[list[int]]:
    """Sets of other units, as many of each layer, as far as it has so many."""
    generator, taken = torch.Generator().manual_seed(seed), set(sources)
    for _ in range(RANDOM_SETS):
        drawn: list[int] = []
        for group in graph.writers:
            inside = range(group.first, group.first + group.count)
            wanted = sum(i in inside for i in sources)
            if wanted:
                free = [i for i in inside if i not in taken]
                drawn += [free[n] for n in torch.randperm(len(free), generator=generator)[:wanted].tolist()]
        yield drawn


def _lost(
    graph: Graph, sets: Sequence[Sequence[int]], data: Any, shared: dict[str, Any], quiet: bool
) -> tuple[list[Measured], float]:
    """The share of the effect that is lost where some sources, and nothing else, carry something else; and the whole
    effect, in units of the metric."""
    pieces = [sets[i : i + _AT_ONCE] for i in range(0, len(sets), _AT_ONCE)]
    found: list[Measured] = []
    total = 0.0
    for some in track(pieces, "replacing units", quiet=quiet):
        done = execute([Circuit.of_nodes(graph, ~_mask(graph, each)) for each in some], data, **shared)
        found += [_rest(kept) for kept in faithfulness(done)]
        total = float((done.empty - done.clean).double().mean())
    return found, total


def _rest(kept: Measured) -> Measured:
    """One minus a share."""
    at = kept.interval
    turned = None if at is None else replace(at, estimate=1 - at.estimate, lo=1 - at.hi, hi=1 - at.lo)
    return Measured("lost", None if kept.value is None else 1 - kept.value, turned, kept.note)


def _effect(each: Tensor) -> Measured:
    return over_examples("effect", each.double().numpy(), lambda rows: float(rows.mean()))


def _ends(found: Measured) -> tuple[float | None, float | None, float | None]:
    at = found.interval
    return found.value, None if at is None else at.lo, None if at is None else at.hi


def _unit(unit: Carrier) -> dict[str, Any]:
    reading, card = unit.reading, unit.reading.card
    return {
        "name": reading.source,
        "layer": reading.layer,
        "index": reading.index,
        "score": unit.score,
        "effect": measured_record(unit.effect),
        "share": unit.share,
        "certified": unit.certified or None,
        "share_elsewhere": unit.elsewhere,
        "detector": reading.detector,
        "detects": _listed(reading.detects),
        "promotes": _listed(card.promotes),
        "suppresses": _listed(card.suppresses),
        "turned": reading.turned,
        "strength": card.strength,
        "rank": card.rank,
        "determined": card.determined,
        "on_at": [{"text": c.text, "gate": c.gate} for c in card.opens],
        "reversed_at": [{"text": c.text, "gate": c.gate} for c in card.closes],
    }


def _listed(scored: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"name": name, "score": score} for name, score in scored]
