"""What stands above everything: the question, the verdict in a sentence, and what makes a reader doubt it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechanome.explain import story
from mechanome.explain.tokens import percent, whole
from mechanome.report import Line, Span, number

if TYPE_CHECKING:
    from mechanome.explain.explanation import Explanation

UNSURE = 0.1
"""A model is called unsure if its likeliest next token has less than this probability."""


def title(e: Explanation) -> Line:
    """The prompt, and the answer after it; of a chat, its last message and what the model says to it."""
    q = e.question
    before = story.prompt(e) + (" \u2192 " if q.chat is not None else "") + q.shared_text
    gap = " " if q.answer.text.startswith(" ") and not before.endswith(" ") else ""
    return (f"{before}{gap}", story.answer(e))


def subtitle(e: Explanation) -> Line:
    """The contrast."""
    return ("Why not ", story.foil(e), ", as after \u201c", story.counterfactual(e), "\u201d?")


def verdict(e: Explanation) -> Line:
    """Whether the named parts are the mechanism, after what a reader must know of the prediction itself."""
    return (*_doubts(e), *(_explained(e) if e.explained else _not_explained(e)))


def _doubts(e: Explanation) -> Line:
    q, top, likeliest = e.question, e.prediction.tokens[0], e.prediction.probabilities[0]
    said: list[Span | str] = []
    if top.id != q.answer.id:
        own = percent(float(q.clean_logits.softmax(-1)[q.answer.id]))
        said += [
            "The model says ",
            story.said(e, top),
            f" ({percent(likeliest)}), not ",
            story.answer(e),
            f" ({own}). ",
        ]
    if q.high < 0:
        said += [
            "It" if said else "The model",
            " prefers ",
            story.foil(e),
            " here: the preference for ",
            story.answer(e),
        ]
        said += [f" is {number(q.high)} logits. "]
    if likeliest < UNSURE:
        said += [f"{'It' if said else 'The model'} is unsure: its likeliest next token has {percent(likeliest)}. "]
    return tuple(said)


def _explained(e: Explanation) -> Line:
    v = e.verification
    them = "it" if v.tested == 1 else "them"
    return (
        f"{story.count(v.tested)} of the model's {v.parts} parts {'carries' if v.tested == 1 else 'carry'} its "
        "preference for ",
        story.answer(e),
        " over ",
        story.foil(e),
        f": take {them} away and {whole(v.removed.share)} of it is lost",
        *_then(e),
        f"; keep only {them} and {whole(v.kept.share)} of it is there. As many random parts: "
        f"{whole(v.removed.spread.estimate)} and {whole(v.kept.spread.estimate)}.",
    )


def _then(e: Explanation) -> Line:
    """What the model says without the parts: losing half of a preference weakens an answer, and need not break it."""
    top = e.verification.removed.after.tokens[0]
    if top.id == e.question.answer.id:
        return (", which weakens the answer but does not break it (the model still says ", story.said(e, top), ")")
    return (", and the model then says ", story.said(e, top))


def _not_explained(e: Explanation) -> Line:
    reasons = "; ".join(e.verification.failures)
    return (f"The strongest parts are listed below, but they are not shown to be the mechanism: {reasons}.",)
