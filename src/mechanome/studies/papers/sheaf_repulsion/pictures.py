"""Pictures of paper 10's study: two sheaves side by side, what all share, the trade-off, few edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechanome.circuits import SideBySide
from mechanome.circuits.sheaves import iou_matrix, shared_edges
from mechanome.report import HeatMap, Meter, Section, Sheet, number

if TYPE_CHECKING:
    from mechanome.studies.papers.sheaf_repulsion import Settings
    from mechanome.studies.papers.sheaf_repulsion.measuring import Packed, Stored

_ENDS = ("", "the same edges")


def sections(stored: Stored, size: Settings) -> tuple[Section, ...]:
    """The study's sections, in order."""
    small = (_two(stored), _each(stored), _alike(stored), _common(stored), _trade(stored, size), _few(stored, size))
    return (*small, _language(stored)) if stored.language else small


def _two(stored: Stored) -> Section:
    first, second = stored.circuits(stored.sheaves[0])[:2]
    lead = ("The first two sheaves of the first seed. The second was trained away from the first.",)
    return Section(
        "Two circuits for one task", lead, SideBySide(first, second, ("first sheaf", "second sheaf"), most=80)
    )


def _each(stored: Stored) -> Section:
    rows = _does("repulsion", stored.sheaves[0]) + _does("restart", stored.restarts[0])
    lead = ("Accuracy on other prompts than those of the training, first seed.",)
    return Section("What each does", lead, Sheet(_DOES, rows))


_DOES = (("sheaf", ""), ("edges", "after pruning"), ("accuracy", "alone"), ("without it", "0.5 is chance"),
         ("random", "accuracy of a random circuit of its size"))  # fmt: skip


def _does(kind: str, found: Packed, first: int = 1) -> list[list[str | Meter]]:
    """One row a sheaf, for `_DOES`."""
    sizes = [int(edges.sum()) for edges in found["edges"]]
    return [
        [f"{kind} {i}", str(edges), Meter(right), number(without), number(random)]
        for i, (edges, right, without, random) in enumerate(zip(sizes, *_measured(found)), first)
    ]


def _measured(found: Packed) -> tuple[list[float], ...]:
    return tuple(found[name].double().mean(1).tolist() for name in ("right", "without", "random"))


def _alike(stored: Stored) -> Section:
    circuits = [*stored.circuits(stored.sheaves[0]), *stored.circuits(stored.restarts[0])]
    k = len(circuits) // 2
    names = [f"{kind} {i + 1}" for kind in ("repulsion", "restart") for i in range(k)]
    values = [[None if v != v else v for v in row] for row in iou_matrix(circuits).tolist()]
    lead = ("IoU of every pair of sheaves, first seed. Restarts 2 and so on differ from the first in their draws "
            "alone.",)  # fmt: skip
    return Section("How much they share", lead, HeatMap(names, names, values, "sheaf", "sheaf", (k,), _ENDS))


def _common(stored: Stored) -> Section:
    rows, values = [], []
    for kind, sets in (("repulsion", stored.sheaves), ("restart", stored.restarts)):
        for seed, found in enumerate(sets, 1):
            rows.append(f"{kind}, model {seed}")
            values.append([s.mutual for s in shared_edges(stored.circuits(found))])
    columns = [str(i + 1) for i in range(len(values[0]))]
    lead = ("Edges that the first K sheaves all have, over those that any of them has.",)
    return Section("What all share", lead, HeatMap(rows, columns, values, "K", "sheaves", ends=_ENDS))


def _trade(stored: Stored, size: Settings) -> Section:
    names = [number(weight) for weight in size.repulsions]
    first, found = stored.circuits(stored.sheaves[0])[0], stored.trade_off[0]
    ious = [float(iou_matrix([first, other])[0, 1]) for other in stored.circuits(found)]
    rows = [
        [name, str(len(circuit)), Meter(right), number(without), number(shared)]
        for name, circuit, right, without, shared in zip(names, stored.circuits(found), *_measured(found)[:2], ious)
    ]
    columns = (("repulsion", "weight"), ("edges", ""), ("accuracy", "alone"), ("without it", ""),
               ("IoU", "with the first sheaf"))  # fmt: skip
    lead = (f"A second sheaf under stronger repulsion than the study's {number(size.repel)}; first seed.",)
    return Section("What repulsion costs", lead, Sheet(columns, rows))


def _few(stored: Stored, size: Settings) -> Section:
    found = stored.few[0]
    rows: list[list[str | Meter]] = [
        [f"sparsity {number(weight)}", str(len(circuit)), Meter(right)]
        for weight, circuit, right in zip(size.levels, stored.circuits(found["ladder"]), _measured(found["ladder"])[0])
    ]
    if found["others"] is not None:
        names, others = found["chosen"], found["others"]
        rows += [
            [f"without {edge}", str(len(circuit)), Meter(right)]
            for edge, circuit, right in zip(names, stored.circuits(others), _measured(others)[0])
        ]
    lead = ("Sheaves of rising sparsity; then, where one of at most three edges was found, sheaves that may not use "
            "one of its edges. First seed.",)  # fmt: skip
    return Section(
        "Is any edge indispensable?", lead, Sheet((("sheaf", ""), ("edges", ""), ("accuracy", "alone")), rows)
    )


def _language(stored: Stored) -> Section:
    rows = [row for i, found in enumerate(stored.language, 1) for row in _does("sheaf", found, i)]
    lead = (f"Sheaves of the language model, one after the other, of {stored.language[0]['total']:,} edges.",)
    return Section("The language model", lead, Sheet(_DOES, rows))
