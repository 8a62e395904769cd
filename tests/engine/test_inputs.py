"""Inputs and frames: what becomes a batch, and where its real tokens are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opened_models import opened, rows_of
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mechanome as mn
from families import build
from mechanome.core.errors import BadInput, ShapeMismatch, UnknownName
from mechanome.engine.frame import Frame

WORDS = ["the", "capital", "of", "France", "is", "Paris", "and", "England", "London", "a", "b"]


@pytest.fixture(scope="module")
def model() -> mn.Model:
    """GPT-2 with a tokenizer of words and spaces."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **{w: i + 4 for i, w in enumerate(WORDS)}}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return mn.load(build("gpt2"), tokenizer=tokenizer)


def test_text_gets_its_first_token_and_its_padding(model: mn.Model) -> None:
    batch = model.encode(["the capital of France", "a b"])
    assert batch.arguments["input_ids"].tolist() == [[1, 4, 5, 6, 7], [1, 13, 14, 0, 0]]
    assert batch.frame.lengths == (5, 3) and batch.frame.starts == (0, 0)
    left = model.encode(["the capital of France", "a b"], pad="left")
    assert left.arguments["input_ids"].tolist()[1] == [0, 0, 1, 13, 14] and left.frame.starts == (0, 2)
    assert model.encode("a b", bos="none").arguments["input_ids"].tolist() == [[13, 14]]
    assert model.encode("a b", bos=9).arguments["input_ids"].tolist() == [[9, 13, 14]]
    assert model.str_tokens("the capital") == ["<s>", "the", "capital"]
    assert "attention_mask" not in model.encode("a b").arguments
    assert model.encode("a b").bos == "auto" and model.encode("a b", bos=9).bos == 9


def test_text_chats_ids_and_tensors_are_one(model: mn.Model) -> None:
    expected = model.run("the capital").logits
    for same in (
        ["the capital"], [1, 4, 5], [[1, 4, 5]], torch.tensor([1, 4, 5]), torch.tensor([[1, 4, 5]]),
        {"input_ids": torch.tensor([[1, 4, 5]])}, model.encode("the capital"),
        [{"role": "user", "content": "<s> the capital"}], [torch.tensor([1, 4, 5])],
    ):  # fmt: skip
        assert torch.equal(model.run(same).logits, expected), same


def test_spans_by_text_by_characters_and_by_position(model: mn.Model) -> None:
    prompts = ["the capital of France is", "the capital of England"]
    for spans in (
        [{"place": "France"}, {"place": "England"}], [{"place": (15, 21)}, {"place": (15, 22)}],
        [{"place": [4]}, {"place": [4]}],
    ):  # fmt: skip
        frame = model.encode(prompts, spans=spans).frame
        assert [frame.positions("place", row) for row in range(2)] == [[4], [4]]
    both = model.encode("the capital of France is", spans=[{"whole": "capital of France"}]).frame
    assert both.positions("whole", 0) == [2, 3, 4]
    for bad, error in (
        ([{"x": "Paris"}, {}], UnknownName), ([{}], BadInput), ([{"x": "a"}, {}], BadInput),
        ([{"x": "("}, {}], UnknownName),
    ):  # fmt: skip
        with pytest.raises(error):
            model.encode(["a the a", "b"], spans=bad)


@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        ("", BadInput, "empty"),
        ([], BadInput, "nothing can be read"),
        ([""], BadInput, "empty"),
        ([[]], BadInput, "no token"),
        ([[5, 97]], BadInput, "0 to 96"),
        ([[-1]], BadInput, "0 to 96"),
        ([[5] * 65], BadInput, "context is 64"),
        (3.5, BadInput, "nothing can be read"),
        ([3.5], BadInput, "not text"),
        (torch.zeros(2, 3), ShapeMismatch, "integers"),
        (torch.zeros(1, 2, 3, dtype=torch.long), ShapeMismatch, "integers"),
        ({"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.ones(2, 4)}, ShapeMismatch, "equal"),
        ({"input_ids": torch.ones(2, 3).long(), "token_type_ids": torch.ones(3, 3)}, ShapeMismatch, "same batch"),
        ({"input_ids": torch.ones(1, 3).long(), "attention_mask": torch.tensor([[1, 0, 1]])}, BadInput, "holes"),
        ({"input_ids": torch.ones(1, 3).long(), "attention_mask": torch.zeros(1, 3)}, BadInput, "no token"),
    ],
)
def test_refused_inputs(model: mn.Model, inputs: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        model.run(inputs)


def test_text_needs_a_tokenizer_and_single_tokens_are_single(model: mn.Model) -> None:
    with pytest.raises(BadInput, match="without a tokenizer"):
        opened("gpt2").run("the capital")
    assert model.single_token("Paris") == 9
    with pytest.raises(BadInput, match="2 tokens"):
        model.single_token("the capital")
    plain = mn.load(build("gpt2"), tokenizer=model.tokenizer, bos="none", check="off")
    assert plain.encode("a").arguments["input_ids"].tolist() == [[13]]


def test_rows_can_be_taken_in_any_order() -> None:
    model, ids = opened("llama"), rows_of("llama", 3, 8)
    batch = model.encode([ids[0].tolist(), ids[1, :5].tolist(), ids[2].tolist()])
    taken = batch.take([1, 1, 0])
    assert taken.frame.lengths == (5, 5, 8)
    assert torch.equal(taken.input_ids, batch.input_ids[[1, 1, 0]])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=4),
    st.one_of(
        st.integers(-6, 5), st.lists(st.integers(-6, 5), max_size=4), st.sampled_from(["first", "last", "1:3", "all"])
    ),
)
def test_positions_are_those_of_the_row_alone(rows: list[tuple[int, int]], wanted: Any) -> None:
    width = max(a + b for a, b in rows)
    frame = Frame(tuple(a for a, _ in rows), tuple(b for _, b in rows), width)
    mask = torch.tensor([[a <= i < a + b for i in range(width)] for a, b in rows])
    assert Frame.from_mask(mask) == frame
    for row, (start, length) in enumerate(rows):
        tokens = list(range(length))
        try:
            found = frame.positions(wanted, row)
        except BadInput:
            asked = [wanted] if isinstance(wanted, int) else wanted
            assert any(not -length <= p < length for p in asked)
            continue
        meaning = {"first": tokens[:1], "last": tokens[-1:], "1:3": tokens[1:3], "all": tokens}
        exact = (
            meaning[wanted]
            if isinstance(wanted, str)
            else [tokens[p] for p in ([wanted] if isinstance(wanted, int) else wanted)]
        )
        assert found == exact
        assert [frame.column(p, row) for p in found] == [start + p for p in found]
    assert frame.padded == any(a or b != width for a, b in rows)


def test_frames_of_later_passes_see_what_is_new() -> None:
    frame = Frame((0, 2), (5, 3), 5).at(5, 1, grown=1)
    assert [frame.positions("generated", r) for r in range(2)] == [[5], [3]]
    assert frame.column(5, 0) == 0 and frame.column(3, 1) == 0 and frame.column(4, 0) is None
    assert frame.positions("prompt", 1) == [0, 1, 2] and frame.positions(None, 1) == [0, 1, 2, 3]
    assert frame.positions("last", 1) == [2], "the last prompt token"
    with pytest.raises(UnknownName, match="subject"):
        Frame((0,), (5,), 5, spans=({"subject": [1]},)).positions("subjct", 0)
    with pytest.raises(BadInput, match="2 rows"):
        frame.positions([[1]], 0)


@pytest.mark.parametrize("inputs", [
    [5, "hi"], [True, False], [[True]], [5.0, 6], [torch.tensor([5.9])], [torch.tensor([True])], b"abc", [b"abc"],
    torch.tensor([True]), np.array([0.5]), np.array(["a"]), [None], None, {}, torch.zeros(0, 5, dtype=torch.long),
    torch.zeros(0, dtype=torch.long), [torch.zeros(1, 3, dtype=torch.long)], "a \ud800", ["a", "\udfff"],
    [{"role": "user", "content": None}], [{"role": "user", "content": 5}],
    [{"role": "user", "content": "a"}, {"role": "user"}], [{"role": "user", "content": "a"}, 5],
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_inputs_of_a_wrong_kind(model: mn.Model, inputs: Any) -> None:
    with pytest.raises((BadInput, ShapeMismatch)):
        model.encode(inputs)


@pytest.mark.parametrize("name", ["input_ids", "decoder_input_ids"])
@pytest.mark.parametrize(("ids", "match"), [
    (torch.tensor([[97]]), "0 to 96"), (torch.tensor([[-1]]), "0 to 96"), (torch.ones(1, 65).long(), "context is 64"),
    (torch.ones(1, 3), "integers"), (torch.ones(1, 3).bool(), "integers"), (torch.ones(3).long(), "integers"),
    (torch.ones(1, 2, 3).long(), "integers"), (torch.ones(0, 3).long(), "no token"), (torch.ones(2, 0), "no token"),
    ([], "no token"), ([[5, 6], [7]], "no tensor"), (["hi"], "no tensor"), ([0.5], "integers"),
])  # fmt: skip
def test_ids_of_a_mapping_get_the_checks_of_lists(model: mn.Model, name: str, ids: Any, match: str) -> None:
    with pytest.raises((BadInput, ShapeMismatch), match=match):
        model.encode({name: ids})


def test_mappings_of_lists_and_arrays_are_tensors(model: mn.Model) -> None:
    expected = model.run([[4, 5, 6]]).logits
    for same in (
        {"input_ids": [4, 5, 6]}, {"input_ids": [[4, 5, 6]], "attention_mask": [[1, 1, 1]]},
        {"input_ids": np.array([[4, 5, 6]])}, model.tokenizer("the capital of", return_token_type_ids=False),
        np.array([4, 5, 6]), [np.array([4, 5, 6])], [np.int64(4), 5, torch.tensor(6)], range(4, 7),
    ):  # fmt: skip
        assert torch.equal(model.run(same).logits, expected), same


@pytest.mark.parametrize("where", [
    3, None, (1, 2, 3), (1,), (11, 4), (0, 0), (-5, -1), (3, 4), (0, 400), ("a", "b"), (0.0, 3.0), 1.5, [0.5], [],
    [True], [5], [-6], "", {"a": 1}, slice(0, 2),
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_spans_that_name_no_token(model: mn.Model, where: Any) -> None:
    with pytest.raises(BadInput, match="span 'x' of row 0"):
        model.encode("the capital of France", spans=[{"x": where}])
    with pytest.raises(BadInput, match="span 'x' of row 0"):
        model.encode({"input_ids": torch.tensor([[4, 5, 6, 7, 8]])}, spans=[{"x": where}])


@pytest.mark.parametrize("spans", [
    {"a": [1]}, 3, "a", [3], [{"last": [1]}], [{"all": [1]}], [{"1:2": [1]}], [{":": [1]}], [{"": [1]}], [{3: [1]}],
    [{"a": [1]}, {"a": [1]}],
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_labels_that_cannot_be(model: mn.Model, spans: Any) -> None:
    batch = model.encode("the capital")
    for inputs in ("the capital", dict(batch.arguments), batch):
        with pytest.raises(BadInput):
            model.encode(inputs, spans=spans)


def test_spans_by_positions_of_any_make(model: mn.Model) -> None:
    for where in ([1, 2], range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), (np.int64(4), 14)):
        by_characters = isinstance(where, tuple)
        expected = [2, 3] if by_characters else [1, 2]
        assert model.encode("the capital of", spans=[{"x": where}]).frame.spans == ({"x": expected},)
    found = model.encode({"input_ids": [4, 5, 6]}, spans=[{"x": range(1, 3)}]).frame.positions("x", 0)
    assert found == [1, 2]


@pytest.mark.parametrize("options", [{"pad": "up"}, {"bos": "none "}, {"bos": 1.5}, {"bos": True}])
def test_options_of_encoding(model: mn.Model, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"pad=|bos="):
        model.encode("a", **options)


def test_a_template_may_refuse_a_chat(model: mn.Model) -> None:
    template, model.tokenizer.chat_template = model.tokenizer.chat_template, "{{ raise_exception('roles alternate') }}"
    with pytest.raises(BadInput, match="roles alternate"):
        model.encode([{"role": "user", "content": "a"}])
    model.tokenizer.chat_template = template


@pytest.mark.parametrize("wanted", [1.5, "--1:2", [None], True, torch.tensor([0.5])])
def test_captures_refuse_positions_that_are_none(model: mn.Model, wanted: Any) -> None:
    with pytest.raises((BadInput, UnknownName)):
        model.run("the capital", capture="z.1", pos=wanted)


def test_inputs_may_make_their_own_batch(model: mn.Model) -> None:
    class Examples:
        def __batch__(self, opened: mn.Model) -> mn.Batch:
            return opened.encode(["the capital", "of France is"])

    run = model.run(Examples(), capture="resid_pre.0")
    assert torch.equal(run.logits, model.run(["the capital", "of France is"]).logits)
    with pytest.raises(BadInput, match="encoded before"):
        model.encode(Examples(), spans=[{"x": "capital"}, {}])


def test_examples_in_a_list_are_told_how_to_come_in(model: mn.Model) -> None:
    class Example:
        inputs = "the capital"

    with pytest.raises(BadInput, match=r"each one's \.inputs"):
        model.run([Example()])
