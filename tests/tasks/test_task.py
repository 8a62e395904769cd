"""Examples refuse what makes no sense; tasks are cut, looked at and shown."""

from __future__ import annotations

import pytest
import torch
from bigram_model import bigram

import mechanome as mn
from mechanome.attribution import mean_of
from mechanome.core.errors import BadInput, UnknownName
from mechanome.tasks import Example, Task
from mechanome.tasks.example import shown
from mechanome.tasks.writing import write

CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def test_lists_become_tuples_so_that_nothing_changes():
    ids = [1, 2, 3]
    example = Example(ids, answer=[4], counterfactual=torch.tensor([1, 2, 5]))
    ids.append(9)
    assert (example.inputs, example.answer, example.counterfactual) == ((1, 2, 3), (4,), (1, 2, 5))
    chat = [dict(CHAT[0])]
    example = Example(chat)
    chat[0]["content"] = "changed"
    assert example.inputs == (CHAT[0],)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"inputs": ""}, "nothing can be read"),
        ({"inputs": None}, "no input"),
        ({"inputs": []}, "nothing can be read"),
        ({"inputs": 3}, "nothing can be read"),
        ({"inputs": ["a", "b"]}, "neither text nor token ids"),
        ({"inputs": [True, False]}, "neither text nor token ids"),
        ({"inputs": "a", "answer": ""}, "answer ''"),
        ({"inputs": "a", "answer": CHAT}, "neither text nor token ids"),
        ({"inputs": "a", "answer": " b", "foil": " b"}, "it is the answer"),
        ({"inputs": "a", "counterfactual": "a"}, "the input itself"),
        ({"inputs": {"x": torch.ones(1)}, "counterfactual": {"x": torch.ones(1)}}, "the input itself"),
        ({"inputs": "a", "weight": 0.0}, "no positive number"),
        ({"inputs": "a", "weight": float("nan")}, "no positive number"),
        ({"inputs": "a", "weight": float("inf")}, "no positive number"),
        ({"inputs": "abc", "spans": {"x": (1, 4)}}, "3 characters"),
        ({"inputs": "abc", "spans": {"x": (2, 2)}}, "start < end"),
        ({"inputs": [1, 2], "spans": {"x": "a"}}, "only text has characters"),
        ({"inputs": "a", "spans": {"last": "a"}}, "means something else"),
        ({"inputs": "a", "spans": {"0:1": "a"}}, "means something else"),
        ({"inputs": "a", "counterfactual_spans": {"x": "a"}}, "no counterfactual"),
        ({"inputs": "a", "counterfactual": "b", "counterfactual_spans": {"x": (0, 2)}}, "1 characters"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, match):
    with pytest.raises(BadInput, match=match):
        Example(**arguments)


def test_tensors_may_differ_in_one_value():
    Example({"x": torch.zeros(1, 2)}, counterfactual={"x": torch.tensor([[0.0, 1.0]])})
    Example({"x": torch.zeros(1, 2)}, counterfactual={"y": torch.zeros(1, 2)})


EXAMPLES = (
    Example("one", answer=" a", label=1, groups={"kind": "x", "template": "t"}, split="train"),
    Example("two", answer=" b", label="2", groups={"kind": "y", "template": "t"}, split="train"),
    Example("three", answer=" c", groups={"kind": "x"}, split="test"),
)
TASK = Task("numbers", list(EXAMPLES))


def test_tasks_are_sequences_of_examples():
    assert len(TASK) == 3 and list(TASK) == list(EXAMPLES) and TASK[1] is EXAMPLES[1]
    assert TASK[1:].examples == EXAMPLES[1:] and TASK[1:].name == "numbers"


def test_groups_and_splits_select():
    assert TASK.where(kind="x").examples == (EXAMPLES[0], EXAMPLES[2])
    assert TASK.where(kind="x", split="train").examples == EXAMPLES[:1]
    assert TASK.where(label=1).examples == EXAMPLES[:1]
    assert TASK.where(kind="z").examples == ()
    assert TASK.split("test").examples == EXAMPLES[2:]
    with pytest.raises(UnknownName, match=r"group 'kinds'.*'kind'"):
        TASK.where(kinds="x")
    with pytest.raises(UnknownName, match=r"split 'tests'.*'test'"):
        TASK.split("tests")


def test_it_is_shown_in_short():
    assert repr(TASK) == "Task 'numbers': 3 examples (1 test, 2 train)"
    assert repr(TASK[:0]) == "Task 'numbers': empty"
    record = TASK.table().records()[0]
    assert record == {
        "example": 0, "input": "'one'", "answer": "' a'", "foil": "", "counterfactual": "", "split": "train"
    }  # fmt: skip
    assert len(TASK.table(2)) == 2 and "(first 2)" in TASK.table(2).title
    many = Task("many", tuple(Example(f"<b>{i}") for i in range(12)))
    assert many._repr_html_().count("<tr>") == 11 and "&lt;b&gt;" in many._repr_html_()


def test_inputs_of_each_kind_have_a_short_form():
    assert shown("x" * 100, 10) == repr("…" + "x" * 9)
    assert shown(tuple(CHAT)) == repr(CHAT[0]["content"])
    assert shown((1, 2, 3)) == "'1 2 3'"
    assert shown({"pixel_values": torch.zeros(1, 3, 8, 8)}) == "pixel_values [1, 3, 8, 8]"


def test_writing_remembers_places():
    text = write("{a} and {_b}, {c}", a="x", _b="yy", c="z").behind(">> ")
    assert text.text == ">> x and yy, z"
    assert {name: text.text[lo:hi] for name, (lo, hi) in text.spans.items()} == {"a": "x", "c": "z"}


def test_a_task_or_an_example_goes_where_inputs_go():
    model = bigram()
    task = Task("capitals", (Example("Capital: of France", spans={"x": "France"}), Example("Big of Italy")))
    assert torch.equal(model.run(task).logits, model.run(task.encode(model)).logits)
    assert torch.equal(model.run(task[0]).logits, model.run(task[0].inputs).logits)
    assert model.encode(task[0]).frame.spans[0] == model.encode(task).frame.spans[0] != {}
    site = mn.Site("resid_pre", 0)
    assert torch.equal(mean_of(model, task)(site), mean_of(model, [e.inputs for e in task])(site))
    assert model.score_options(task, [" Paris", " Rome"]).best == [0, 1]
    with pytest.raises(BadInput, match=r"\.inputs"):
        model.run([task[0], task[1]])
