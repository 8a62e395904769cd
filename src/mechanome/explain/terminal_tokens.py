"""The tokens of the terminal page: what hiding them costs, as in the story, and beside it the other measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.padding import Padding

from mechanome.explain import story
from mechanome.explain.explanation import Explanation
from mechanome.explain.hiding import Hidden
from mechanome.explain.importance import Importance
from mechanome.explain.terminal_text import Unbroken, token
from mechanome.explain.tokens import quoted
from mechanome.report import number
from mechanome.report.terminal import table

TOP = 5
"""Tokens, or groups of neighbors, listed."""
_NARROW = 14
"""Characters of a token beside many numbers."""
_LATER = "from every later position, logits of the preference lost"
_LAST = "from the last position alone, nats of log p(answer) lost"


def tokens(e: Explanation) -> Iterator[Any]:
    """The tokens that the answer needs most, in the order of the story; nothing where none could be hidden."""
    if e.hidden is None:
        return
    caption, body, note = _groups(e, e.hidden) if e.hidden.together > 1 else _each(e, e.hidden)
    shown, total = min(TOP, len(e.hidden.groups)), len(e.hidden.groups)
    what = "tokens" if e.hidden.together == 1 else "groups of neighbors"
    cut = f" The {shown} of {total} {what} that it loses most by; the report has all." if shown < total else ""
    yield _dim(f"What hiding costs. {caption}.{cut}")
    yield Padding(body, (0, 0, 0, 3))
    if note:
        yield _dim(note)


def _dim(said: str) -> Padding:
    return Padding(Unbroken(said, style="dim"), (0, 0, 0, 3))


def _each(e: Explanation, hidden: Hidden) -> tuple[str, Any, str]:
    """Each token alone, with what is measured at the last position beside it."""
    found = e.importance
    measures = () if found is None else found.measures
    names = ("later", *(() if found is None else ("last", *(m.title for m in measures))))
    made = table((("token", "left"), *((name, "right") for name in names)))
    for change, (p,) in hidden.ranked[:TOP]:
        beside = () if found is None else (found.masking.effects, *(m.values for m in measures))
        numbers = (-change, *(float(values[p]) for values in beside))
        made.add_row(Unbroken(token(e.question.tokens[p], _NARROW)), *map(number, numbers))
    if found is None:
        return f"later: hidden {_LATER}", made, ""
    made.add_row("rank correlation", "", "", *_agreements(found), style="dim")
    said = "; ".join(f"{m.title}: {m.meaning}" for m in measures)
    note = f"{said}; means over layers, of one run. Rank correlation: with last, over tokens."
    return f"later: hidden {_LATER}. last: hidden {_LAST}", made, note


def _groups(e: Explanation, hidden: Hidden) -> tuple[str, Any, str]:
    """Neighbors that were hidden together, as one."""
    made = table((("tokens hidden together", "left"), ("positions", "left"), ("later", "right")))
    for change, group in hidden.ranked[:TOP]:
        made.add_row(Unbroken(quoted(story.span(e, group))), story.positions(group), number(-change))
    said = f"later: {hidden.together} neighbors at a time are hidden together {_LATER}"
    if e.importance is None:
        return said, made, ""
    known = ", ".join(f"{m.title} {a}" for m, a in zip(e.importance.measures, _agreements(e.importance)))
    return said, made, f"Rank correlation of other measures with hiding each token {_LAST}: {known}."


def _agreements(found: Importance) -> Iterator[str]:
    return ("\u2013" if m.agreement is None else number(m.agreement.estimate) for m in found.measures)
