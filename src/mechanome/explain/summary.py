"""The one page about many explanations, and the same for the terminal: verdicts, every prompt, and what recurs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from mechanome.core import Interval, Table
from mechanome.engine import parse
from mechanome.explain.components import name_of
from mechanome.explain.many import Explanations, Recurring
from mechanome.explain.result import Result
from mechanome.explain.tokens import quoted, whole
from mechanome.report import Line, Meter, Page, Section, Sheet, text
from mechanome.report.link import Link

_PROMPT = 60
"""Characters of a prompt in a row of the page."""
_SHORT = 34
"""In a row of the terminal."""
_NAMED = 3
"""Parts listed in a row."""
_RECURRING = 20
"""Recurring parts listed; the record has all."""
_COLORS = {"explained": "green", "not explained": "yellow", "refused": "dim", "failed": "red"}


def document(e: Explanations, replay: str = "") -> Page:
    """The page.

    Args:
        e: the results.
        replay: the command that repeats them.
    """
    explained = e.counts["explained"]
    return Page(
        name=f"{explained} of {len(e)} explained",
        kicker=f"Mechanome \u00b7 explain \u00b7 {e.model}",
        title=(f"{len(e)} prompts",),
        subtitle=("Why does the model continue them as it does, and which explanations hold?",),
        verdict=(f"{explained} of {len(e)} explained", explained == len(e), _verdict(e)),
        story=tuple(story(e)),
        sections=tuple(_sections(e)),
        measured=_MEASURED,
        limits=_LIMITS,
        facts=(("model", e.model), ("seed", str(e.seed)), ("seconds", f"{e.seconds:.0f}")),
        command=replay,
    )


def story(e: Explanations) -> Iterator[Line]:
    """What was found, in sentences."""
    yield (f"Explained: {interval(e.shares['explained'])} of all prompts.",)
    counts = e.counts
    if counts["not explained"]:
        yield (f"Not explained: {counts['not explained']}. The strongest parts were found, but did not pass the test.",)
    if counts["refused"]:
        yield (f"Refused: {counts['refused']}. What cannot be explained about them is said in their rows.",)
    if counts["failed"]:
        yield (f"Failed: {counts['failed']}, by an error that should not happen; please report it.",)
    recurring = e.recurring()
    if recurring:
        part = recurring[0]
        yield (
            f"{part.name} recurs most: {part.named} of {len(e.measured)} explanations name it. Alone it restores "
            f"{interval(part.effect)} of the preference on average, over every prompt where it was measured "
            f"(n = {part.effect.n}).",
        )
    elif len(e.measured) > 1:
        yield ("No part is named by more than one explanation.",)


def interval(found: Interval) -> str:
    """A share with its ends: `78 % [62, 89]`."""
    return f"{whole(found.estimate)} [{round(100 * found.lo)}, {round(100 * found.hi)}]"


def _verdict(e: Explanations) -> Line:
    parts = [f"{count} {verdict}" for verdict, count in e.counts.items() if count]
    return (", ".join(parts) + ".",)


def _sections(e: Explanations) -> Iterator[Section]:
    yield Section(
        "Every prompt",
        ("The id leads to the page of the prompt, where there is one.",),
        Sheet(_COLUMNS, [_row(result) for result in e], [n for n, result in enumerate(e) if result.measured is None]),
    )
    reasons = [[Link(r.item.id, r.page), r.verdict, r.reason] for r in e if r.reason]
    if reasons:
        yield Section(
            "What is not explained, and why",
            ("What failed in the test, or why a prompt was refused and what to change.",),
            Sheet([("id", ""), ("verdict", ""), ("reason", "")], reasons),
        )
    yield Section(
        "How many are explained",
        ("Shares of all prompts, with exact binomial intervals (95 %): what to expect of more prompts like these.",),
        Sheet(
            [("verdict", ""), ("prompts", ""), ("share", ""), ("interval %", "Clopper-Pearson, 95 %")],
            [
                [verdict, str(e.counts[verdict]), Meter(share.estimate), _ends(share)]
                for verdict, share in e.shares.items()
            ],
        ),
    )
    recurring = e.recurring()
    if recurring:
        yield Section(
            "Parts that recur",
            (
                "Parts named by at least two explanations. The effect is the share of the preference that the part "
                "alone restores: its mean over all prompts where it was measured, also where it was not named, with a "
                "95 % bootstrap interval over prompts.",
            ),
            Sheet(
                [("part", ""), ("named by", "explanations"), ("mean effect", ""), ("interval %", ""), ("n", "prompts")],
                [_recurring(part, len(e.measured)) for part in recurring[:_RECURRING]],
            ),
            () if len(recurring) <= _RECURRING else (f"{len(recurring) - _RECURRING} more are in the record.",),
        )


_COLUMNS = (
    ("id", ""),
    ("prompt", ""),
    ("verdict", ""),
    ("lost, back", "share of the preference lost without the named parts, and brought back by them alone"),
    ("stable", "against how many further counterfactuals the same parts carry the answer"),
    ("s", "seconds"),
    ("says", "the likeliest next token, and the answer where it is another"),
    ("rather than", "the foil"),
    ("strongest parts", ""),
)


def _row(result: Result) -> list[Any]:
    start = [Link(result.item.id, result.page), cut(result.item.text, _PROMPT), result.verdict]
    m, seconds = result.measured, f"{result.seconds:.0f}"
    if m is None:
        return [*start, "", "", seconds, "", "", ""]
    asked = "" if m.says == m.answer else f"; asked: {unbroken(m.answer)}"
    says = f"{unbroken(m.says)} {whole(m.probability)}{asked}"
    shares = ", ".join(whole(share) for share in (m.removed, m.kept) if share is not None)
    return [*start, shares, m.stability, seconds, says, unbroken(m.foil), parts(m.named)]


def unbroken(token: str) -> str:
    """A text in quotes, at whose spaces no line breaks."""
    return quoted(token).replace(" ", "\u00a0")


def parts(sites: Sequence[str]) -> str:
    """The first few in words."""
    more = f" +{len(sites) - _NAMED}" if len(sites) > _NAMED else ""
    return ", ".join(name_of(parse(site)) for site in sites[:_NAMED]) + more


def _recurring(part: Recurring, n: int) -> list[Any]:
    return [part.name, f"{part.named} of {n}", Meter(part.effect.estimate), _ends(part.effect), str(part.effect.n)]


def _ends(found: Interval) -> str:
    return f"{100 * found.lo:.1f} to {100 * found.hi:.1f}"


def cut(given: str, most: int) -> str:
    """A text on one line, at most so many characters; of a blank one, its signs."""
    one = " ".join(given.split()) or quoted(given)
    return one if len(one) <= most else one[: most - 1] + "\u2026"


def page(e: Explanations) -> Group:
    """The terminal page."""
    return Group(*_blocks(e))


def _blocks(e: Explanations) -> Iterator[Any]:
    yield Text(f"mechanome explain \u00b7 {e.model} \u00b7 {len(e)} prompts\n", style="dim")
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    for column in (6, _SHORT, 13, None):
        grid.add_column(max_width=column, overflow="fold")
    for result in e:
        m = result.measured
        tail = result.reason if m is None else f"{quoted(m.says)}: {parts(m.named)}"
        verdict = Text(result.verdict, style=_COLORS[result.verdict])
        grid.add_row(Text(result.item.id, style="dim"), Text(cut(result.item.text, _SHORT)), verdict, Text(tail))
    yield grid
    yield Text()
    for line in story(e):
        yield Text(text(line))
    recurring = e.recurring()[:8]
    if recurring:
        yield Text()
        rows = [[p.name, f"{p.named} of {len(e.measured)}", interval(p.effect), p.effect.n] for p in recurring]
        yield Table(["part that recurs", "named by", "mean effect", "n"], rows).rich()


_MEASURED: tuple[Line, ...] = (
    ("Each prompt was explained by itself, with the same seed; its page says how it was measured.",),
    ("Shares of verdicts: exact binomial intervals (Clopper-Pearson). Mean effects: bootstrap over prompts (BCa).",),
)
_LIMITS: tuple[Line, ...] = (
    ("The intervals speak of prompts drawn like these, and take them as independent; variants of one prompt are not.",),
    ("That a part recurs does not show that it does the same thing in each prompt. Prompts whose answers have little "
     "in common share parts that serve many answers.",),
    ("Parts were picked and tested on each prompt itself, so how often one is named is no test of a hypothesis.",),
)  # fmt: skip
