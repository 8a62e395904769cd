"""The finding in plain sentences, each one a template filled with measured numbers, for terminal and page alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from mechanome.explain.tokens import Token, percent, whole
from mechanome.report import Line, Span, number

if TYPE_CHECKING:
    from mechanome.explain.explanation import Explanation

CARRIES = 0.3
"""A position carries the answer at a layer if it alone brings back this share."""

WORTH_SAYING = 0.1
"""A token is mentioned if hiding it does at least this share of what hiding the most important one does."""


LONG = 240
"""Characters of a prompt, beyond which a sentence quotes a piece of it."""
SPAN = 60
"""Characters of tokens that were hidden together, likewise."""


def token(text: str) -> Span:
    """A token set off from the sentence, as it is: with the space it starts with."""
    return Span(text, "token")


def excerpt(text: str, other: str = "") -> str:
    """A text, of a long one the piece around where it stops being like another; by default its beginning."""
    if len(text) <= LONG:
        return text
    alike = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    start = max(0, min(alike - LONG // 2, len(text) - LONG))
    return "\u2026" * (start > 0) + text[start : start + LONG] + "\u2026" * (start + LONG < len(text))


def prompt(e: Explanation) -> str:
    """The prompt, of a long one its end."""
    return excerpt(e.question.prompt, e.question.prompt)


def counterfactual(e: Explanation) -> str:
    """What it is compared with, of a long one the piece that differs."""
    return excerpt(e.question.counterfactual, e.question.prompt)


def answer(e: Explanation) -> Span:
    """The answer, set off."""
    return Span(e.question.answer.text, "answer")


def foil(e: Explanation) -> Span:
    """The foil, set off."""
    return Span(e.question.foil.text, "foil")


def said(e: Explanation, next_token: Token) -> Span:
    """A next token, set off as what it is."""
    sides = {e.question.answer.id: answer(e), e.question.foil.id: foil(e)}
    return sides.get(next_token.id, token(next_token.text))


def span(e: Explanation, group: Sequence[int]) -> str:
    """Neighboring tokens as one text, of a long one its beginning and its end."""
    text = "".join(e.question.tokens[p] for p in group)
    half = SPAN // 2
    return text if len(text) <= SPAN else f"{text[:half]}\u2026{text[-half:]}"


def positions(group: Sequence[int]) -> str:
    """Neighbors by their first and last position: `4\u20137`."""
    return str(group[0]) if len(group) == 1 else f"{group[0]}\u2013{group[-1]}"


def whole_of(e: Explanation) -> str:
    """What shares are shares of, in words: a preference that is none is a difference between two prompts."""
    return "the preference" if e.question.high > 0 else "the difference between the two prompts"


def beyond(e: Explanation) -> str:
    """What a share above 100 % means, where one is shown; else empty."""
    v = e.verification
    shares = [v.removed.share, v.kept.share, *(x for part in e.components for x in (part.restores, part.breaks))]
    if round(100 * max(shares)) <= 100:
        return ""
    return "more than 100 %: the preference ends up beyond its value after the other prompt"


def story(e: Explanation) -> tuple[Line, ...]:
    """What happened, step by step."""
    lines = (_prediction(e), _contrast(e), _hidden(e), _flow(e), _strongest(e), _lens(e), _stability(e))
    return tuple(line for line in lines if line)


def _prediction(e: Explanation) -> Line:
    q = e.question
    top, likeliest = e.prediction.tokens[0], e.prediction.probabilities[0]
    start: Line = ("The model's likeliest next token is ",)
    if q.shared:
        first, share = q.opening.tokens[0], q.opening.probabilities[0]
        start = ("After the prompt itself the model would say ", token(first.text), f" ({percent(share)}). Behind ")
        start = (*start, token(q.shared_text), ", which answer and foil share, its likeliest next token is ")
    if top.id == q.answer.id:
        return (*start, answer(e), f" ({percent(likeliest)}).")
    own = percent(float(q.clean_logits.softmax(-1)[q.answer.id]))
    asked: Line = (f" ({percent(likeliest)}); the answer asked about, ", answer(e), f", has {own}.")
    return (*start, said(e, top), *asked)


def _contrast(e: Explanation) -> Line:
    q, top = e.question, e.counter_prediction.tokens[0]
    still = "still " if top.id == e.prediction.tokens[0].id else ""
    then: Line = (f"it is {still}", said(e, top), f" ({percent(e.counter_prediction.probabilities[0])}).")
    if len(q.differing) == 1:
        p = q.differing[0]
        return ("Swap ", token(q.tokens[p]), " for ", token(q.other_tokens[p]), ", and ", *then)
    return (f"After the counterfactual, which differs in {len(q.differing)} tokens, ", *then)


def _hidden(e: Explanation) -> Line:
    if e.hidden is None:
        return ()
    worst = e.hidden.ranked[:3]
    told = [(change, group) for change, group in worst if change < -WORTH_SAYING * abs(worst[0][0])]
    if not told:
        return ()
    high, n = e.question.high, e.hidden.together
    what = "a token is" if n == 1 else f"neighboring tokens, {n} at a time, are"
    pieces: list[Span | str] = [
        f"The preference, {number(high, 1)} logits, falls most when {what} hidden from every later position: "
    ]
    for place, (change, group) in enumerate(told):
        joint = "" if place == 0 else " or " if place == len(told) - 1 else ", "
        pieces += [joint, token(span(e, group)), f" (to {number(high + change, 1)})"]
    sink = any(0 in group for _, group in told)
    return (*pieces, "; the first token takes surplus attention in most models." if sink else ".")


def _flow(e: Explanation) -> Line:
    runs = carriers(e)
    if not runs:
        return ("No single position carries the answer through the layers.",)
    pieces: list[Span | str] = ["The deciding information sits "]
    for n, (position, first, last) in enumerate(runs[:4]):
        end = ", the last token," if position == e.question.length - 1 else ""
        pieces += [", then " if n else "", "at ", token(e.question.tokens[position]), f"{end} {_span(e, first, last)}"]
    return (*pieces, ".")


def _span(e: Explanation, first: int, last: int) -> str:
    """A run of layers in words."""
    starts, ends = first == e.flow.layers[0], last == e.flow.layers[-1]
    if starts and ends:
        return "in all layers"
    if first == last:
        return f"in layer {first}"
    return f"up to layer {last}" if starts else f"from layer {first} on" if ends else f"in layers {first}\u2013{last}"


def carriers(e: Explanation) -> list[tuple[int, int, int]]:
    """Which position brings back most, as runs of layers: position, first layer, last layer."""
    shares = e.flow.shares.nan_to_num(float("-inf"))
    best = [
        (layer, int(row.argmax()) if float(row.max()) >= CARRIES else None) for layer, row in zip(e.flow.layers, shares)
    ]
    runs = []
    for position, members in groupby(best, key=lambda item: item[1]):
        layers = [layer for layer, _ in members]
        if position is not None:
            runs.append((position, layers[0], layers[-1]))
    return runs


def _strongest(e: Explanation) -> Line:
    part = next((c for c in e.components if not c.echo), None)
    if part is None:
        return ()
    tokens = e.question.tokens
    pieces: list[Span | str] = [
        f"The strongest single part is {part.name}: alone it brings {whole(part.restores)} of {whole_of(e)} back, "
        f"and {whole(part.breaks)} is lost without it. It acts at ",
        token(tokens[part.position]),
    ]
    if part.attended:
        place, weight = part.attended[0]
        pieces += [" and looks at ", token(tokens[place]), f" ({whole(weight)} of its attention)"]
    return (*pieces, ".")


def _lens(e: Explanation) -> Line:
    if e.lens is None or e.lens.settled is None:
        return ()
    layer = e.lens.layers[e.lens.settled]
    where = "right from the embedding" if layer == "embedding" else f"from layer {layer} of {len(e.lens.layers) - 2} on"
    return ("Read off after each layer, ", answer(e), f" is the first choice {where}.")


def _stability(e: Explanation) -> Line:
    n = len(e.stability.comparisons)
    if not n:
        return ()
    others = "another counterfactual" if n == 1 else f"{count(n).lower()} other counterfactuals"
    again = f"{whole(e.stability.found_again)} of them would be named there, too"
    if not e.explained:
        return (
            f"Compared with {others}, these parts, which did not pass the test, would reach its shares in "
            f"{e.stability.stable} of {n}; on average {again}.",
        )
    held = "in it" if n == e.stability.stable == 1 else f"in {e.stability.stable} of {n}"
    return (f"Compared with {others}, the same parts carry the answer {held}; on average {again}.",)


def fewer(e: Explanation) -> str:
    """Why no other counterfactuals, or no more of them, were compared; empty if there are as many as asked for."""
    tested = e.stability
    if not tested.comparisons:
        return tested.conclusion
    return f"no more counterfactuals were compared: {tested.why_none}" if tested.why_none else ""


def count(n: int) -> str:
    """A small number as a word."""
    words = ("None", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return words[n] if n < len(words) else str(n)
