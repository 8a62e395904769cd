"""A question whose every choice is fixed, measured whether or not there is enough to explain.

A tuned model may have lost the preference that the base was explained by: then it is refused an explanation, and yet
what its parts still do, in logits, is what a comparison is about. It may also have read the answer with another leading
space, as it would now continue: then what it explained is another question.
"""

from __future__ import annotations

from dataclasses import replace

from mechanome.core import MechanomeError
from mechanome.engine import Model
from mechanome.engine.memory import Budget
from mechanome.explain.answers import Continuation, fork
from mechanome.explain.components import KINDS
from mechanome.explain.effects import having, parts
from mechanome.explain.items import Item
from mechanome.explain.prompts import Prompt
from mechanome.explain.question import against
from mechanome.explain.result import Measured, Result
from mechanome.explain.subject import Subject
from mechanome.explain.tokens import Prediction, quoted


def settled(result: Result, model: Model, budget: Budget) -> Result:
    """A result with the numbers of exactly what its item asks, where they can be measured.

    Args:
        result: of an item with answer, foil and counterfactual.
        model: the model it is of.
        budget: memory for the largest piece.
    """
    m, item = result.measured, result.item
    if item.answer is None or item.foil is None or item.counterfactual is None:
        return result
    if m is not None and (m.answer, m.foil) == (item.answer, item.foil):
        return result
    other = "" if m is None else f"it read answer and foil as {quoted(m.answer)} and {quoted(m.foil)}, another question"
    return replace(result, verdict="refused", reason=other or result.reason, measured=_measured(item, model, budget))


def _measured(item: Item, model: Model, budget: Budget) -> Measured | None:
    """The effects of all parts, with none named; None where not even they can be measured."""
    assert item.answer is not None and item.foil is not None and item.counterfactual is not None
    try:
        own, other = Prompt.of(model, item.prompt), Prompt.of(model, item.counterfactual, "the counterfactual")
        if own.length != other.length or own.ids == other.ids:
            return None
        answer, foil = (
            Continuation.of(model, model.tokenizer(text, add_special_tokens=False)["input_ids"])
            for text in (item.answer, item.foil)
        )
        fork(answer, foil)
        question = against(model, Subject(own, answer, foil), other)
        grids = [parts(model, question, k.point, k.axis, budget, True) for k in KINDS if having(model, k.point)]
    except MechanomeError:
        return None
    return Measured.of_question(question, Prediction.of(model, question.clean_logits, 1), grids)
