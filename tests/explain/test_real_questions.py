"""Questions of every kind on the real model: a chat, answers that share their first tokens, other counterfactuals."""

from __future__ import annotations

import pytest

import mechanome as mn
from mechanome.explain.question import ask
from registry_models import need

pytestmark = pytest.mark.real_model

NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def model() -> mn.Model:
    need(NAME)
    return mn.load(NAME, check="off")


def test_the_same_parts_tell_paris_from_other_capitals(model: mn.Model) -> None:
    e = mn.explain("The capital of France is", model, counterfactuals=2, quiet=True)
    [c] = e.stability.comparisons
    assert c.swap.old.text == " France" and c.counterfactual != e.question.counterfactual
    assert c.carries and e.stability.stable == 1
    assert "head 23.4" in [effect.name for effect in c.effects] and len(c.again) > len(c.effects) / 2
    assert c.correlation is not None and c.correlation.lo > 0


def test_only_the_words_of_a_chat_are_swapped(model: mn.Model) -> None:
    chat = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    question = ask(model, chat, "Paris")
    assert question.tokens[:3] == ("<|im_start|>", "system", "\n") and question.tokens[-1] == "\n"
    own = "".join(question.tokens[p] for p in question.content)
    assert own == chat[0]["content"], "the system message of the template is none of the user's"
    assert question.swap is not None and question.swap.position in question.content
    assert question.swap.old.text == " France"
    assert question.other.chat == (
        {"role": "user", "content": question.other.text},
    ) and question.other.text != chat[0]["content"]  # fmt: skip


def test_new_york_parts_from_new_jersey_at_its_second_token(model: mn.Model) -> None:
    prompt, other = (f"The town of {town} is in the state of" for town in ("Brooklyn", "Princeton"))
    question = ask(model, prompt, "New York", "New Jersey", other)
    assert (question.shared_text, question.answer.text, question.foil.text) == (" New", " York", " Jersey")
    rows = model.encode([prompt + " New", other + " New"])
    logits = model.run(rows, logits="last").logits
    york, jersey = model.single_token(" York"), model.single_token(" Jersey")
    expected = (logits[:, york] - logits[:, jersey]).tolist()
    assert [question.high, question.low] == pytest.approx(expected, abs=1e-3)
    whole = model.score_options([prompt, other], [" New York", " New Jersey"]).logprobs
    scores = question.scores
    assert [scores.answer.prompt, scores.foil.prompt] == pytest.approx(whole[0].tolist(), abs=1e-4)
    assert [scores.answer.counterfactual, scores.foil.counterfactual] == pytest.approx(whole[1].tolist(), abs=1e-4)
    assert scores.high == pytest.approx(question.high, abs=1e-3), "what both share cancels"
