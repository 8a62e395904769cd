"""Answers of several tokens: where they part from the foil, and what they are worth as wholes."""

from __future__ import annotations

import pytest
import tiny
import torch

import mechanome as mn
from mechanome.core import BadInput
from mechanome.explain.answers import Continuation, Score, Scores, fork, read
from mechanome.explain.choices import choose_answer, choose_foil, next_logits
from mechanome.explain.prompts import Prompt
from mechanome.explain.question import Question, ask
from mechanome.explain.tokens import Token
from mechanome.report import number


def log_prob(prompt: str, ids: list[int]) -> float:
    """The plain loop: one run a token."""
    model = tiny.lonely()
    row, total = model.encode(prompt).input_ids[0].tolist(), 0.0
    for id in ids:
        total += float(model.run([row], logits="last").logits[0].double().log_softmax(-1)[id])
        row = [*row, id]
    return total


def behind(text: str) -> torch.Tensor:
    return tiny.lonely().run(text, logits="last").logits[0]


@pytest.fixture(scope="module")
def question() -> Question:
    """Two answers that share a token, and whose second tokens the counterfactual turns around."""
    model, other = tiny.lonely(), ask(tiny.lonely(), tiny.SENTENCE).counterfactual
    words = [f" {word}" for word in tiny.WORDS]
    ids = [model.single_token(word) for word in words]
    change = {word: (behind(tiny.SENTENCE + word) - behind(other + word))[ids] for word in words}
    shared = max(words, key=lambda word: float(change[word].max() - change[word].min()))
    best, worst = (words[int(n)] for n in (change[shared].argmax(), change[shared].argmin()))
    return ask(model, tiny.SENTENCE, shared + best, shared + worst, other)


def test_the_contrast_is_where_they_part(question: Question) -> None:
    model = tiny.lonely()
    [shared] = question.shared
    assert question.tokens[-1] == question.other_tokens[-1] == question.shared_text == shared.text
    assert question.length == model.encode(tiny.SENTENCE).frame.lengths[0] + 1
    assert question.prompt == tiny.SENTENCE
    for text, value in ((question.prompt, question.high), (question.counterfactual, question.low)):
        logits = behind(text + shared.text)
        assert value == pytest.approx(float(logits[question.answer.id] - logits[question.foil.id]), abs=1e-5)
    [said] = [choice for choice in question.choices if "they share" in choice]
    assert f"they share {shared}, which is put behind both prompts" in said
    assert f"{question.answer} rather than {question.foil}" in said


def test_whole_texts_are_scored_as_the_plain_loop_does(question: Question) -> None:
    shared = [token.id for token in question.shared]
    for token, score in ((question.answer, question.scores.answer), (question.foil, question.scores.foil)):
        assert score.text == question.shared_text + token.text and score.tokens == 2
        assert score.prompt == pytest.approx(log_prob(tiny.SENTENCE, [*shared, token.id]), abs=1e-5)
        assert score.counterfactual == pytest.approx(log_prob(question.counterfactual, [*shared, token.id]), abs=1e-5)
    fork_only = question.scores.high - question.scores.low
    assert fork_only == pytest.approx(question.gap, abs=1e-4), "what both share cancels"


def test_texts_of_one_token_are_scored_too() -> None:
    question = ask(tiny.lonely(), tiny.SENTENCE)
    assert not question.shared and question.shared_text == "" and not question.scores.several
    for token, score in ((question.answer, question.scores.answer), (question.foil, question.scores.foil)):
        assert (score.text, score.tokens) == (token.text, 1)
        assert score.prompt == pytest.approx(log_prob(question.prompt, [token.id]), abs=1e-5)
        assert score.counterfactual == pytest.approx(log_prob(question.counterfactual, [token.id]), abs=1e-5)


def test_an_answer_of_several_tokens_against_one_is_explained_at_its_first() -> None:
    auto = ask(tiny.lonely(), tiny.SENTENCE)
    question = ask(tiny.lonely(), tiny.SENTENCE, auto.answer.text + "mat", None, auto.counterfactual)
    assert question.answer == auto.answer and question.foil == auto.foil and not question.shared
    assert any("what is explained is the first token" in choice for choice in question.choices)
    assert question.scores.answer.tokens == 2 and question.scores.foil.tokens == 1


def test_an_explanation_behind_shared_tokens(question: Question) -> None:
    e = mn.explain(
        tiny.SENTENCE,
        tiny.lonely(),
        answer=question.scores.answer.text,
        foil=question.scores.foil.text,
        counterfactual=question.counterfactual,
        counterfactuals=1,
        quiet=True,
    )
    assert [part.name for part in e.components] == ["head 1.3"]
    assert e.components[0].restores == pytest.approx(1, abs=1e-4)
    record = e.record()["question"]
    assert record["shared"] == [vars(token) for token in question.shared]
    assert record["scores"]["answer"]["log_prob"]["prompt"] == pytest.approx(question.scores.answer.prompt)


def token(model: mn.Model, prompt: str) -> int:
    return int(behind(prompt).argmax())


def test_an_automatic_answer_is_followed_until_it_leaves_the_foil() -> None:
    model = tiny.lonely()
    prompt = Prompt.of(model, tiny.SENTENCE)
    last = next_logits(model, prompt.batch)
    own = model.run([[*prompt.ids, int(last.argmax())]], logits="last").logits[0]
    path = [int(last.argmax()), int(own.argmax())]
    other = Continuation.of(model, [path[0], (path[1] + 1) % len(own)])
    choices: list[str] = []
    answer = choose_answer(model, prompt, None, other, last, choices)
    assert answer.ids == path and "up to leaving the foil" in choices[0] and fork(answer, other) == 1
    foil = choose_foil(model, prompt, prompt, other, choices)
    assert foil.ids == path and "up to leaving the answer" in choices[1]
    for given in (Continuation.of(model, path), Continuation.of(model, path[:1])):
        with pytest.raises(BadInput, match="it is the answer"):
            choose_answer(model, prompt, None, given, last, [])
        second = choose_foil(model, prompt, prompt, given, [])
        assert second.ids == [int(last.topk(2).indices[1])]


def made(*texts: str) -> Continuation:
    return Continuation(tuple(Token(hash(t) % 1000, t) for t in texts), "".join(texts))


def test_fork() -> None:
    assert fork(made("a", "b"), made("a", "c")) == 1 and fork(made("a", "b"), made("d", "b")) == 0
    with pytest.raises(BadInput, match="it is the answer"):
        fork(made("a", "b"), made("a", "b"))
    for pair in ((made("a"), made("a", "b")), (made("a", "b"), made("a"))):
        with pytest.raises(BadInput, match="'a' is the beginning of 'ab'"):
            fork(*pair)


@pytest.mark.parametrize(
    ("answer", "foil", "fork_logit", "said"),
    [
        ((-1.0, -5.0), (-2.0, -1.0), 1.0, []),
        ((-3.0, -5.0), (-2.0, -1.0), 1.0, ["after the prompt 'b' is likelier than 'aa' as a whole"]),
        ((-1.0, -5.0), (-2.0, -1.0), -1.0, ["after the prompt 'aa' is likelier than 'b' as a whole"]),
        ((-1.0, -0.5), (-2.0, -2.0), 1.0, ["does not make 'aa' less likely against 'b'"]),
    ],
    ids=["agree", "less likely", "likelier", "moves the other way"],
)
def test_disagreement_of_the_wholes_is_said(
    answer: tuple[float, float], foil: tuple[float, float], fork_logit: float, said: list[str]
) -> None:
    scores = Scores(Score("aa", 2, *answer), Score("b", 1, *foil))
    first, *rest = scores.sentences(fork_logit)
    assert f"'aa' (2 tokens) {number(answer[0])} after the prompt" in first and "'b' (1 token)" in first
    assert len(rest) == len(said) and all(text in line for text, line in zip(said, rest))
    assert all("disagree" in line for line in rest)
    alike = Scores(Score("a", 1, *answer), Score("b", 1, *foil))
    assert alike.sentences(fork_logit) == []


def test_an_answer_that_would_merge_with_the_prompt_is_taken_by_itself() -> None:
    model = tiny.lonely()
    prompt, choices = Prompt.of(model, "the cat "), list[str]()
    found = read(model, "answer", prompt, "sat", next_logits(model, prompt.batch), choices)
    assert found.text.strip() == "sat"
    assert bool([c for c in choices if "would merge" in c]) is (found.text == "sat")
