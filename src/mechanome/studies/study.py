"""`Study`: one paper's claims and how they are measured, written down before anything runs.

A study is data: claims with thresholds, quantities that are shown without a pass mark, final seeds and pilot seeds, and
for each tier the settings and models. One function measures, the same for every tier; everything around it (the run
folder, resuming, verdicts, the page, the record) is the frame's, so a study's file holds nothing but its paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mechanome.core import TIERS, BadInput, Claim, Interval, Tier

if TYPE_CHECKING:
    from mechanome.report import Section
    from mechanome.studies.context import Context

S = TypeVar("S")
"""A study's settings: a frozen dataclass of numbers, texts and tuples of them."""


@dataclass(frozen=True)
class Quantity:
    """Something that is measured and shown, with no pass mark: a baseline, a control, a cost.

    Args:
        id: short and stable, such as ``"hit-norm"``.
        statement: what the number is, with its unit.
    """

    id: str
    statement: str


@dataclass(frozen=True)
class Effect:
    """What was measured of a claim or quantity.

    Args:
        interval: from `mechanome.core` statistics; None where it could not be measured, with ``note`` saying why.
        note: what a reader must know of it: the unit that was resampled, a diagnosis.
    """

    interval: Interval | None
    note: str = ""


@dataclass(frozen=True)
class Measured:
    """What a study's ``measure`` returns.

    Args:
        effects: one for every claim and quantity, by id.
        sections: pictures for the page.
        remarks: lines about this very measurement, such as how many prompts were kept and dropped.
    """

    effects: Mapping[str, Effect]
    sections: Sequence[Section] = ()
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Scale(Generic[S]):
    """How much work a tier does.

    Args:
        settings: of this tier.
        models: role to registry id, folder or hub id; empty where a study trains its own.
        seeds: how many of the study's seeds; None for all.
        device, dtype: given to `mechanome.load`.
        note: sizes in words: other models of the paper, memory, time.
    """

    settings: S
    models: Mapping[str, str] = field(default_factory=dict)
    seeds: int | None = None
    device: str | None = None
    dtype: str | None = None
    note: str = ""


def measured_in(package: str) -> Callable[[Context[Any]], Measured]:
    """`measure` of the module `measuring` in a study's package, which is imported when it is called: what a study
    claims can be read without what it takes to measure it."""

    def measure(context: Context[Any]) -> Measured:
        found: Measured = import_module(f"{package}.measuring").measure(context)
        return found

    return measure


@dataclass(frozen=True)
class Study(Generic[S]):
    """A paper's claims, and how to measure them.

    Args:
        name: as users type it; that of its file, with hyphens.
        paper: the paper's number.
        title: the paper's title.
        source: authors, venue, identifier.
        home: the package whose methods it measures.
        claims: what is judged, thresholds fixed before the final run.
        measure: the measurement, the same code for every tier.
        scales: one a tier.
        seeds: the final seeds, in order.
        pilot: other seeds, for trying things out and for the smoke tier; their results are never judged.
        reported: what is shown beside the claims without a pass mark.
        method: paragraphs on how it is measured.
        limits: paragraphs on what it does not show.
        beside: quantities that the overview of all studies tells next to the verdicts, which alone would mislead: id to
            a few words.

    Raises:
        BadInput: a name that cannot be typed, an id used twice or told of without being reported, a missing tier, no
            seeds, a pilot seed that is final.
    """

    name: str
    paper: int
    title: str
    source: str
    home: str
    claims: tuple[Claim, ...]
    measure: Callable[[Context[S]], Measured]
    scales: Mapping[Tier, Scale[S]]
    seeds: tuple[int, ...]
    pilot: tuple[int, ...]
    reported: tuple[Quantity, ...] = ()
    method: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if fault := self._fault():
            raise BadInput(f"study {self.name!r}", *fault)

    @property
    def ids(self) -> tuple[str, ...]:
        """Everything that ``measure`` must return: claims first, then quantities."""
        return (*(c.id for c in self.claims), *(q.id for q in self.reported))

    def _fault(self) -> tuple[str, str] | None:
        twice = sorted({i for i in self.ids if self.ids.count(i) > 1})
        shared = sorted({*self.seeds} & {*self.pilot})
        missing = [tier for tier in TIERS if tier not in self.scales]
        many = [tier for tier, scale in self.scales.items() if (scale.seeds or 0) > len(self.seeds)]
        unknown = sorted({*self.beside} - {q.id for q in self.reported})
        faults = (
            (
                not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name),
                "its name is not lower case with hyphens",
                "rename",
            ),
            (not self.claims, "it claims nothing", "write down what is to hold, with a threshold"),
            (bool(twice), f"{', '.join(twice)} is used twice", "give every claim and quantity its own id"),
            (bool(unknown), f"{', '.join(unknown)} is told of but not reported", "name ids of reported quantities"),
            (bool(missing), f"it has no tier {', '.join(missing)}", "give a Scale for every tier"),
            (not (self.seeds and self.pilot), "it has no final or no pilot seeds", "fix both"),
            (bool(shared), f"seeds {shared} are both pilot and final", "choose other pilot seeds"),
            (bool(many), f"tier {', '.join(many)} wants more seeds than there are", "fix more final seeds"),
        )
        return next(((why, fix) for wrong, why, fix in faults if wrong), None)
