"""The terminal page of an explanation: readable at 80 columns, with and without color."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mechanome.explain import story
from mechanome.explain.components import cut_remark
from mechanome.explain.explanation import Explanation
from mechanome.explain.importance import Importance
from mechanome.explain.tokens import quoted, whole
from mechanome.report import Line, number, spans

_STYLES = {"plain": "", "answer": "bold green", "foil": "yellow", "token": "cyan", "strong": "bold", "dim": "dim"}
_SHOWN = 60
"""Characters of a token in a table."""
_NARROW = 14
"""Characters of a token beside many numbers."""
_TOP = 5
"""Tokens listed by their importance."""
_PARTS = (
    ("part", "left"),
    ("restores", "right"),
    ("breaks", "right"),
    ("direct", "right"),
    ("at", "left"),
    ("attends to", "left"),
)
_TESTS = (
    ("test", "left"),
    ("parts", "right"),
    ("needed", "right"),
    ("random sets", "right"),
    ("p", "right"),
    ("model says", "left"),
)
_OTHERS = (("compared with", "left"), ("remove", "right"), ("keep only", "right"), ("carried", "left"))


def page(e: Explanation) -> Group:
    """Everything, top to bottom."""
    return Group(*_blocks(e))


def line(pieces: Line) -> Text:
    """A line with tokens in quotes and in color."""
    found = Text()
    for span in spans(pieces):
        token = span.role in ("answer", "foil", "token")
        found.append(quoted(span.text) if token else span.text, style=_STYLES[span.role])
    return found


def _token(text: str, most: int = _SHOWN) -> str:
    """A token in quotes, without its leading space, at which a line could break."""
    return quoted(story.token(text).text[:most])


def _blocks(e: Explanation) -> Iterator[Any]:
    yield Text(f"mechanome explain \u00b7 {e.origin.id}", style="dim")
    yield Text()
    yield line(story.title(e))
    yield line(story.subtitle(e))
    yield Text()
    color = "bold green" if e.explained else "bold yellow"
    yield Text(e.verdict.upper(), style=color) + Text(". ") + line(story.verdict(e))
    yield Text()
    for place, step in enumerate(story.story(e), 1):
        yield _hanging(f"{place}.", line(step))
    yield Text()
    if e.importance is not None:
        yield _tokens(e, e.importance)
        yield Text()
    yield _parts(e)
    yield Text()
    yield _tests(e)
    if e.stability.comparisons:
        yield Text()
        yield _comparisons(e)
    cut = [cut_remark(e.cut)] if e.cut else []
    remarks = [*e.question.choices, *filter(None, [story.fewer(e)]), *cut, *e.left_out]
    yield Text()
    yield from (_hanging("\u00b7", Text(remark, style="dim")) for remark in remarks)


def _hanging(mark: str, body: Text) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=2, justify="right")
    grid.add_column()
    grid.add_row(Text(mark, style="dim"), body)
    return grid


def _tokens(e: Explanation, found: Importance) -> Padding:
    """The tokens that matter most to the last position, by hiding them (the causal reference) and by each measure."""
    table = _table((("token", "left"), ("hidden (nats)", "right"), *((m.title, "right") for m in found.measures)))
    for p in found.top(_TOP):
        values = (number(float(m.values[p])) for m in found.measures)
        table.add_row(Text(_token(found.tokens[p], _NARROW)), number(float(found.masking.effects[p])), *values)
    known = ("\u2013" if m.agreement is None else number(m.agreement.estimate) for m in found.measures)
    table.add_row("agreement (rank correlation)", "", *known, style="dim")
    return Padding(table, (0, 0, 0, 3))


def _parts(e: Explanation) -> Padding:
    table = _table(_PARTS)
    tokens = e.question.tokens
    written = {} if e.direct is None else {w.part: whole(w.change / e.direct.gap) for w in e.direct.writers}
    for part in e.components:
        reads = ", ".join(f"{_token(tokens[p])} {whole(w)}" for p, w in part.attended)
        table.add_row(
            part.name,
            f"{whole(part.restores)}",
            f"{whole(part.breaks)}",
            written.get(str(part.site), ""),
            Text(_token(tokens[part.position])),
            Text("echo of the input" if part.echo else reads),
            style="dim" if part.echo else "",
        )
    return Padding(table, (0, 0, 0, 3))


def _tests(e: Explanation) -> Padding:
    table = _table(_TESTS)
    for name, trial in (("remove", e.verification.removed), ("keep only", e.verification.kept)):
        spread = trial.spread
        table.add_row(
            name,
            f"{whole(trial.share)}",
            f"{whole(trial.needed)}",
            f"{whole(spread.estimate)} [{round(100 * spread.lo)}, {round(100 * spread.hi)}]",
            f"{trial.p:.2f}",
            Text(_token(trial.after.tokens[0].text)),
        )
    return Padding(table, (0, 0, 0, 3))


def _comparisons(e: Explanation) -> Padding:
    """The same parts against other counterfactuals."""
    table = _table(_OTHERS)
    for c in e.stability.comparisons:
        text = story.excerpt(c.counterfactual, e.question.prompt)
        table.add_row(Text(text), whole(c.lost), whole(c.back), "yes" if c.carries else "no")
    return Padding(table, (0, 0, 0, 3))


def _table(columns: Sequence[tuple[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, header_style="bold", overflow="fold")
    return table
