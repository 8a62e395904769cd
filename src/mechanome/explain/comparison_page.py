"""The page of a comparison, and the same for the terminal: every prompt in both models, and the parts that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from mechanome.core import Interval, Table
from mechanome.explain.comparison import Average, Change, ModelComparison
from mechanome.explain.many import FEWEST
from mechanome.explain.pairing import Pairing
from mechanome.explain.summary import cut, unbroken
from mechanome.explain.terminal_text import Unbroken
from mechanome.explain.tokens import counted, quoted, whole
from mechanome.report import Line, Page, Section, Sheet, number, text
from mechanome.report.link import Link

ALIKE = 0.1
"""Preference and parts have changed little if they moved by at most this share of the first model's mean gap."""


def document(c: ModelComparison, replay: str = "") -> Page:
    """The page.

    Args:
        c: the comparison.
        replay: the command that repeats it.
    """
    first, second = names(c)
    little = _little(c)
    return Page(
        name=f"{second} against {first}",
        kicker=" \u00b7 ".join(dict.fromkeys(("Mechanome", "explain", "two models", *c.base.notes, *c.tuned.notes))),
        title=(f"{second} against {first}",),
        subtitle=(
            f"First: {first}; second: {second}. {counted(len(c.pairs), 'prompt')}, asked the same of both. What "
            "changed, and in which parts?",
        ),
        verdict=("Little changed" if little else "Changed", little, _verdict(c)),
        story=tuple(story(c)),
        sections=tuple(_sections(c)),
        measured=_MEASURED,
        limits=_LIMITS,
        facts=(
            ("first model", c.base.model),
            ("second model", c.tuned.model),
            ("seed", str(c.base.seed)),
            ("seconds", f"{c.base.seconds + c.tuned.seconds:.0f}"),
        ),
        command=replay,
    )


def names(c: ModelComparison) -> tuple[str, str]:
    """Both models by as little of their path as tells them apart."""
    first, second = (model.rstrip("/").split("/") for model in (c.base.model, c.tuned.model))
    depths = range(1, max(len(first), len(second)) + 1)
    depth = next((n for n in depths if first[-n:] != second[-n:]), 1)
    return "/".join(first[-depth:]), "/".join(second[-depth:])


def story(c: ModelComparison) -> Iterator[Line]:
    """What was found, in sentences."""
    for name, average in c.quantities().items():
        yield (f"{name.capitalize()}: {_written(average)}.",)
    if c.obstacle:
        yield (f"Parts are not compared one by one: {c.obstacle}.",)
    for word, sign in (("lost", -1), ("gained", 1)):
        changed = [change for change in c.changes() if sign * change.change > 0 and not change.echo]
        if changed:
            yield (f"{_capital(changed[0].name)} {word} most: {_moved(changed[0])}.",)


def _little(c: ModelComparison) -> bool:
    """Whether predictions and verdicts are the same, and preference and parts moved little."""
    both = c.comparable
    alike = all(pair.same_prediction and pair.base.verdict == pair.tuned.verdict for pair in c.pairs)
    if not both or not alike:
        return False
    moved = [float(np.mean([abs(b.high - a.high) for a, b in both])), *(abs(x.change) for x in c.changes(1))]
    return max(moved) <= ALIKE * abs(float(np.mean([a.gap for a, _ in both])))


def _verdict(c: ModelComparison) -> Line:
    told = [pair.same_prediction for pair in c.pairs if pair.same_prediction is not None]
    verdicts = sum(pair.base.verdict == pair.tuned.verdict for pair in c.pairs)
    return (
        f"{_preference(c)}{_part(c)}{sum(told)} of {counted(len(told), 'prediction')} the same, {verdicts} of "
        f"{counted(len(c.pairs), 'verdict')} the same. Explained: first {c.base.counts['explained']}, second "
        f"{c.tuned.counts['explained']}.",
    )


def _preference(c: ModelComparison) -> str:
    both = [pair.both for pair in c.pairs if pair.both is not None]
    if not both:
        return ""
    first, second = (float(np.mean([m.high for m in column])) for column in zip(*both))
    mean = "" if len(both) == 1 else f", on average over {len(both)} prompts"
    return (
        f"The preference for the first model's answer goes from {number(first)} to {number(second)} logits{mean}: a "
        f"change of {number(second - first)}. "
    )


def _part(c: ModelComparison) -> str:
    changed = [change for change in c.changes(1) if not change.echo]
    return f"{_capital(changed[0].name)} changes most: {_moved(changed[0])}. " if changed else ""


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def _moved(change: Change) -> str:
    ends = "" if change.interval is None else f" {_ends(change.interval)}"
    return (
        f"from {number(change.base)} to {number(change.tuned)} logits, a change of {number(change.change)}{ends} "
        f"({counted(change.n, 'prompt')})"
    )


def _written(average: Average) -> str:
    ends = "" if average.interval is None else f" {_ends(average.interval)}"
    return f"{number(average.estimate)}{ends}, over {counted(average.n, 'prompt')}"


def _ends(interval: Interval) -> str:
    return f"[{number(interval.lo)}, {number(interval.hi)}]"


def _sections(c: ModelComparison) -> Iterator[Section]:
    yield Section(
        "Every prompt in both models",
        (
            "The second model is asked for the first one's answer against its foil, after the same prompt and "
            "counterfactual. Verdicts lead to the pages.",
        ),
        Sheet(_COLUMNS, [_row(pair) for pair in c.pairs], [n for n, p in enumerate(c.pairs) if p.both is None]),
    )
    remarks = [[pair.base.item.id, said] for pair in c.pairs if (said := _remarks(pair))]
    if remarks:
        yield Section(
            "What is not explained, and why",
            ("What failed in the test of a model, or why it was refused.",),
            Sheet([("id", ""), ("reason", "")], remarks),
        )
    changes = c.changes()
    if changes:
        yield Section(
            "Parts that gained or lost effect",
            (
                "What each part alone restores, in logits: the share times the model's own gap. Listed are the parts "
                f"with the largest mean change over prompts, from {FEWEST} prompts on with a 95 % paired bootstrap "
                "interval. Echoes of the input, in italics, are ranked apart, below the others.",
            ),
            Sheet(
                [(name, "logits" if name in _IN_LOGITS else "") for name in _CHANGED],
                [list(map(str, _change(change))) for change in changes],
                [n for n, change in enumerate(changes) if change.echo],
            ),
        )


_COLUMNS = (
    ("id", ""),
    ("prompt", ""),
    ("first", "verdict"),
    ("second", "verdict"),
    ("says", "the likeliest next token: first \u2192 second model"),
    ("rather than", "the first model's foil"),
    ("preference", "logit of the first model's answer minus logit of its foil: first \u2192 second model"),
    ("overlap", "parts named by both, among those named by either"),
    ("rank corr.", "of the effects of all parts"),
)


def _row(pair: Pairing) -> list[Any]:
    a, b = pair.base.measured, pair.tuned.measured
    return [
        pair.base.item.id,
        cut(pair.base.item.text, 60),
        Link(pair.base.verdict, pair.base.page),
        Link(pair.tuned.verdict, pair.tuned.page),
        _arrow("" if a is None else unbroken(a.says), "" if b is None else unbroken(b.says)),
        "" if a is None else unbroken(a.foil),
        _arrow("" if a is None else number(a.high), "" if pair.both is None else number(pair.both[1].high)),
        "" if pair.overlap is None else whole(pair.overlap),
        number(pair.correlation),
    ]


def _arrow(base: str, tuned: str) -> str:
    return f"{base} \u2192 {tuned}" if base and tuned else base or tuned


def _remarks(pair: Pairing) -> str:
    """Why the two cannot be compared, or why one is not explained."""
    said = [f"{name}: {r.reason}" for name, r in (("first", pair.base), ("second", pair.tuned)) if r.reason]
    return "; ".join(said) or pair.why_not


_CHANGED = ("part", "first", "second", "change", "interval", "n")
_IN_LOGITS = ("first", "second", "change", "interval")


def _change(x: Change) -> list[Any]:
    interval = "\u2013" if x.interval is None else _ends(x.interval)
    name = f"{x.name} (echo of the input)" if x.echo else x.name
    return [name, number(x.base), number(x.tuned), number(x.change), interval, x.n]


def page(c: ModelComparison) -> Group:
    """The terminal page."""
    return Group(*_blocks(c))


def _blocks(c: ModelComparison) -> Iterator[Any]:
    first, second = names(c)
    yield Text(f"mechanome explain \u00b7 {second} against {first} (first: {first})\n", style="dim")
    yield Unbroken(f"{'Little changed' if _little(c) else 'Changed'}. {text(_verdict(c))}\n")
    for pair in c.pairs:
        a, b = pair.base.measured, pair.tuned.measured
        said = "" if a is None or b is None else f": {quoted(a.says)} \u2192 {quoted(b.says)}"
        tail = f" ({pair.why_not})" if pair.why_not else ""
        yield Text(f"{pair.base.item.id}  {cut(pair.base.item.text, 48)}", style="bold")
        yield Unbroken(f"    {pair.base.verdict} \u2192 {pair.tuned.verdict}{said}{tail}")
    yield Text()
    for line in story(c):
        yield Unbroken(text(line))
    changes = c.changes()
    if changes:
        yield Text()
        yield Table(_CHANGED, [_change(change) for change in changes], "effect in logits").rich()


_MEASURED: tuple[Line, ...] = (
    ("Each model was explained by itself, one after the other; their pages say how. Both were asked the same: the "
     "first one's answer, foil and counterfactual.",),
    ("Overlap: parts named by both, among those named by either. Rank correlation: Spearman's, over the share that "
     "each part alone restores. Intervals: 95 %, bootstrap over prompts (BCa), paired where both models are in it; "
     "exact binomial for shares of prompts.",),
)  # fmt: skip
_LIMITS: tuple[Line, ...] = (
    ("The listed parts are the largest of many changes, so their intervals are too optimistic: confirm a change on "
     "other prompts.",),
    ("A part with the same place need not do the same in both models.",),
    ("The question is the first model's. What the second does instead is explained only where you ask for its own "
     "answer.",),
)  # fmt: skip
