"""Pictures of paper 06's study: methods over sizes, what samples add, what is left elsewhere, one query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.report import HeatMap, Meter, Section, Sheet
from mechanome.studies.papers.query_circuits import ARMS

if TYPE_CHECKING:
    from mechanome.studies.papers.query_circuits import Settings
    from mechanome.studies.papers.query_circuits.measuring import Stored

_ENDS = ("", "the model's answer")


def sections(stored: Stored, size: Settings) -> tuple[Section, ...]:
    """The study's sections, in order."""
    return (
        _methods(stored, size),
        _samples(stored, size),
        _elsewhere(stored, size),
        _kinds(stored, size),
        _one(stored, size),
    )


def _map(rows: dict[str, Tensor], size: Settings, what: str) -> HeatMap:
    columns = [str(n) for n in size.budgets]
    return HeatMap(list(rows), columns, [row.tolist() for row in rows.values()], "edges", what, ends=_ENDS)


def _methods(stored: Stored, size: Settings) -> Section:
    rows = {what: stored.ndf(arm).mean(0) for arm, what in ARMS.items()}
    lead = ("How well circuits of rising size reproduce the model on their query: mean NDF over queries.",)
    return Section("Every way to find a circuit", lead, _map(rows, size, "found by"))


def _samples(stored: Stored, size: Settings) -> Section:
    tried = torch.stack([each["tried"] for each in stored.found]).cummax(1).values.mean(0)
    rows = {"the query alone" if i == 0 else f"and {i} samples": row for i, row in enumerate(tried)}
    lead = ("Best of n with more and more samples: mean NDF on the query. The best of more is never worse.",)
    return Section("What samples add", lead, _map(rows, size, "proposed by"))


def _elsewhere(stored: Stored, size: Settings) -> Section:
    rows: dict[str, Tensor] = {}
    for arm in stored.found[0]["held_out"]:
        rows[f"{ARMS[arm]}: on the query"] = stored.ndf(arm).mean(0)
        rows[f"{ARMS[arm]}: on the held-out input"] = stored.ndf(arm, "held_out").mean(0)
    lead = ("The same circuits on the query and on an input of the same behavior that was not used: mean NDF.",)
    return Section("What is left elsewhere", lead, _map(rows, size, "circuits by"))


def _kinds(stored: Stored, size: Settings) -> Section:
    rows: dict[str, Tensor] = {}
    for kind in dict.fromkeys(stored.kinds):
        of = [k == kind for k in stored.kinds]
        rows |= {f"{kind}: {ARMS[arm]}": stored.ndf(arm)[of].mean(0) for arm in ("single", "averaging", "best-of-n")}
    lead = ("Kinds of queries apart: mean NDF on the query.",)
    return Section("Kinds of queries", lead, _map(rows, size, "found by"))


def _one(stored: Stored, size: Settings) -> Section:
    prompts, tried = stored.rows[0][:-1], stored.found[0]["tried"]
    winner = stored.found[0]["winner"]
    rows: list[list[str | Meter]] = [
        [
            "query" if i == 0 else f"sample {i}",
            f"{row[0]}{row[1]}",
            f"{row[3]}{row[2]}",
            Meter(float(tried[i].mean())),
            ", ".join(str(n) for n, best in zip(size.budgets, winner) if best == i),
        ]
        for i, row in enumerate(prompts)
    ]
    columns = (
        ("proposed by", ""),
        ("input and answer", ""),
        ("counterfactual", ""),
        ("NDF on the query", "mean over sizes of the circuits that its scores propose"),
        ("best at", "sizes in edges"),
    )
    lead = ("One query, its samples, and whose scores found the best circuit of the query at each size.",)
    return Section("One query", lead, Sheet(columns, rows))
