"""The terminal page of a discovery: readable at 80 columns, with and without color."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mechanome.circuits.finding import story
from mechanome.circuits.finding.discovery import Discovery
from mechanome.circuits.finding.rows import rows
from mechanome.circuits.finding.unit_words import terminal as unit_table
from mechanome.report import Line, number, spans
from mechanome.report.rendering import share
from mechanome.report.terminal import hanging, table

_EDGES = 10
"""Listed; the folder has all."""
_INDENT = (0, 0, 0, 3)


def page(d: Discovery) -> Group:
    """Everything, top to bottom."""
    return Group(*_blocks(d))


def _blocks(d: Discovery) -> Iterator[Any]:
    yield Text(f"mechanome circuit \u00b7 {d.halves.finding.name} \u00b7 {d.model.name}", style="dim")
    yield Text()
    yield _line(story.title(d))
    yield _line(story.subtitle(d))
    yield Text()
    word = Text(story.WORDS[d.verdict].upper(), style="bold green" if d.verdict == "faithful" else "bold yellow")
    yield Text.assemble(word, ". ", _line(story.verdict(d)))
    yield Text()
    for place, step in enumerate(story.story(d), 1):
        yield hanging(f"{place}.", _line(step))
    yield Text()
    yield Padding(_edges(d), _INDENT)
    about = f"Effects in {story.UNIT[d.halves.finding.metric]}; share of the whole effect, negative against the answer."
    yield Padding(Text(about, style="dim"), _INDENT)
    if d.carriers is not None and d.carriers.units:
        yield Text()
        yield Padding(unit_table(d.carriers), _INDENT)
    if d.measures.held_out.curve is not None:
        yield Text()
        yield Padding(_curve(d), _INDENT)
    if d.stability is not None:
        yield Text()
        yield Padding(_card(d), _INDENT)
    yield Text()
    yield from (hanging("\u00b7", Text(note, style="dim")) for note in d.notes)


def _edges(d: Discovery) -> Table:
    what = "edge" if d.settings.level == "edge" else "source"
    made = table([(f"strongest {what}s", "left"), ("estimate", "right"), ("exact", "right"), ("share", "right")])
    for row in rows(d)[:_EDGES]:
        numbers = number(row.estimate, 3), number(row.exact, 3), share(row.share)
        made.add_row(row.name, *numbers, style="yellow" if row.remark else "")
    return made


def _curve(d: Discovery) -> Table:
    made = table([("edges", "right"), ("found on", "right"), ("held out", "right"), ("95 % interval", "left")])
    found, held = d.measures.finding.curve, d.measures.held_out.curve
    assert found is not None and held is not None
    for size, a, b in zip(held.sizes, found.faithfulness, held.faithfulness):
        ends = "" if b.interval is None else f"{number(100 * b.interval.lo, 0)} to {share(b.interval.hi)}"
        made.add_row(share(size, 1 if size >= 0.001 else 2), share(a.value), share(b.value), ends)
    return made


def _card(d: Discovery) -> Table:
    assert d.stability is not None
    made = table([("size", "right"), ("Jaccard", "left"), ("by chance", "right"), ("Jaccard of nodes", "left")])
    for p in d.stability.points:
        nodes = "" if p.nodes is None else story.interval(p.nodes)
        made.add_row(p.named, story.interval(p.jaccard), number(p.chance, 3), nodes)
    return made


def _line(pieces: Line) -> Text:
    return Text.assemble(*((span.text, "bold" if span.role == "strong" else "") for span in spans(pieces)))
