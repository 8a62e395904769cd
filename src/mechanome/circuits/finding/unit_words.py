"""Units in sentences, on a report page and on the terminal: what they are worth, what they read and write."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table as Grid
from rich.text import Text

from mechanome.circuits.finding.carriers import Carrier, Carriers
from mechanome.circuits.finding.unit_graph import UNITS
from mechanome.circuits.measured import Measured
from mechanome.report import Cell, Meter, Section, Sheet, Stack, Weights, number
from mechanome.report.rendering import share, visible
from mechanome.report.terminal import table

_WORDS = 3
"""Tokens of each kind in the terminal."""
_WEAKEST = 0.05
"""Of the strongest shade: weaker tokens stay plain."""
_OPTIONAL = {
    "elsewhere": ("on paraphrases", "its mean share there"),
    "certified": ("certified", "in: among the chosen on almost all random sub-datasets"),
}
"""Columns that are shown where they have something to say."""


def finding(c: Carriers) -> str:
    """What the units lose together, beside as many others and beside all."""
    name = UNITS[c.kind]
    if not c.units:
        return f"None of the parts chosen is one of the {c.every:,} {name}."
    n = len(c.units)
    one = f"the {n} strongest {name}" if n > 1 else f"the strongest of the {name}"
    said = f"Without {one} (of {c.among:,} chosen among), {_lost(c.together)} of the effect is lost"
    if c.chance:
        lo, hi = min(c.chance), max(c.chance)
        said += f"; without {n} others of the same layers, {share(lo)} to {share(hi)} ({len(c.chance)} random sets)"
    return f"{said}. Without any of the {c.every:,}, {_lost(c.whole)}."


def section(c: Carriers, measured_on: str, others: str) -> Section:
    """The units as a section of a report page.

    Args:
        c: the units. measured_on: which examples, such as "held-out examples".
        others: what a unit carries instead, such as "what it carries on the counterfactual".
    """
    name = UNITS[c.kind]
    return Section(
        f"Which {name} carry it",
        (
            f"The strongest {name} of the MLPs: first what each is worth, which is measured; then what it reads and "
            "writes, which is read off the weights; then where it is on.",
        ),
        Stack([_worth(c), _readings(c), _places(c)]),
        (finding(c),),
        (
            f"In runs of the whole model on {measured_on} ({c.examples}), each unit alone carries {others}, and then "
            "all of them do. What a unit writes is its row of the output weight, read through the unembedding; what it "
            "detects is read off its weights, the norm folded in. Signs are turned so that a unit promotes what it "
            "moves most; it is marked where it does so when negative. (Neurons as nodes: Arora et al. 2026; "
            "Detector-Effector Units: Xue & Andrzejak 2026.)",
        ),
        (
            "Tokens show the direct way in and out; what earlier and later layers make of it they do not show. Effects "
            "of single units do not add up.",
        ),
    )


def _worth(c: Carriers) -> Sheet:
    """What each unit is worth."""
    shown = _shown(c)
    columns = [
        ("unit", "layer, and number there"),
        ("share", "of the whole effect, lost where this unit alone carries something else"),
        ("exact", "change of the metric; negative where the answer needs it"),
        ("chosen by", f"its score by {c.ranked_by}; exact where that was measured"),
        *(column for name, column in _OPTIONAL.items() if name in shown),
    ]
    return Sheet(columns, [_row(unit, shown) for unit in c.units], numbers=c.table())


def _readings(c: Carriers) -> Sheet:
    """What each unit reads and writes."""
    columns = (
        ("unit", ""),
        ("detects", "; ".join(dict.fromkeys(unit.reading.detector for unit in c.units))),
        ("promotes", "tokens whose logits it raises most, by way of the stream alone"),
        ("suppresses", "tokens whose logits it lowers most"),
    )
    rows = [
        (
            unit.reading.short + ("" if unit.reading.card.determined else " (direction not unique)"),
            _words(unit.reading.detects),
            _words(unit.reading.card.promotes) + _marked(unit),
            _words(unit.reading.card.suppresses),
        )
        for unit in c.units
    ]
    return Sheet(columns, rows)


def _places(c: Carriers) -> Sheet:
    """Where in the texts each unit is on most."""
    columns = (("unit", ""), ("on at", "where it does most of what it promotes; shades are its activation"))
    rows: list[tuple[str | Cell, ...]] = []
    for unit in c.units:
        for place in unit.reading.card.opens[:1]:
            limit = max(abs(gate) for gate in place.gates)
            shades = [gate / limit if gate > _WEAKEST * limit else 0.0 for gate in place.gates]
            rows.append((unit.reading.short, Weights([visible(token) for token in place.tokens], shades)))
    return Sheet(columns, rows)


def terminal(c: Carriers) -> Grid:
    """The units as a table of the terminal, 80 columns wide."""
    sure = "certified" in _shown(c)
    names = [("unit", "left"), ("share", "right"), *([("certified", "left")] if sure else [])]
    made = table([*names, ("detects", "left"), ("writes", "left")])
    for unit in c.units:
        reading = unit.reading
        words = [reading.short, share(unit.share), *([unit.certified] if sure else [])]
        made.add_row(*words, Text(_few(reading.detects)), Text(_few(reading.card.promotes) + _marked(unit)))
    return made


def _shown(c: Carriers) -> set[str]:
    """Names of the optional columns that have something to say."""
    known = {
        "elsewhere": any(unit.elsewhere is not None for unit in c.units),
        "certified": any(unit.certified for unit in c.units),
    }
    return {name for name, there in known.items() if there}


def _row(unit: Carrier, shown: set[str]) -> list[str | Cell]:
    optional: dict[str, str | Cell] = {
        "elsewhere": "" if unit.elsewhere is None else Meter(unit.elsewhere),
        "certified": unit.certified,
    }
    return [
        unit.reading.short,
        "" if unit.share is None else Meter(unit.share),
        _exact(unit.effect),
        number(unit.score, 3),
        *(optional[name] for name in _OPTIONAL if name in shown),
    ]


def _exact(effect: Measured) -> str:
    at = effect.interval
    return number(effect.value, 3) + ("" if at is None else f" [{number(at.lo, 3)}, {number(at.hi, 3)}]")


def _marked(unit: Carrier) -> str:
    return " (when negative)" if unit.reading.turned else ""


def _words(scored: Sequence[tuple[str, float]]) -> str:
    return " ".join(visible(name) for name, _ in scored)


def _few(scored: Sequence[tuple[str, float]]) -> str:
    return _words(scored[:_WORDS])


def _lost(found: Measured | None) -> str:
    if found is None or found.value is None:
        return "an undefined share" + ("" if found is None else f" ({found.note})")
    at = found.interval
    return share(found.value) + ("" if at is None else f" [{number(100 * at.lo, 0)} to {share(at.hi)}]")
