"""Further prompts of the same behavior, each made a question of its own: the samples among which the best ranking wins.

What a line leaves open (answer, foil, counterfactual) is chosen as for a prompt that is explained. A prompt that makes
no question is left out with its reason, for a dozen others may do as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mechanome.core import MechanomeError
from mechanome.engine import Model
from mechanome.explain.items import Item
from mechanome.explain.question import Question, ask
from mechanome.explain.tokens import quoted


@dataclass(frozen=True)
class Paraphrases:
    """Questions of one behavior.

    Args:
        questions: one for each prompt that makes one, in order.
        left_out: which prompts make none, and why.
    """

    questions: tuple[Question, ...] = ()
    left_out: tuple[str, ...] = ()


def read(model: Model, items: Sequence[Item], main: Question, most: int, longest: int) -> Paraphrases:
    """Ask them, one after the other.

    Args:
        model: an opened language model.
        items: the prompts.
        main: what is explained, which may be among the prompts, but is no paraphrase of itself.
        most: how many are taken.
        longest: tokens of the longest that is.
    """
    questions: list[Question] = []
    left_out: list[str] = []
    for item in items:
        if len(questions) == most:
            left_out.append(f"no more than {most} of {len(items)} paraphrases were tried, for time")
            break
        try:
            question = ask(model, item.prompt, item.answer, item.foil, item.counterfactual)
        except MechanomeError as refusal:
            why = f"{refusal.what}: {refusal.why}" if refusal.why else refusal.what
            left_out.append(f"paraphrase {item.id} ({quoted(item.text)}) left out: {why}")
            continue
        if any(_same(question, other) for other in questions):
            left_out.append(f"paraphrase {item.id} ({quoted(item.text)}) left out: it is the same as another")
        elif question.length > longest:
            left_out.append(f"paraphrase {item.id} left out: it has more than {longest} tokens")
        elif not _same(question, main):
            questions.append(question)
    return Paraphrases(tuple(questions), tuple(left_out))


def _same(a: Question, b: Question) -> bool:
    rows = ((a.clean, b.clean), (a.corrupted, b.corrupted))
    alike = all(x.input_ids.tolist() == y.input_ids.tolist() for x, y in rows)
    return alike and (a.answer.id, a.foil.id) == (b.answer.id, b.foil.id)
