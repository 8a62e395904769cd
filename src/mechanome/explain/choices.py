"""Automatic answers and foils: what the model itself says, followed until it parts from what was given.

Where one of the two is given and several tokens long, the other may begin with the same tokens (" New York", " New
Jersey"). So the model is followed along the given one, and the first token that it would have said instead ends the
automatic one.
"""

from __future__ import annotations

from torch import Tensor

from mechanome.core import BadInput
from mechanome.engine import Batch, Model
from mechanome.explain.answers import Continuation, read
from mechanome.explain.prompts import Prompt
from mechanome.explain.tokens import Token, percent


def next_logits(model: Model, row: Batch) -> Tensor:
    """Logits after the last token of one row, `[vocab]`, float32 on the CPU."""
    logits = model.run(row, logits="last").logits
    assert logits is not None
    return logits[0].float().cpu()


def all_logits(model: Model, row: Batch) -> Tensor:
    """Logits at every position of one row, `[pos, vocab]`, float32 on the CPU."""
    logits = model.run(row).logits
    assert logits is not None
    return logits[0].float().cpu()


def choose_answer(
    model: Model, prompt: Prompt, given: str | None, foil: Continuation | None, last: Tensor, choices: list[str]
) -> Continuation:
    """The answer: as given, or the model's likeliest continuation up to where it leaves the foil.

    Raises:
        BadInput: an answer without a token, or a foil that is what the model says itself.
    """
    share = last.softmax(-1)
    if given is not None:
        answer, top = read(model, "answer", prompt, given, last, choices), Token.of(model, int(last.argmax()))
        if answer.ids[0] != top.id:
            choices.append(
                f"the model itself prefers {top} ({percent(float(share[top.id]))}) to the answer given "
                f"({percent(float(share[answer.ids[0]]))})"
            )
        return answer
    found = _along(model, prompt, foil, last)
    if found is None:
        raise BadInput(f"foil {foil}", "it is the answer, what the model says itself", "choose another foil")
    answer = found
    what = (
        "the model's likeliest next token" if len(answer.tokens) == 1 else "what the model says, up to leaving the foil"
    )
    choices.append(f"answer: {answer} (automatic: {what}, {percent(float(share[answer.ids[0]]))})")
    return answer


def choose_foil(model: Model, prompt: Prompt, other: Prompt, answer: Continuation, choices: list[str]) -> Continuation:
    """What the model says after the counterfactual up to where it leaves the answer; else the prompt's runner-up."""
    last = next_logits(model, other.batch)
    foil = _along(model, other, answer, last)
    if foil is not None:
        what = "the likeliest next token" if len(foil.tokens) == 1 else "what the model says, up to leaving the answer,"
        share = percent(float(last.softmax(-1)[foil.ids[0]]))
        choices.append(f"foil: {foil} (automatic: {what} after the counterfactual, {share})")
        return foil
    best = next_logits(model, prompt.batch)
    shares = best.softmax(-1)
    best[answer.ids[0]] = float("-inf")
    second = Token.of(model, int(best.argmax()))
    choices.append(
        f"foil: {second} (automatic: the prompt's likeliest other token, {percent(float(shares[second.id]))})"
    )
    return Continuation.of(model, [second.id])


def _along(model: Model, prompt: Prompt, path: Continuation | None, last: Tensor) -> Continuation | None:
    """The model's likeliest tokens up to the first that is not the path's; None where it says the whole path.

    Args:
        path: None for no path, so that the first token ends it.
        last: next-token logits after the prompt, `[vocab]`.
    """
    ids = [] if path is None else path.ids
    tops = last[None] if len(ids) < 2 else all_logits(model, prompt.followed_by(model, ids[:-1]))[-len(ids) :]
    for n, top in enumerate(tops.argmax(-1).tolist()):
        if n == len(ids) or top != ids[n]:
            return Continuation.of(model, [*ids[:n], top])
    return None
