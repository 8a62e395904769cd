"""Pictures of paper 05's study: removals, concentration, and what the strongest units write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from mechanome.report import HeatMap, Section, Sheet, number
from mechanome.studies.papers.nana import BASES, Settings
from mechanome.studies.papers.nana.prompts import TASKS

if TYPE_CHECKING:
    from mechanome.studies.papers.nana.measuring import Stored

_REMOVED = {
    "top": "most contribution",
    "gradient": "most first-order contribution",
    "neurons": "most contribution, neurons",
    "sigma": "largest singular values",
    "random": "random, outputs as long",
}


def sections(stored: Stored, size: Settings) -> tuple[Section, ...]:
    """All of them."""
    return (_removed(stored, size), _kept(stored, size), _held(stored), _strongest(stored))


def _by_task(stored: Stored) -> Mapping[str, list]:
    tasks = list(TASKS) * (len(stored.removals) // len(TASKS))
    return {task: [cell for cell, t in zip(stored.removals, tasks) if t == task] for task in TASKS}


def _removed(stored: Stored, size: Settings) -> Section:
    rows = []
    for name, named in _REMOVED.items():
        cells = []
        for some in _by_task(stored).values():
            whole, rest = (torch.cat([cell[x] for cell in some]) for x in ("whole", name))
            cells.append(number(float((whole - rest).mean())))
        rows.append([named, *cells])
    unchanged = [number(float(torch.cat([c["whole"] for c in some]).mean())) for some in _by_task(stored).values()]
    rows.append(["(the whole logit difference)", *unchanged])
    lead = (f"Drop of the logit difference when {size.removed} units are removed at the last position, on prompts that "
            "did not choose them.",)  # fmt: skip
    return Section("What removing units does", lead, Sheet((("units removed", ""), *((t, "") for t in TASKS)), rows))


def _kept(stored: Stored, size: Settings) -> Section:
    values = []
    for some in _by_task(stored).values():
        kept = torch.cat([cell["kept"].reshape(-1, len(size.kept)) for cell in some])
        whole = torch.cat([cell["whole"] for cell in some])
        values.append((kept.mean(0) / whole.mean()).tolist())
    picture = HeatMap(list(TASKS), [str(k) for k in size.kept], values, "units kept", "task",
                      ends=("reversed", "all of it"))  # fmt: skip
    lead = ("Logit difference at the last position when only the units of largest contribution write what they do, and "
            "all others what they do on average; over the whole.",)  # fmt: skip
    return Section("How many units carry a prediction", lead, picture)


def _held(stored: Stored) -> Section:
    tasks = list(TASKS) * (len(stored.shares) // len(TASKS))
    rows = []
    for base, named in BASES.items():
        each = [torch.cat([c[base]["plain"] for c, t in zip(stored.shares, tasks) if t == task]) for task in TASKS]
        rows.append([named, *(f"{100 * float(values.mean()):.1f} %" for values in each)])
    lead = ("Share of all direct contributions, by size, that the top 1 % of a basis's units hold.",)
    return Section("Who holds the contributions", lead, Sheet((("basis", ""), *((t, "") for t in TASKS)), rows))


def _strongest(stored: Stored) -> Section:
    found = stored.reading[0]
    rows = [
        [f"{layer}.{unit}", f"{100 * float(share):.2f} %", ", ".join(repr(token) for token in tokens)]
        for (layer, unit), share, tokens in zip(found["units"].tolist(), found["share"], found["tokens"])
    ]
    columns = (
        ("layer and unit", ""),
        ("share", "of all contributions"),
        ("promotes", "or suppresses: the sign is free"),
    )
    lead = ("The units with the largest contributions over all tasks, and the tokens at the strong end of what they "
            "write.",)  # fmt: skip
    return Section("What the strongest units write", lead, Sheet(columns, rows))
