"""JSON lines: what is written comes back equal, and a damaged or mistaken line is named with its number."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechanome.core import silence
from mechanome.core.errors import BadInput, CorruptFile, NotServed
from mechanome.tasks import METRICS, Example, Provenance, Task, make

text = st.text(min_size=1, max_size=12)
ids = st.lists(st.integers(0, 2**40), min_size=1, max_size=4)
chat = st.lists(st.fixed_dictionaries({"role": text, "content": st.text(max_size=8)}), min_size=1, max_size=3)
name = text.map(lambda t: f"the {t}")
label = st.none() | st.text(max_size=5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def examples(draw):
    inputs = draw(text | ids | chat)
    other = draw(st.none() | text.map(lambda t: t + "!" if t == inputs else t))
    answer = draw(st.none() | text | ids)
    foil = draw((st.none() | text | ids).filter(lambda f: f is None or f != answer))
    spans = {}
    if isinstance(inputs, str):
        start = draw(st.integers(0, len(inputs) - 1))
        spans["range"] = (start, draw(st.integers(start + 1, len(inputs))))
        spans[draw(name)] = inputs
    spans |= draw(st.dictionaries(name, st.lists(st.integers(-9, 99), min_size=1, max_size=3), max_size=2))
    return Example(
        inputs,
        answer=answer,
        foil=foil,
        counterfactual=other,
        label=draw(label),
        spans=spans,
        counterfactual_spans={} if other is None else {"whole": other},
        groups=draw(st.dictionaries(text, text, max_size=2)),
        split=draw(text),
        weight=draw(st.floats(1e-300, 1e300)),
    )


@st.composite
def tasks(draw):
    some = st.none() | st.integers()
    texts = st.lists(st.text(max_size=6), max_size=2).map(tuple)
    provenance = Provenance(draw(text), draw(some), draw(some), draw(st.none() | text), draw(texts), draw(texts))
    found = tuple(draw(st.lists(examples(), max_size=4)))
    return Task(draw(text), found, draw(st.text(max_size=9)), draw(st.sampled_from(sorted(METRICS))), provenance)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task=tasks())
def test_round_trip(tmp_path, task):
    task.to_jsonl(tmp_path / "task.jsonl")
    assert Task.from_jsonl(tmp_path / "task.jsonl") == task


def test_generated_tasks_come_back(tmp_path):
    with silence():
        for name in ("ioi", "key_value", "months"):
            task = make(name, 12, shots=2)
            task.to_jsonl(tmp_path / "t.jsonl")
            assert Task.from_jsonl(tmp_path / "t.jsonl") == task


def written(path, *lines):
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines))
    return path


def test_a_file_of_ones_own_needs_only_inputs(tmp_path):
    path = written(
        tmp_path / "mine.jsonl",
        b"\xef\xbb\xbf" + json.dumps({"inputs": "Être", "answer": " là"}).encode(),
        b"  ",
        {"inputs": [1, 2], "spans": {"x": {"tokens": [1]}}, "weight": 2},
        {"inputs": "ab", "counterfactual": "cd", "spans": {"x": {"chars": [0, 1]}, "y": "b"}, "label": 3},
        {"inputs": [{"role": "user", "content": "hi"}]},
    )
    task = Task.from_jsonl(path)
    assert task.name == "mine" and task.provenance.source == str(path) and len(task) == 4
    assert task[0] == Example("Être", answer=" là") and task[1].weight == 2.0
    assert task[2].spans == {"x": (0, 1), "y": "b"} and task[2].label == 3
    assert task[3].inputs == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize(
    ("line", "error", "match"),
    [
        (b'{"inputs": "a"', CorruptFile, "not whole JSON"),
        (b'{"inputs": "\xff"}', CorruptFile, "not whole JSON"),
        (b'{"inputs": "a", "weight": NaN}', CorruptFile, "NaN is not a number"),
        (b'{"inputs": "a", "inputs": "b"}', CorruptFile, "'inputs' occurs twice"),
        (b"[1, 2]", BadInput, "not a JSON object"),
        ({"answer": "a"}, BadInput, "'inputs' is missing. Fix: give a text, a list of"),
        ({"inputs": "a", "anwser": "b"}, BadInput, "no field 'anwser'. Fix: did you mean 'answer'"),
        (
            {"clean": "a", "corrupt": "b", "answer": "c"},
            BadInput,
            "no field 'clean' or 'corrupt'. Fix: rename 'clean' to 'inputs', 'corrupt' to 'counterfactual'",
        ),
        ({"prompt": "a", "target": "b"}, BadInput, "Fix: rename 'prompt' to 'inputs', 'target' to 'answer'"),
        ({"inputs": "a", "text": "b"}, BadInput, "no field 'text'. Fix: valid names are"),
        ({"inputs": 3}, BadInput, "'inputs' cannot be 3"),
        ({"inputs": ""}, BadInput, "'inputs' cannot be ''"),
        ({"inputs": []}, BadInput, "'inputs' cannot be"),
        ({"inputs": [1, True]}, BadInput, "'inputs' cannot be"),
        ({"inputs": [{"role": "user"}]}, BadInput, "'inputs' cannot be"),
        ({"inputs": "a", "answer": 3.5}, BadInput, "'answer' cannot be 3.5. Fix: give a text or a list of token"),
        ({"inputs": "a", "label": True}, BadInput, "'label' cannot be True"),
        ({"inputs": "a", "spans": {"x": [1, 2]}}, BadInput, '"chars"'),
        ({"inputs": "a", "spans": {"x": {"chars": [1]}}}, BadInput, "'spans' cannot be"),
        ({"inputs": "a", "spans": {"x": {"chars": [0, 5]}}}, BadInput, "span 'x'.*1 characters"),
        ({"inputs": "a", "weight": -1}, BadInput, "'weight' cannot be -1. Fix: give a number above 0"),
        (b'{"inputs": "a", "weight": 1e999}', BadInput, "'weight' cannot be inf"),
        (b'{"inputs": "a", "weight": 1%b}' % (b"0" * 400), BadInput, "'weight' cannot be 1"),
        ({"inputs": "a", "groups": {"k": 1}}, BadInput, "'groups' cannot be"),
        ({"inputs": "a", "answer": "b", "foil": "b"}, BadInput, "foil 'b'.*the answer"),
        ({"inputs": "a", "counterfactual": "a"}, BadInput, "the input itself"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, error, match):
    path = written(tmp_path / "bad.jsonl", {"inputs": "fine"}, b"", line)
    with pytest.raises(error, match=match) as caught:
        Task.from_jsonl(path)
    assert type(caught.value) is error and f"{path}, line 3" in str(caught.value)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path):
    task = Task("t", tuple(Example(f"prompt {i}", answer=" a", foil=" b") for i in range(3)))
    path = tmp_path / "t.jsonl"
    task.to_jsonl(path)
    whole = path.read_bytes()
    for end in range(1, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises((CorruptFile, BadInput)):
            Task.from_jsonl(path)
    path.write_bytes(whole[:-1])
    assert Task.from_jsonl(path) == task


def test_headers_are_checked(tmp_path):
    header = {"mechanome_task": 1, "name": "n", "examples": 1}
    row = {"inputs": "a"}
    assert Task.from_jsonl(written(tmp_path / "a", header, row)) == Task("n", (Example("a"),))
    with pytest.raises(CorruptFile, match="it has 2 examples, and its first line says 1"):
        Task.from_jsonl(written(tmp_path / "b", header, row, row))
    with pytest.raises(CorruptFile, match="version 2 is newer"):
        Task.from_jsonl(written(tmp_path / "c", header | {"mechanome_task": 2}, row))
    with pytest.raises(BadInput, match=r"line 1.*'name' is missing"):
        Task.from_jsonl(written(tmp_path / "d", {"mechanome_task": 1, "examples": 1}, row))
    with pytest.raises(BadInput, match=r"line 1: metric 'x'.*no such metric"):
        Task.from_jsonl(written(tmp_path / "e", header | {"metric": "x"}, row))


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        Task.from_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match="no example"):
        Task.from_jsonl(written(tmp_path / "empty.jsonl", b"\n"))


def test_what_has_no_text_form_is_not_written(tmp_path):
    path = tmp_path / "t.jsonl"
    with pytest.raises(NotServed, match="tensors"):
        Task("t", (Example({"input_ids": torch.tensor([[1]])}),)).to_jsonl(path)
    with pytest.raises(BadInput, match="not Unicode"):
        Task("t", (Example("a\ud800"),)).to_jsonl(path)
    assert not path.exists()
    Task("t", (Example("a"),)).to_jsonl(path)
    before = path.read_bytes()
    with pytest.raises(BadInput):
        replace(Task("t", (Example("a\ud800"),))).to_jsonl(path)
    assert path.read_bytes() == before
