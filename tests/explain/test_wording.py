"""What is said is true: of preferences that are none, of answers that survive, of tiny numbers, of the weights."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import tiny
import torch
from rich.console import Console, Group

import mechanome as mn
from mechanome.explain import Explanation, headline, story
from mechanome.explain.answers import Continuation
from mechanome.explain.document import document
from mechanome.explain.prompts import Prompt
from mechanome.explain.question import against
from mechanome.explain.subject import Subject
from mechanome.explain.terminal_text import Unbroken
from mechanome.explain.tokens import Prediction, Token, counted, percent, whole
from mechanome.report import text


@pytest.fixture(scope="module")
def found() -> Explanation:
    e = tiny.verified(mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactuals=1, quiet=True))
    return replace(e, prediction=Prediction((e.question.answer,), (0.5,)))


def after(e: Explanation, token: Token) -> Explanation:
    """With this token as what the model says without the parts."""
    removed = replace(e.verification.removed, after=Prediction((token,), (0.5,)))
    return replace(e, verification=replace(e.verification, removed=removed))


def rather(e: Explanation, likeliest: float) -> Explanation:
    """The model prefers the foil, and says it with this probability."""
    q = e.question
    logits = q.clean_logits.clone()
    logits[[q.answer.id, q.foil.id]] = torch.tensor([0.0, 3.0])
    asked = replace(q, clean_logits=logits)
    return replace(e, question=asked, prediction=Prediction((q.foil,), (likeliest,)))


def test_the_verdict_tells_weakening_from_breaking(found: Explanation) -> None:
    q = found.question
    weak = text(headline.verdict(after(found, q.answer)))
    assert f"weakens the answer but does not break it (the model still says {q.answer.text})" in weak
    broken = text(headline.verdict(after(found, q.foil)))
    assert f"90 % of it is lost, and the model then says {q.foil.text};" in broken and "weakens" not in broken


def test_the_headline_says_where_the_model_is_unsure_or_says_something_else(found: Explanation) -> None:
    assert text(headline.verdict(found)).startswith("One of the model's 15 parts")
    q = found.question
    said = text(headline.verdict(rather(found, 0.07)))
    assert f"The model says {q.foil.text} (7.0 %), not {q.answer.text}" in said
    assert f"It prefers {q.foil.text} here" in said and "is \u22123.00 logits" in said
    assert "It is unsure: its likeliest next token has 7.0 %" in said
    assert "unsure" not in text(headline.verdict(rather(found, 0.3)))
    unsure = replace(found, prediction=Prediction((q.answer,), (0.07,)))
    assert text(headline.verdict(unsure)).startswith("The model is unsure: its likeliest next token has 7.0 %. One of")


def test_no_share_of_a_preference_that_is_none(found: Explanation) -> None:
    told, other = ("\n".join(map(text, story.story(e))) for e in (found, rather(found, 0.3)))
    assert "of the preference back" in told and "of the difference between the two prompts back" in other
    assert "of the preference back" not in other
    assert "brings the preference back" not in rather(found, 0.3).html()


def test_the_first_sentence_says_what_follows_the_prompt_itself(found: Explanation) -> None:
    first = text(story.story(found)[0])
    assert (
        first.startswith("The model's likeliest next token is")
        and found.question.opening.tokens[0] == found.question.answer
    )
    q = replace(found.question, shared=(found.question.foil,), shared_text=" New")
    q = replace(q, opening=Prediction((Token(5, " the"),), (0.4,)))
    said = text(story.story(replace(found, question=q))[0])
    assert said.startswith("After the prompt itself the model would say  the (40.0 %). Behind  New, which answer and")
    assert replace(found, question=q).record()["question"]["prediction_before_shared"][0]["text"] == " the"


def test_the_opening_is_the_prediction_after_the_prompt_alone() -> None:
    model = tiny.lonely()
    own, other = Prompt.of(model, tiny.SENTENCE), Prompt.of(model, "the dog sat on the")
    answer, foil = (
        Continuation.of(model, [model.single_token(" cat"), model.single_token(word)]) for word in (" mat", " hat")
    )
    q = against(model, Subject(own, answer, foil), other)
    assert q.shared_text == " cat" and q.answer.text == " mat"
    assert q.opening.tokens[0].id == int(model.run(tiny.SENTENCE).logits[0, -1].argmax())
    assert q.opening.probabilities[0] == pytest.approx(float(model.run(tiny.SENTENCE).logits[0, -1].softmax(-1).max()))


def test_the_smallest_p_and_shares_above_all_are_explained(found: Explanation) -> None:
    assert found.verification.removed.p == pytest.approx(1 / 51)
    least = "p = 0.02 is the smallest possible with 50 random sets"
    page = "\n".join(text(part.finding) for part in document(found).sections)
    assert least in " ".join(str(found).split()) and least in page
    beaten = replace(found.verification.removed, random=(0.95, *[0.0] * 49))
    assert beaten.least == "" and beaten.p == pytest.approx(2 / 51)
    part = replace(found.components[0], restores=1.05)
    more = replace(found, components=(part,))
    assert story.beyond(more).startswith("more than 100 %") and "105 %" in str(more)
    assert story.beyond(more) in " ".join(str(more).split()) and story.beyond(replace(found, components=())) == ""


def test_what_is_known_of_the_weights_is_seen_at_once(found: Explanation) -> None:
    known = replace(found, origin=replace(found.origin, notes=("weights dequantized from Q4_1",)))
    assert document(known).kicker.endswith(" \u00b7 weights dequantized from Q4_1")
    assert "weights dequantized from Q4_1" in "\n".join(str(known).splitlines()[-2:])
    assert "dequantized" not in document(found).kicker and "dequantized" not in str(found)


@pytest.mark.parametrize("width", range(16, 44))
def test_no_line_breaks_within_a_quoted_token(width: int) -> None:
    said = "answer: ' Paris' (the model's likeliest), not ' London' or 'the'; counterfactual ' of' is 74 %"
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(Group(Unbroken(said)))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert " ".join(lines) == said and max(map(len, lines)) <= width
    assert all(line.count("' Paris'") or "Paris" not in line for line in lines)
    assert not any(line.startswith("%") for line in lines)
    assert all(line.count("' of'") or "of'" not in line for line in lines)


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.0, "below 0.1 %"), (0.0009, "below 0.1 %"), (0.0043, "0.43 %"), (0.749, "74.9 %"), (0.99999, "100 %")],
)
def test_a_probability_is_never_said_to_be_nothing(share: float, said: str) -> None:
    assert percent(share) == said


def test_numbers_in_words() -> None:
    assert whole(-0.12) == "\u221212 %" and whole(-0.001) == "0 %" and whole(1.05) == "105 %"
    assert counted(1, "prompt") == "1 prompt" and counted(2, "prompt") == "2 prompts"
