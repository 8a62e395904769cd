"""Sections of the report page about the prompt: what is said next, and which tokens and layers that depends on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mechanome.core import Interval
from mechanome.explain import story
from mechanome.explain.explanation import Explanation
from mechanome.explain.importance import Importance
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

_TOP = 3
"""Tokens named for each measure."""


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
    numbers = e.importance.table() if e.importance is not None else options[0].picture.table()
    assert numbers is not None
    return Section(
        "Which tokens it depends on",
        (
            "Green: the answer needs this token; orange: it does better without it. Hiding a token and running the "
            "model again is the causal test. Contribution, norm and attention are read from a single run: they are "
            "claims, and are shown beside the test.",
        ),
        Stack([Choice("token importance", options, numbers), *pictures]),
        _finding(e),
        (
            "Hidden means: in every layer, the queries named cannot attend to the token, and the rest of their "
            "attention is renormalized; one run a token. Contribution: the share of each layer's attention output at "
            "the last position that comes from the token, by projection, mean over layers (Cunningham and Mu\u00e7a "
            "Cirone 2026). Norm-based: attention times the length of the transformed value. All are for the last "
            "position. The first token takes surplus attention in most models, so it is left out of agreement.",
        ),
        (
            "Contribution, norm and attention say what the last position reads, not whether it speaks for the answer. "
            "Hiding a token says that it is needed, not what for; tokens that stand in for each other look unneeded.",
        ),
    )


def _hiding(e: Explanation) -> Iterator[Option]:
    if e.hidden is None:
        return
    q, hidden = e.question, e.hidden
    lost = [hidden.at(p) for p in range(q.length)]
    marks = {p: f"\u2192 {q.other_tokens[p].strip() or quoted(q.other_tokens[p])}" for p in q.differing}
    yield Option(
        f"hidden from {HIDDEN_FROM['later']}",
        TokenStrip(q.tokens, [None if x is None else -x for x in lost], "logits of the preference lost", marks),
        "What the preference loses, in logits, when no later token can look at this one. Nothing comes after the last "
        "token. Arrows mark what the counterfactual has instead.",
    )


def _measures(found: Importance) -> Iterator[Option]:
    hidden = found.masking
    yield Option(
        f"hidden from {HIDDEN_FROM[hidden.hidden_from]}",
        TokenStrip(hidden.tokens, hidden.effects.tolist(), "nats of log p(answer) lost"),
        "What the log-probability of the answer loses, in nats, when the last token alone cannot look at this one: "
        "the causal reference for the measures.",
    )
    for measure in found.measures:
        said = measure.definition
        strip = TokenStrip(found.tokens, measure.values.tolist(), measure.title)
        yield Option(measure.title, strip, f"{said[0].upper()}{said[1:]}; mean over layers.")


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
                "agrees with hiding",
                "Spearman's rank correlation, over tokens, with the size of the effect of hiding; 1 is the same order",
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
    return (f"Agreement is over {n} tokens of one prompt, with a 95 % interval: a few tokens say little.",)


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
