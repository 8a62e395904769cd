"""What is a prompt's own: a chat's messages, and nothing that its template adds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tiny

import mechanome as mn
from mechanome.core import BadInput
from mechanome.explain import counterfactual
from mechanome.explain.choices import all_logits
from mechanome.explain.prompts import Prompt
from mechanome.explain.question import ask

TEMPLATE = (
    "the dog{% for m in messages %}<s> x{{ m['content'] }} y{% endfor %}"
    "{% if add_generation_prompt %}<s> ran on the{% endif %}"
)
CHAT = [{"role": "system", "content": " cow hen"}, {"role": "user", "content": " cat sat"}]


def chatty(template: str = TEMPLATE) -> mn.Model:
    """`lonely` with a template whose words could be swapped like any other."""
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = template
    return mn.load(tiny.lonely().module, tokenizer=tokenizer, check="off")


def test_a_chat_is_encoded_with_its_template_up_to_the_answer() -> None:
    prompt = Prompt.of(chatty(), CHAT)
    expected = ["<s>", "the", " dog", "<s>", " x", " cow", " hen", " y", "<s>", " x", " cat", " sat", " y"]
    assert list(prompt.batch.tokens[0]) == [*expected, "<s>", " ran", " on", " the"]
    assert prompt.places == ((5, 6), (10, 11)) and prompt.content == (5, 6, 10, 11)
    assert prompt.text == " cat sat" and prompt.chat == tuple(CHAT)


@pytest.mark.parametrize(
    ("template", "content", "own"),
    [
        ("the{{ messages[0]['content'] | trim }} x", "  cat  ", ["cat"]),
        ("the {{ messages[0]['content'] }} x", "sat", []),  # the template's space makes one token with it
        ("the{{ messages[0]['content'] | upper }} x", " cat", []),
        ("the{{ messages[0]['content'] }}{{ messages[0]['content'] }} x", " cat", []),
    ],
    ids=["trimmed", "straddling", "changed", "repeated"],
)
def test_only_tokens_that_lie_wholly_in_a_message_are_its_own(template: str, content: str, own: list[str]) -> None:
    prompt = Prompt.of(chatty(template), [{"role": "user", "content": content}])
    assert [prompt.batch.tokens[0][p] for p in prompt.content] == own


def test_a_message_that_repeats_the_template_is_found_where_it_stands() -> None:
    prompt = Prompt.of(chatty(), [{"role": "user", "content": " dog"}])
    assert prompt.content == (5,)


def test_a_swap_changes_one_message() -> None:
    model = chatty()
    prompt, new = Prompt.of(model, CHAT), model.single_token(" fox")
    other = prompt.swapped(model, 5, new)
    assert other.chat is not None and [m["content"] for m in other.chat] == [" fox hen", " cat sat"]
    assert other.text == " fox hen" and [m["role"] for m in other.chat] == ["system", "user"]
    assert other.ids == [*prompt.ids[:5], new, *prompt.ids[6:]]
    assert Prompt.of(model, other.chat).ids == other.ids, "the chat said is the chat run"
    assert CHAT[0]["content"] == " cow hen", "the caller's messages stay as they are"
    last = prompt.swapped(model, 10, new)
    assert last.chat is not None and [m["content"] for m in last.chat] == [" cow hen", " fox sat"]


def test_words_of_the_prompt_itself_are_tried_first_but_not_those_of_its_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counterfactual, "SIMILAR", -1.0)
    model, prompt = chatty(), Prompt.of(chatty(), CHAT)
    logits = all_logits(model, prompt.batch)
    own = {prompt.ids[p] for p in prompt.content}
    found = counterfactual._alternatives(model, prompt.batch.input_ids[0], logits, prompt.content)
    assert set(found) == set(prompt.content)
    for position, ids in found.items():
        first = own - {prompt.ids[position]}
        assert set(ids[: len(first)]) == first, model.tokenizer.convert_ids_to_tokens(ids)


def test_templates_are_never_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []
    measure = counterfactual._measure

    def spied(*arguments: Any) -> Any:
        tried.extend(arguments[3])
        return measure(*arguments)

    monkeypatch.setattr(counterfactual, "_measure", spied)
    monkeypatch.setattr(counterfactual, "SIMILAR", -1.0)
    monkeypatch.setattr(counterfactual, "MOVES", 1e-3)
    question = ask(chatty(), CHAT)
    assert {position for position, _ in tried} == {5, 6, 10, 11}
    assert question.swap is not None and question.differing == (question.swap.position,)
    assert question.chat == tuple(CHAT) and question.other.chat != question.chat
    assert not {new for _, new in tried} & {0, 1}, "no special token is an alternative"


def test_a_text_may_be_swapped_anywhere() -> None:
    prompt = Prompt.of(tiny.lonely(), tiny.SENTENCE)
    assert prompt.content == tuple(range(prompt.length)) and prompt.chat is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "the prompt: it is empty"),
        ([], "the chat is empty"),
        ([{"role": "user", "content": "  "}], "the chat is empty"),
        ([{"role": "user"}], "pass a string, or a list"),
        ([{"role": "user", "content": 3}], "pass a string, or a list"),
        (["the cat"], "pass a string, or a list"),
        (b"the cat", "pass a string, or a list"),
        (None, "pass a string, or a list"),
    ],
    ids=["no text", "no message", "blank", "no content", "a number", "texts", "bytes", "nothing"],
)
def test_what_is_no_prompt(asked: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("(", "\\(")) as refused:
        Prompt.of(chatty(), asked)
    assert refused.value.fix


def test_a_base_model_has_no_chats() -> None:
    with pytest.raises(BadInput, match="no chat template"):
        Prompt.of(tiny.lonely(), CHAT)
