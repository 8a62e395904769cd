"""The terminal page of an explanation: readable at 80 columns, with and without color."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from mechanome.explain import headline, story
from mechanome.explain.components import cut_remark
from mechanome.explain.explanation import Explanation
from mechanome.explain.terminal_circuit import circuit, units
from mechanome.explain.terminal_text import Unbroken, line, token
from mechanome.explain.terminal_tokens import tokens
from mechanome.explain.tokens import whole
from mechanome.report import number
from mechanome.report.terminal import hanging, table

_PARTS = (
    ("part", "left"),
    ("restores", "right"),
    ("breaks", "right"),
    ("direct", "right"),
    ("at", "left"),
    ("attends most to", "left"),
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


def _blocks(e: Explanation) -> Iterator[Any]:
    yield Text(f"mechanome explain \u00b7 {e.origin.id}", style="dim")
    yield Text()
    yield line(headline.title(e))
    yield line(headline.subtitle(e))
    yield Text()
    verdict = Unbroken(e.verdict.upper(), style="bold green" if e.explained else "bold yellow")
    yield Unbroken.assemble(verdict, ". ", line(headline.verdict(e)))
    yield Text()
    for place, step in enumerate(story.story(e), 1):
        yield hanging(f"{place}.", line(step))
    yield Text()
    if blocks := list(tokens(e)):
        yield from blocks
        yield Text()
    yield _parts(e)
    yield Text()
    yield _tests(e)
    if e.stability.comparisons:
        yield Text()
        yield _comparisons(e)
    if e.circuit is not None:
        yield Text()
        yield from circuit(e.circuit)
    if e.units is not None:
        yield Text()
        yield from units(e.units)
    yield Text()
    yield from (hanging("\u00b7", Unbroken(remark, style="dim")) for remark in _remarks(e))


def _remarks(e: Explanation) -> Iterator[str]:
    """What was chosen, how to read the numbers, what was left out, and what is known of the model."""
    yield from e.question.choices
    if beyond := story.beyond(e):
        yield beyond
    v = e.verification
    if least := next((trial.least for trial in (v.removed, v.kept) if trial.least), ""):
        yield least
    if fewer := story.fewer(e):
        yield fewer
    if e.cut:
        yield cut_remark(e.cut)
    yield from e.left_out
    if e.circuit is not None:
        yield from e.circuit.notes
    yield from e.origin.notes


def _parts(e: Explanation) -> Padding:
    made = table(_PARTS)
    tokens = e.question.tokens
    written = {} if e.direct is None else {w.part: whole(w.change / e.direct.gap) for w in e.direct.writers}
    for part in e.components:
        reads = ", ".join(f"{token(tokens[p])} {whole(w)}" for p, w in part.attended)
        made.add_row(
            part.name,
            f"{whole(part.restores)}",
            f"{whole(part.breaks)}",
            written.get(str(part.site), ""),
            Unbroken(token(tokens[part.position])),
            Unbroken("echo of the input" if part.echo else reads),
            style="dim" if part.echo else "",
        )
    return Padding(made, (0, 0, 0, 3))


def _tests(e: Explanation) -> Padding:
    made = table(_TESTS)
    for name, trial in (("remove", e.verification.removed), ("keep only", e.verification.kept)):
        spread = trial.spread
        made.add_row(
            name,
            f"{whole(trial.share)}",
            f"{whole(trial.needed)}",
            f"{whole(spread.estimate)} [{number(100 * spread.lo, 0)}, {number(100 * spread.hi, 0)}]",
            f"{trial.p:.2f}",
            Unbroken(token(trial.after.tokens[0].text)),
        )
    return Padding(made, (0, 0, 0, 3))


def _comparisons(e: Explanation) -> Padding:
    """The same parts against other counterfactuals."""
    made = table(_OTHERS)
    for c in e.stability.comparisons:
        text = story.excerpt(c.counterfactual, e.question.prompt)
        made.add_row(Text(text), whole(c.lost), whole(c.back), "yes" if c.carries else "no")
    return Padding(made, (0, 0, 0, 3))
