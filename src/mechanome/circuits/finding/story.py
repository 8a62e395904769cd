"""What a discovery says in words, for the page and for the terminal: title, verdict, and the finding step by step."""

from __future__ import annotations

from collections.abc import Iterator

from mechanome.circuits.certification import Certificate
from mechanome.circuits.finding.discovery import Discovery
from mechanome.circuits.finding.measuring import ENOUGH
from mechanome.circuits.finding.rows import strongest_heads
from mechanome.circuits.finding.unit_words import finding
from mechanome.circuits.finding.ways import WAYS
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import SizeCurve
from mechanome.core import Interval
from mechanome.report import Line, Span, number
from mechanome.report.rendering import share, visible

WORDS = {
    "faithful": "Faithful on new examples",
    "undecided": "Undecided",
    "not faithful": "Not faithful on new examples",
    "no effect": "Nothing to explain",
}
"""The verdict, for people."""
OTHERS = {
    "patch": "what it carries on the counterfactual",
    "zero": "zero",
    "mean": "its mean over the examples",
    "positional-mean": "its mean at the same position",
    "noise": "what it carries on a noisy input",
}
"""What an edge outside the circuit carries, by intervention."""
UNITS = {"logit_diff": "logit of the answer minus that of the foil", "logprob": "log-probability of the answer, nats"}
UNIT = {"logit_diff": "logits", "logprob": "nats"}
"""Of the metric and of effects, which are its changes."""
_HEADS = 8
_QUOTED = 160
"""Characters of an example that are shown."""
_OVER = 1.2
"""Faithfulness above which the circuit is said to overshoot."""


def title(d: Discovery) -> Line:
    """The circuit's size and what it keeps."""
    n = f"{len(d.circuit):,} of {d.graph.n_edges:,} edges"
    if d.settings.units is not None and d.settings.level == "node":
        n = f"{int(d.circuit.used.sum()):,} of {len(d.graph.sources):,} sources"
    value = d.faithfulness.value
    if value is None:
        return (f"{n}: nothing to explain in {d.halves.finding.name}",)
    return (f"{n} keep ", Span(share(value), "strong"), f" of {d.halves.finding.name}")


def subtitle(d: Discovery) -> Line:
    """The task, and what is measured."""
    task = d.halves.finding
    about = f"{task.summary.rstrip('.')}. " if task.summary else ""
    return (f"{about}In {d.model.name}; measured by the {UNITS[task.metric]}.",)


def verdict(d: Discovery) -> Line:
    """Why the verdict is what it is."""
    n = len(d.halves.held_out)
    if d.faithfulness.value is None:
        return (f"On {n} held-out examples {d.faithfulness.note}, so no circuit can keep it.",)
    return (
        f"On {n} examples that it was not found on, the circuit keeps {kept(d.faithfulness)} of the effect. "
        f"Faithful means that the whole interval is at least {share(ENOUGH)}.",
    )


def story(d: Discovery) -> list[Line]:
    """The finding, step by step."""
    return list(_story(d))


def _story(d: Discovery) -> Iterator[Line]:
    h, chosen, held = d.halves, d.measures.chosen, d.measures.held_out
    dropped = "; ".join(f"{n}: {reason}" for reason, n in h.dropped.items())
    yield (
        f"{d.model.name} does {h.right} of {h.tried} examples right ({share(h.right / h.tried)}). {h.used} are used: "
        f"{len(h.finding)} to find the circuit, {len(h.held_out)} others to measure it."
        + (f" Dropped: {dropped}." if dropped else ""),
    )
    yield from _example(d)
    own = held.own
    yield (
        f"The metric is {number(float(own.clean.mean()))} {UNIT[h.finding.metric]} on inputs and "
        f"{number(float(own.empty.mean()))} where every edge carries {OTHERS[own.intervention]}: "
        "that difference is the effect, 100\u202f%.",
    )
    yield (_method(d),)
    heads, shown = d.heads, strongest_heads(d, _HEADS)
    more = f" and {len(heads) - len(shown)} more" if len(heads) > len(shown) else ""
    things = "edges" if d.settings.level == "edge" else "sources"
    size = len(d.circuit) if d.settings.level == "edge" else int(d.circuit.used.sum())
    lost = f" {chosen.size:,} {things} were chosen; those on no path from input to output are left out."
    part = share(d.circuit.share, 2 if d.circuit.share > 0.0001 else 4)
    yield (
        f"The circuit: {len(d.circuit):,} edges ({part} of all) between "
        f"{int(d.circuit.used.sum())} sources, {len(heads)} of them heads"
        + (f" ({', '.join(shown)}{more})." if shown else ".")
        + (lost if chosen.size != size else ""),
    )
    rest, _ = d.without.values()
    yield (
        f"It keeps {kept(d.measures.finding.faithfulness)} on the examples it was found on, {kept(d.faithfulness)} on "
        f"the held-out ones. All other edges without it keep {kept(rest)}.",
    )
    if (d.faithfulness.value or 0.0) > _OVER:
        yield ("It keeps more than the whole effect: edges that work against the answer were left out.",)
    if held.curve is not None:
        yield (
            f"Over sizes {reach(held.curve)}, held out: area under the curve (CPR) {value(held.curve.cpr)}, "
            f"distance from the model (CMD) {value(held.curve.cmd)}.",
        )
    if d.stability is not None:
        yield (_stability(d),)
    if d.certificate is not None:
        yield (_certificate(d.certificate),)
    if d.carriers is not None:
        yield (f"{finding(d.carriers)} Measured on the held-out examples.",)


def _example(d: Discovery) -> Iterator[Line]:
    """The first example, where it is text."""
    first = d.halves.finding[0]
    if not (isinstance(first.inputs, str) and isinstance(first.answer, str)):
        return
    rather = f", not {_quoted(first.foil)}" if isinstance(first.foil, str) else ""
    instead = f" Counterfactual: {_quoted(first.counterfactual)}." if isinstance(first.counterfactual, str) else ""
    yield (f"One example: after {_quoted(first.inputs)} comes {_quoted(first.answer)}{rather}.{instead}",)


def _quoted(text: str) -> str:
    """A text on one line, with its leading space visible; the middle of a long one is left out."""
    short = text if len(text) <= _QUOTED else f"{text[: _QUOTED // 2]} \u2026 {text[-_QUOTED // 2 :]}"
    return f"\u201c{visible(short)}\u201d"


def _method(d: Discovery) -> str:
    s, way = d.ranked.screened, WAYS[d.settings.method]
    things = "edges" if d.settings.level == "edge" else "sources"
    if s is None or s.exact is None:
        return f"Method: {d.settings.method}, {way.says}."
    n, every = int(s.verified.sum()), int(s.estimate.known.sum())
    which = f"the strongest {n:,}" if n < every else "all"
    agree = "" if s.agreement is None else f" Rank correlation of both numbers: {interval(s.agreement)};"
    order = "" if s.reordered is None else f", {share(s.reordered)} of pairs change places"
    overlap = (
        ""
        if d.overlap is None
        else f" Chosen by the estimate alone, a circuit of this size shares {share(d.overlap.value)} with it (IoU)."
    )
    return (
        f"All {every:,} {things} were ranked by {s.estimate.method}, an estimate; {which} were then measured exactly."
        f"{agree} {s.signs_changed} of {n} change their sign{order}.{overlap}"
    )


def _stability(d: Discovery) -> str:
    assert d.stability is not None
    points = {point.named: point for point in d.stability.points}
    point = points.get(str(d.measures.chosen.size)) or d.stability.points[-1]
    return (
        f"Given other examples of the same kind, the method's circuits of this size share {interval(point.jaccard)} of "
        f"their {d.stability.kind} (Jaccard; by chance {number(point.chance, 3)}), over {d.stability.samples} "
        f"{d.stability.draw} samples."
    )


def _certificate(found: Certificate) -> str:
    chosen, level = int(found.found.sum()), found.level
    inside = int((found.certified_in & found.found).sum())
    if not inside:
        return f"Certified: none of the {chosen} parts that were chosen. The fewer examples, the less can be certified."
    edits = "insertion, deletion or substitution" if level.promised == 1 else f"{level.promised} such changes"
    return (
        f"Certified: {inside} of the {chosen} parts that were chosen. No {edits} of an example can turn the majority "
        f"of random sub-datasets against them (confidence {1 - level.alpha:g}, all parts together)."
    )


def reach(curve: SizeCurve) -> str:
    """How far a curve goes: areas under a shorter one are no areas over all."""
    last = curve.sizes[-1]
    return "up to all edges" if last == 1 else f"up to {share(last)} of all edges (not comparable with areas over all)"


def kept(found: Measured) -> str:
    """A share with its interval, or why there is none."""
    if found.value is None:
        return f"an undefined share ({found.note})"
    at = found.interval
    ends = "" if at is None else f" (95\u202f% interval {number(100 * at.lo, 0)} to {share(at.hi)})"
    return f"{share(found.value)}{ends}"


def value(found: Measured, digits: int = 2) -> str:
    """A number with its interval, or why there is none."""
    if found.value is None:
        return f"not defined ({found.note})"
    return number(found.value, digits) if found.interval is None else interval(found.interval, digits)


def interval(at: Interval, digits: int = 2) -> str:
    """An estimate with its interval."""
    return f"{number(at.estimate, digits)} [{number(at.lo, digits)}, {number(at.hi, digits)}]"
