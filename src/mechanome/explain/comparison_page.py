"""The page of a comparison, and the same for the terminal: every prompt in both models, and the parts that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.text import Text

from mechanome.core import Interval, Table
from mechanome.explain.comparison import Change, ModelComparison
from mechanome.explain.pairing import Pairing
from mechanome.explain.summary import cut, unbroken
from mechanome.explain.tokens import quoted, whole
from mechanome.report import Line, Page, Section, Sheet, number, text
from mechanome.report.link import Link


def document(c: ModelComparison, replay: str = "") -> Page:
    """The page.

    Args:
        c: the comparison.
        replay: the command that repeats it.
    """
    same = _alike(c)
    return Page(
        name=f"{c.base.model} and {c.tuned.model}",
        kicker="Mechanome \u00b7 explain \u00b7 two models",
        title=(f"{c.tuned.model} against {c.base.model}",),
        subtitle=(f"{len(c.pairs)} prompts, asked the same of both. What changed, and in which parts?",),
        verdict=("Same predictions and verdicts" if same else "Predictions or verdicts differ", same, _verdict(c)),
        story=tuple(story(c)),
        sections=tuple(_sections(c)),
        measured=_MEASURED,
        limits=_LIMITS,
        facts=(
            ("base", c.base.model),
            ("tuned", c.tuned.model),
            ("seed", str(c.base.seed)),
            ("seconds", f"{c.base.seconds + c.tuned.seconds:.0f}"),
        ),
        command=replay,
    )


def story(c: ModelComparison) -> Iterator[Line]:
    """What was found, in sentences."""
    for name, interval in c.quantities().items():
        yield (f"{name.capitalize()}: {_written(interval)}, over {interval.n} prompts.",)
    if c.obstacle:
        yield (f"Parts are not compared one by one: {c.obstacle}.",)
    for word, sign in (("lost", -1), ("gained", 1)):
        changed = [change for change in c.changes() if sign * change.change > 0]
        if changed:
            yield (f"{_named(changed[0])} {word} most: {_moved(changed[0])}.",)


def _alike(c: ModelComparison) -> bool:
    return all(pair.same_prediction and pair.base.verdict == pair.tuned.verdict for pair in c.pairs)


def _verdict(c: ModelComparison) -> Line:
    told = [pair.same_prediction for pair in c.pairs if pair.same_prediction is not None]
    verdicts = sum(pair.base.verdict == pair.tuned.verdict for pair in c.pairs)
    return (
        f"{sum(told)} of {len(told)} predictions are the same, and {verdicts} of {len(c.pairs)} verdicts. "
        f"Explained: base {c.base.counts['explained']}, tuned {c.tuned.counts['explained']}.",
    )


def _named(change: Change) -> str:
    return change.name[0].upper() + change.name[1:]


def _moved(change: Change) -> str:
    ends = "" if change.interval is None else f" {_ends(change.interval)}"
    prompts = "1 prompt" if change.n == 1 else f"{change.n} prompts"
    return (
        f"from {number(change.base)} to {number(change.tuned)} logits, a change of {number(change.change)}{ends} "
        f"({prompts})"
    )


def _written(interval: Interval) -> str:
    return f"{number(interval.estimate)} {_ends(interval)}"


def _ends(interval: Interval) -> str:
    return f"[{number(interval.lo)}, {number(interval.hi)}]"


def _sections(c: ModelComparison) -> Iterator[Section]:
    yield Section(
        "Every prompt in both models",
        (
            "The tuned model is asked for the base's answer against the base's foil, after the same prompt and "
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
                "with the largest mean change over prompts, with a 95 % paired bootstrap interval.",
            ),
            Sheet(
                [(name, "logits" if name in _IN_LOGITS else "") for name in _CHANGED],
                [list(map(str, _change(change))) for change in changes],
            ),
        )


_COLUMNS = (
    ("id", ""),
    ("prompt", ""),
    ("base", "verdict"),
    ("tuned", "verdict"),
    ("says", "the likeliest next token: base \u2192 tuned"),
    ("rather than", "the base's foil"),
    ("preference", "logit of the base's answer minus logit of its foil: base \u2192 tuned"),
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
    said = [f"{name}: {r.reason}" for name, r in (("base", pair.base), ("tuned", pair.tuned)) if r.reason]
    return "; ".join(said) or pair.why_not


_CHANGED = ("part", "base", "tuned", "change", "interval", "n")
_IN_LOGITS = ("base", "tuned", "change", "interval")


def _change(x: Change) -> list[Any]:
    interval = "" if x.interval is None else _ends(x.interval)
    return [x.name, number(x.base), number(x.tuned), number(x.change), interval, x.n]


def page(c: ModelComparison) -> Group:
    """The terminal page."""
    return Group(*_blocks(c))


def _blocks(c: ModelComparison) -> Iterator[Any]:
    yield Text(f"mechanome explain \u00b7 {c.tuned.model} against {c.base.model}\n", style="dim")
    for pair in c.pairs:
        a, b = pair.base.measured, pair.tuned.measured
        said = "" if a is None or b is None else f": {quoted(a.says)} \u2192 {quoted(b.says)}"
        tail = f" ({pair.why_not})" if pair.why_not else ""
        yield Text(f"{pair.base.item.id}  {cut(pair.base.item.text, 48)}", style="bold")
        yield Text(f"    {pair.base.verdict} \u2192 {pair.tuned.verdict}{said}{tail}")
    yield Text()
    for line in story(c):
        yield Text(text(line))
    changes = c.changes()
    if changes:
        yield Text()
        yield Table(_CHANGED, [_change(change) for change in changes], "effect in logits").rich()


_MEASURED: tuple[Line, ...] = (
    ("Each model was explained by itself, one after the other; their pages say how. Both were asked the same: the "
     "base's answer, foil and counterfactual.",),
    ("Overlap: parts named by both, among those named by either. Rank correlation: Spearman's, over the share that "
     "each part alone restores. Intervals: 95 %, bootstrap over prompts (BCa), paired where both models are in it; "
     "exact binomial for shares of prompts.",),
)  # fmt: skip
_LIMITS: tuple[Line, ...] = (
    ("The listed parts are the largest of many changes, so their intervals are too optimistic: confirm a change on "
     "other prompts.",),
    ("A part with the same place need not do the same in both models.",),
    ("The question is the base's. What the tuned model does instead is explained only where you ask for its own "
     "answer.",),
)  # fmt: skip
