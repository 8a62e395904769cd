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
from mechanome.explain.many import FEWEST, RECURRING, Explanations, Recurring
from mechanome.explain.result import Measured, Result
from mechanome.explain.terminal_text import Unbroken
from mechanome.explain.tokens import counted, quoted, whole
from mechanome.report import Line, Meter, Page, Section, Sheet, number, text
from mechanome.report.link import Link

_PROMPT = 60
"""Characters of a prompt in a row of the page."""
_SHORT = 34
"""In a row of the terminal."""
_NAMED = 3
"""Parts listed in a row."""
_RECURRING = 20
"""Recurring parts listed; the record has all."""
_LISTED = 8
"""In the terminal."""
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
        kicker=" \u00b7 ".join(("Mechanome", "explain", e.model, *e.notes)),
        title=(counted(len(e), "prompt"),),
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
    yield from _weakened(e)
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
        does = (
            f"Alone it restores {mean(part.effect)} of the preference on average, over every prompt where it was "
            f"measured (n = {part.effect.n})."
        )
        if part.explained >= RECURRING:
            yield (f"{_capital(part.name)} recurs most: {_named_by(part, e)} name it. {does}",)
        else:
            yield (
                f"No part is named by more than one explained prompt. {_capital(part.name)} recurs most where parts "
                f"that did not pass the test count, too: {_named_by(part, e)} name it. {does}",
            )
    elif len(e.measured) > 1:
        yield ("No part is named for more than one prompt.",)


def _weakened(e: Explanations) -> Iterator[Line]:
    """Whether the parts of explained prompts break the answer, or weaken it only."""
    found = [r.measured for r in e if r.verdict == "explained" and r.measured is not None]
    if found:
        broken = sum(m.without != m.says for m in found)
        yield (
            f"Without the named parts the model says something else in {broken} of {len(found)} explained prompts"
            + ("." if broken == len(found) else "; in the others the answer is weakened, but not broken."),
        )


def _named_by(part: Recurring, e: Explanations) -> str:
    """Of how many explained prompts, and of how many others."""
    counts = e.counts
    others = part.named - part.explained
    rest = f", and {others} of {counts['not explained']} not explained" if counts["not explained"] else ""
    return f"{part.explained} of {counts['explained']} explained prompts{rest}"


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def mean(found: Interval) -> str:
    """A mean over prompts, with its interval where there are enough of them."""
    return interval(found) if found.n >= FEWEST else whole(found.estimate)


def interval(found: Interval) -> str:
    """A share with its ends: `78 % [62, 89]`."""
    return f"{whole(found.estimate)} [{number(100 * found.lo, 0)}, {number(100 * found.hi, 0)}]"


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
                "Parts named for at least two prompts, those first that most explained prompts name. The effect is the "
                "share of the preference that the part alone restores: its mean over all prompts where it was "
                "measured, also where it was not named, with a 95 % bootstrap interval over prompts.",
            ),
            Sheet(
                [
                    ("part", ""),
                    ("explained", "explained prompts that name it"),
                    ("not explained", "prompts whose named parts, it among them, did not pass the test"),
                    ("mean effect", ""),
                    ("interval %", f"of {FEWEST} prompts or more"),
                    ("n", "prompts"),
                ],
                [_recurring(part, e) for part in recurring[:_RECURRING]],
            ),
            () if len(recurring) <= _RECURRING else (f"{len(recurring) - _RECURRING} more are in the record.",),
        )


_COLUMNS = (
    ("id", ""),
    ("prompt", ""),
    ("verdict", ""),
    ("lost, back", "share of the preference lost without the named parts, and brought back by them alone"),
    ("then says", "what the model says without the named parts: the same where they only weaken the answer"),
    (
        "stable",
        "against how many further counterfactuals the same parts carry the answer; of parts that did not pass "
        "the test, in brackets",
    ),
    ("s", "seconds"),
    ("says", "the likeliest next token, and the answer where it is another"),
    ("rather than", "the foil"),
    ("strongest parts", ""),
)


def _row(result: Result) -> list[Any]:
    start = [Link(result.item.id, result.page), cut(result.item.text, _PROMPT), result.verdict]
    m, seconds = result.measured, f"{result.seconds:.0f}"
    if m is None:
        return [*start, "", "", "", seconds, "", "", ""]
    asked = "" if m.says == m.answer else f"; asked: {unbroken(m.answer)}"
    says = f"{unbroken(m.says)} {whole(m.probability)}{asked}"
    shares = ", ".join(whole(share) for share in (m.removed, m.kept) if share is not None)
    without = unbroken(m.without) if m.without else ""
    return [*start, shares, without, _stable(result, m), seconds, says, unbroken(m.foil), parts(m.named)]


def _stable(result: Result, m: Measured) -> str:
    """Against how many counterfactuals the parts carry the answer; a dash where none was compared."""
    if not m.stability:
        return "\u2013"
    return m.stability if result.verdict == "explained" else f"({m.stability})"


def unbroken(token: str) -> str:
    """A text in quotes, at whose spaces no line breaks."""
    return quoted(token).replace(" ", "\u00a0")


def parts(sites: Sequence[str]) -> str:
    """The first few in words."""
    more = f" +{len(sites) - _NAMED}" if len(sites) > _NAMED else ""
    return ", ".join(name_of(parse(site)) for site in sites[:_NAMED]) + more


def _recurring(part: Recurring, e: Explanations) -> list[Any]:
    ends = _ends(part.effect) if part.effect.n >= FEWEST else "\u2013"
    return [part.name, *_both(part, e), Meter(part.effect.estimate), ends, str(part.effect.n)]


def _both(part: Recurring, e: Explanations) -> list[str]:
    """How many explained prompts name a part, and how many others."""
    counts = e.counts
    return [
        f"{part.explained} of {counts['explained']}",
        f"{part.named - part.explained} of {counts['not explained']}",
    ]


def _ends(found: Interval) -> str:
    return f"{number(100 * found.lo, 1)} to {number(100 * found.hi, 1)}"


def cut(given: str, most: int) -> str:
    """A text on one line, at most so many characters; of a blank one, its signs."""
    one = " ".join(given.split()) or quoted(given)
    return one if len(one) <= most else one[: most - 1] + "\u2026"


def page(e: Explanations) -> Group:
    """The terminal page."""
    return Group(*_blocks(e))


def _blocks(e: Explanations) -> Iterator[Any]:
    yield Text(f"mechanome explain \u00b7 {e.model} \u00b7 {counted(len(e), 'prompt')}\n", style="dim")
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    for column in (6, _SHORT, 13, None):
        grid.add_column(max_width=column, overflow="fold")
    for result in e:
        m = result.measured
        tail = result.reason if m is None else f"{_asked(m)}: {parts(m.named)}"
        verdict = Text(result.verdict, style=_COLORS[result.verdict])
        grid.add_row(Text(result.item.id, style="dim"), Text(cut(result.item.text, _SHORT)), verdict, Unbroken(tail))
    yield grid
    yield Text()
    for line in story(e):
        yield Unbroken(text(line))
    every = e.recurring()
    recurring = every[:_LISTED]
    if recurring:
        yield Text()
        if every[_LISTED:]:
            yield Text(f"The {_LISTED} of {len(every)} parts that recur most; the report has more, the record all.")
        rows = [[p.name, *_both(p, e), mean(p.effect), p.effect.n] for p in recurring]
        yield Table(["part that recurs", "explained", "not explained", "mean effect", "n"], rows).rich()
    for note in e.notes:
        yield Text(f"\n{note}", style="dim")


def _asked(m: Measured) -> str:
    """The answer, and what the model says where that is something else."""
    if m.says == m.answer:
        return quoted(m.answer)
    return f"asked: {quoted(m.answer)}; the model says {quoted(m.says)}"


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
