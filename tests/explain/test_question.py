"""What can be asked: automatic choices are said, and what cannot be asked is refused with a fix."""

from __future__ import annotations

import pytest
import tiny

import mechanome as mn
from families import build
from mechanome.core import BadInput, MechanomeError, NotServed, ShapeMismatch
from mechanome.explain.answers import read
from mechanome.explain.choices import next_logits
from mechanome.explain.prompts import Prompt
from mechanome.explain.question import ask


@pytest.fixture(scope="module")
def auto() -> mn.explain.Question:
    return ask(tiny.lonely(), tiny.SENTENCE, None, None, None)


def test_every_automatic_choice_is_said(auto: mn.explain.Question) -> None:
    assert [choice.split(":")[0] for choice in auto.choices] == ["answer", "counterfactual", "foil"]
    assert all("automatic" in choice for choice in auto.choices)
    assert len(auto.differing) == 1 and auto.length == len(auto.other_tokens)
    assert auto.high - auto.low == pytest.approx(auto.gap) and auto.gap > 0.5
    assert int(auto.clean_logits.argmax()) == auto.answer.id
    assert int(auto.corrupted_logits.argmax()) == auto.foil.id


def spaced(model: mn.Model, text: str) -> str:
    """The likeliest next token that starts with a space."""
    logits = model.run(text, logits="last").logits[0]
    words = [f" {word}" for word in tiny.WORDS]
    return max(words, key=lambda word: float(logits[model.single_token(word)]))


def test_what_is_given_is_taken(auto: mn.explain.Question) -> None:
    model = tiny.lonely()
    answer, foil = spaced(model, tiny.SENTENCE), spaced(model, auto.counterfactual)
    q = ask(model, tiny.SENTENCE, answer, foil, auto.counterfactual)
    assert (q.answer.text, q.foil.text, q.differing) == (answer, foil, auto.differing)
    assert q.swap is None and len(q.choices) == 1 and "the model itself prefers" in q.choices[0]
    logits = model.run([tiny.SENTENCE, auto.counterfactual], logits="last").logits
    expected = logits[:, model.single_token(answer)] - logits[:, model.single_token(foil)]
    assert [q.high, q.low] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_foil_without_a_counterfactual_makes_one(auto: mn.explain.Question) -> None:
    model = tiny.lonely()
    given = ask(model, tiny.SENTENCE, None, spaced(model, auto.counterfactual), None)
    assert given.foil.text == spaced(model, auto.counterfactual)
    assert given.swap is not None and given.swap.loss == pytest.approx(given.gap, abs=1e-3)


def read_as(text: str, choices: list[str]) -> str:
    model = tiny.lonely()
    prompt = Prompt.of(model, tiny.SENTENCE)
    return read(model, "answer", prompt, text, next_logits(model, prompt.batch), choices).text


def test_an_answer_is_read_as_the_model_would_write_it() -> None:
    model = tiny.lonely()
    logits = model.run(tiny.SENTENCE, logits="last").logits[0]
    ids = {spelling: model.single_token(spelling) for word in ("cat", "rug") for spelling in (word, f" {word}")}
    for word in ("cat", "rug"):
        likelier = max((word, f" {word}"), key=lambda s: float(logits[ids[s]]))
        choices: list[str] = []
        assert read_as(word, choices) == likelier
        assert bool(choices) is (likelier != word)
        assert read_as(f" {word}", []) == f" {word}"


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("", None, None, None), BadInput, "it is empty"),
        (("the cat " * 60, None, None, None), BadInput, "context is 64"),
        ((tiny.SENTENCE, "", None, None), BadInput, "answer '': it has no token"),
        ((tiny.SENTENCE, None, "", None), BadInput, "foil '': it has no token"),
        ((tiny.SENTENCE, "cat", "cat", None), BadInput, "it is the answer"),
        ((tiny.SENTENCE, " cat", " catx", None), BadInput, "no token tells them apart"),
        ((tiny.SENTENCE, None, None, "the cat sat"), ShapeMismatch, "4 tokens for a prompt of 6"),
        ((tiny.SENTENCE, None, None, tiny.SENTENCE), BadInput, "it is the prompt itself"),
        ((tiny.SENTENCE, None, None, ""), BadInput, "it is empty"),
        ((["the cat"], None, None, None), BadInput, "pass a string"),
    ],
)
def test_refusals(arguments: tuple[object, ...], kind: type[MechanomeError], said: str) -> None:
    with pytest.raises(kind, match=said.replace("(", "\\(")) as refused:
        ask(tiny.lonely(), *arguments)  # type: ignore[arg-type]
    assert refused.value.fix


def test_a_counterfactual_that_does_not_weaken_the_preference_is_refused(auto: mn.explain.Question) -> None:
    model = tiny.lonely()
    with pytest.raises(BadInput, match="it strengthens the preference") as refused:
        ask(model, auto.counterfactual, auto.answer.text, auto.foil.text, tiny.SENTENCE)
    assert auto.low < 0, "the foil is what the model says after the counterfactual"
    assert f"the model prefers {auto.foil} to " in refused.value.why
    with pytest.raises(BadInput, match="it strengthens the preference") as refused:
        ask(model, tiny.SENTENCE, auto.foil.text, auto.answer.text, auto.counterfactual)
    assert f"the model prefers {auto.answer} to " in refused.value.why
    silent = mn.load(tiny.build({}), tokenizer=tiny.tokenizer(), check="off")
    with pytest.raises(BadInput, match="it hardly changes the preference"):
        ask(silent, tiny.SENTENCE, " fox", " hat", "the dog sat on the")


def test_where_no_counterfactual_is_found_it_is_said_what_the_model_would_answer() -> None:
    silent = mn.load(tiny.build({}), tokenizer=tiny.tokenizer(), check="off")
    logits = silent.run("the cat sat on x").logits[0, -1]
    with pytest.raises(BadInput, match="an automatic counterfactual") as refused:
        ask(silent, "the cat sat on x", " fox")
    top = tiny.tokenizer().convert_ids_to_tokens(int(logits.argmax()))
    assert f"the model would answer '{top}' (" in refused.value.why


@pytest.mark.parametrize("family", ["bert", "whisper", "vit"])
def test_only_language_models_with_a_tokenizer(family: str) -> None:
    with pytest.raises(NotServed, match="without a tokenizer"):
        ask(mn.load(build(family), check="off"), "the cat", None, None, None)
    model = mn.load(build(family), tokenizer=tiny.tokenizer(), check="off")
    with pytest.raises(NotServed, match="no language model"):
        ask(model, "the cat", None, None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prompt": ""}, "the prompt: it is empty"),
        ({"prompt": []}, "the chat is empty"),
        ({"counterfactual": ""}, "the counterfactual: it is empty"),
        ({"answer": ""}, "answer '': it has no token"),
        ({"foil": 3}, "foil of type int"),
        ({"answer": " cat", "foil": " cat"}, "it is the answer"),
        ({"counterfactuals": 0}, "counterfactuals=0: it must be a whole number of at least 1"),
        ({"counterfactuals": True}, "counterfactuals=True"),
        ({"seed": -1}, "seed=-1"),
        ({"budget": "much"}, "budget 'much': it is not a size"),
        ({"budget": 0}, "budget 0"),
        ({"model": "whisper-base"}, "no language model .* use a causal language model, such as smollm2"),
        ({"model": "minilm-l6"}, "its kind is encoder"),
    ],
    ids=[
        "no text", "no message", "no counterfactual", "no answer", "a number", "answer is foil", "none", "true",
        "below 0", "no size", "no bytes", "speech", "encoder",
    ],
)  # fmt: skip
def test_refused_before_a_model_is_opened(
    arguments: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("mechanome.explain.pipeline.load", opened)
    with pytest.raises(MechanomeError, match=said) as refused:
        mn.explain(**{"prompt": tiny.SENTENCE, **arguments})
    assert refused.value.fix


def test_one_refusal_for_one_thing() -> None:
    """A model that the registry does not know is refused in the same words once it is open."""
    with pytest.raises(NotServed, match="no language model that predicts the next token"):
        mn.explain("the cat", mn.load(build("bert"), tokenizer=tiny.tokenizer(), check="off"), quiet=True)
