"""The circuit of the prompt and its units on the terminal page: how few edges are enough, and which units carry it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.padding import Padding
from rich.table import Table

from mechanome.circuits.finding import unit_words
from mechanome.circuits.finding.unit_graph import UNITS
from mechanome.explain import circuit_words as words
from mechanome.explain.circuit import ENOUGH, PromptCircuit
from mechanome.explain.terminal_text import Unbroken
from mechanome.explain.units import PromptUnits
from mechanome.report import number


def circuit(c: PromptCircuit) -> Iterator[Any]:
    """A caption, the curve, and what it says."""
    yield _indented(f"The circuit of this prompt. {words.NEAR}.", "dim")
    curve = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(1 + len(c.found.budgets)):
        curve.add_column(justify="right", no_wrap=True)
    curve.add_row("edges", *(f"{n:,}" for n in c.found.budgets), style="bold")
    values = (Unbroken(number(x), style="bold green" if x >= ENOUGH else "") for x in c.found.ndf.tolist())
    curve.add_row("NDF", *values)
    yield Padding(curve, (0, 0, 0, 3))
    said = " ".join(filter(None, (words.finding(c), words.dips(c), words.rankings(c), words.certified(c))))
    yield _indented(said)


def units(found: PromptUnits) -> Iterator[Any]:
    """A caption, the units, and what they lose together."""
    own = found.carriers
    yield _indented(f"The {UNITS[own.kind]} that carry it: what each is worth alone, reads and writes.", "dim")
    if own.units:
        yield Padding(unit_words.terminal(own), (0, 0, 0, 3))
    yield _indented(unit_words.finding(own))


def _indented(said: str, style: str = "") -> Padding:
    return Padding(Unbroken(said, style=style), (0, 0, 0, 3))
