"""Sections of the report page about the prompt: what is said next, and which tokens and layers that depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mechanome.core import Interval, Table
from mechanome.explain import story
from mechanome.explain.explanation import Explanation
from mechanome.explain.importance import HIDDEN_LAST, Importance
from mechanome.explain.tokens import quoted
from mechanome.heads import HIDDEN_FROM
from mechanome.report import (
    Bars,
    Cell,
    Choice,
    Line,
    Lines,
    Option,
    Passage,
    Section,
    Series,
    Sheet,
    Stack,
    TokenStrip,
    number,
)
from mechanome.report.rendering import visible

_TOP = 3
"""Tokens named for each measure."""
_FEW = 20
"""Tokens below which a rank correlation is said to rest on little."""


def chat(e: Explanation) -> Section:
    """A chat as its tokens."""
    return Section(
        "The chat, as the model reads it",
        (
            "The model sees one row of tokens. Shaded: the messages. The rest is its chat template, which says who "
            "speaks; it ends where the model's own turn begins.",
        ),
        Passage(e.question.tokens, set(e.question.content), "message"),
    )


def prediction(e: Explanation) -> Section:
    """The likeliest next tokens after both prompts."""
    q = e.question
    columns = [
        (f"after the {name}", [t.text for t in p.tokens], list(p.probabilities))
        for name, p in (("prompt", e.prediction), ("counterfactual", e.counter_prediction))
    ]
    behind = (" Both are followed by ", story.token(q.shared_text), ", which answer and foil share.")
    return Section(
        "What the model says next",
        (
            "The likeliest next tokens after the prompt and after the counterfactual, \u201c",
            story.counterfactual(e),
            "\u201d.",
            *(behind if q.shared else ()),
            " The preference explained below is the logit of ",
            story.answer(e),
            " minus the logit of ",
            story.foil(e),
            f": {number(q.high)} after the prompt, {number(q.low)} after the counterfactual.",
        ),
        Bars(columns, {q.answer.text: "answer", q.foil.text: "foil"}),
        tuple(f"{line[0].upper()}{line[1:]}. " for line in q.scores.sentences(q.high)),
        ("One run of each prompt; probabilities are the softmax of the logits at the last position.",),
        ("One next token is explained, not the text that would follow it.",),
    )


def tokens(e: Explanation) -> Section:
    """Every token, by hiding it and by the measures of its importance."""
    options = list(_hiding(e))
    pictures: list[Choice | Sheet] = []
    if e.importance is not None:
        options += _measures(e.importance)
        pictures.append(_agreement(e.importance))
    return Section(
        "Which tokens it depends on",
        (
            "Green: the answer needs this; orange: it does better without it. Hiding tokens and running the model "
            "again is the causal test: from every later position, in logits of the preference, as in the story above; "
            "and from the last position alone. Contribution, norm and attention are read from a single run: they are "
            "claims about the last position, and are held against hiding from it.",
        ),
        Stack([Choice("token importance", options, _numbers(e)), *pictures]),
        _finding(e),
        (
            "Hidden means: in every layer, the queries named cannot attend to the token, and the rest of their "
            f"attention is renormalized. {_runs(e)} Contribution: the share of each layer's attention output at "
            "the last position that comes from the token, by projection, mean over layers (Cunningham and Mu\u00e7a "
            "Cirone 2026). Norm-based: attention times the length of the transformed value. All three are for the last "
            "position. The first token takes surplus attention in most models, so it is left out of agreement.",
        ),
        (
            "Contribution, norm and attention say what the last position reads, not whether it speaks for the answer. "
            "Hiding a token says that it is needed, not what for; tokens that stand in for each other look unneeded.",
        ),
    )


def _runs(e: Explanation) -> str:
    """How many runs hiding took."""
    each = "From the last position: one run a token."
    if e.hidden is None:
        return each
    n = e.hidden.together
    later = "one run a token" if n == 1 else f"one run per group of {n} neighbors, which still see each other"
    return f"From every later position: {later}. {each if e.importance is not None else ''}".rstrip()


def _hiding(e: Explanation) -> Iterator[Option]:
    if e.hidden is None:
        return
    q, hidden = e.question, e.hidden
    cells = [*hidden.groups, (q.length - 1,)]
    marks = {
        i: ", ".join(f"\u2192 {visible(q.other_tokens[p])}" for p in cell if p in q.differing)
        for i, cell in enumerate(cells)
        if set(cell) & set(q.differing)
    }
    strip = TokenStrip(
        tuple("".join(q.tokens[p] for p in cell) for cell in cells),
        [*(-x for x in hidden.change.tolist()), None],
        "logits of the preference lost",
        marks,
        positions=[story.positions(cell) for cell in cells] if hidden.together > 1 else (),
    )
    these = (
        "this token"
        if hidden.together == 1
        else f"these tokens together: one cell is {hidden.together} neighbors, the last one fewer"
    )
    yield Option(
        f"hidden from {HIDDEN_FROM['later']}",
        strip,
        f"What the preference loses, in logits, when no later token can look at {these}. Nothing comes after the last "
        "token. Arrows mark what the counterfactual has instead.",
    )


def _measures(found: Importance) -> Iterator[Option]:
    hidden = found.masking
    yield Option(
        f"hidden from {HIDDEN_FROM[hidden.hidden_from]}",
        TokenStrip(hidden.tokens, hidden.effects.tolist(), "nats of log p(answer) lost"),
        "What the log-probability of the answer loses, in nats, when the last token alone cannot look at this one: "
        "the measures are held against this.",
    )
    for measure in found.measures:
        said = measure.definition
        strip = TokenStrip(found.tokens, measure.values.tolist(), measure.title)
        yield Option(measure.title, strip, f"{said[0].upper()}{said[1:]}; mean over layers.")


def _numbers(e: Explanation) -> Table:
    """Everything of every token, row by row; where neighbors were hidden together, each has the number of all."""
    q, hidden, found = e.question, e.hidden, e.importance
    columns: dict[str, list[Any]] = {"position": list(range(q.length)), "token": [quoted(t) for t in q.tokens]}
    if hidden is not None:
        columns[f"hidden from {HIDDEN_FROM['later']} (logits of the preference lost)"] = [
            None if (x := hidden.at(p)) is None else -x for p in range(q.length)
        ]
        if hidden.together > 1:
            columns["hidden together with"] = [
                next((story.positions(group) for group in hidden.groups if p in group), "") for p in range(q.length)
            ]
    if found is not None:
        columns[HIDDEN_LAST] = found.masking.effects.tolist()
        columns |= {measure.title: measure.values.tolist() for measure in found.measures}
    return Table(list(columns), list(zip(*columns.values())))


def _agreement(found: Importance) -> Sheet:
    rows: list[tuple[str | Cell, ...]] = []
    for measure in found.measures:
        order = [p for p in measure.values.argsort(descending=True).tolist() if p not in found.masking.sink]
        top = Passage([found.tokens[p] for p in order[:_TOP]], (), "top")
        rows.append((measure.title, agreement(measure.agreement) or measure.undefined, top))
    return Sheet(
        (
            ("measure", "of each token, for the last position"),
            (
                "agrees with hiding from the last position",
                "Spearman's rank correlation, over tokens, with the size of that effect; 1 is the same order",
            ),
            ("its top tokens", "without the first token"),
        ),
        rows,
    )


def agreement(found: Interval | None, digits: int = 2) -> str:
    """A rank correlation with its interval; empty for none."""
    if found is None:
        return ""
    low, estimate, high = (number(x, digits) for x in (found.lo, found.estimate, found.hi))
    return f"{estimate} [{low}, {high}]"


def _finding(e: Explanation) -> Line:
    if e.importance is None:
        return ()
    known = [m for m in e.importance.measures if m.agreement is not None]
    if not known:
        return ("The measures cannot be compared with hiding on this prompt.",)
    n = known[0].agreement.n if known[0].agreement is not None else 0
    few = ": a few tokens say little" if n < _FEW else ""
    return (
        f"Agreement with hiding from the last position is over {n} tokens of one prompt, with a 95 % interval{few}.",
    )


def layers(e: Explanation) -> Section:
    """The logit lens."""
    lens, q = e.lens, e.question
    assert lens is not None
    series = [
        Series(t.text, role, values.tolist(), _tips(e, t.text, values, ranks))
        for t, role, values, ranks in (
            (q.answer, "answer", lens.answer, lens.answer_rank),
            (q.foil, "foil", lens.foil, lens.foil_rank),
        )
    ]
    return Section(
        "Where in the layers the answer appears",
        ("How likely answer and foil would be if the model stopped after each layer. Only the last point is real.",),
        Lines(lens.layers, series, "after layer", [quoted(t.text) for t in lens.top], "top token"),
        method=(
            "Logit lens: the last position's residual stream after each layer goes through the model's own last norm "
            "and unembedding. One run.",
        ),
        limit=(
            "The model never stops early, and early layers need not speak the language of the last one: an answer "
            "that is not seen may still be there.",
        ),
    )


def _tips(e: Explanation, name: str, values: torch.Tensor, ranks: tuple[int, ...]) -> list[str]:
    assert e.lens is not None
    places = [layer if layer == "embedding" else f"layer {layer}" for layer in e.lens.layers]
    return [
        f"after {place}: {quoted(name)} has {p:.2g}, rank {r:,}; the top token is {top}"
        for place, p, r, top in zip(places, values.exp().tolist(), ranks, e.lens.top)
    ]
