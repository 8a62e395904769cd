"""Tasks as JSON lines: one example a line, and an optional first line about the task.

{"inputs": "The capital of France is", "answer": " Paris", "foil": " Rome", "counterfactual": "The capital of Italy is"}

`inputs` and `counterfactual` are a text, a list of `{"role", "content"}` messages or a list of token ids; `answer` and
`foil` a text or token ids; a span is a text that occurs once, `{"chars": [start, end]}` or `{"tokens": [3, 4]}`. Only
`inputs` is required. What is wrong with a line is said with its number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, ValidationError

from mechanome.core.errors import BadInput, CorruptFile, MechanomeError, NotServed, nearest
from mechanome.core.files import atomic_write, existing
from mechanome.tasks.batches import metric_named
from mechanome.tasks.example import ANY_SPLIT, Example, Span
from mechanome.tasks.task import Provenance, Task

VERSION = 1

_Kind = TypeVar("_Kind", bound=BaseModel)
_Ids = Annotated[list[StrictInt], Field(min_length=1)]
_Text = Annotated[StrictStr, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Message(_Strict):
    role: _Text
    content: StrictStr


class _Chars(_Strict):
    chars: Annotated[list[StrictInt], Field(min_length=2, max_length=2)]


class _Tokens(_Strict):
    tokens: _Ids


_Inputs = _Text | Annotated[list[_Message], Field(min_length=1)] | _Ids
_Spans = dict[str, _Text | _Chars | _Tokens]


class _Row(_Strict):
    inputs: _Inputs
    answer: _Text | _Ids | None = None
    foil: _Text | _Ids | None = None
    counterfactual: _Inputs | None = None
    label: StrictStr | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | None = None
    spans: _Spans = {}
    counterfactual_spans: _Spans = {}
    groups: dict[str, StrictStr] = {}
    split: StrictStr = ANY_SPLIT
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class _Provenance(_Strict):
    source: StrictStr = "user"
    seed: StrictInt | None = None
    shots: StrictInt | None = None
    split: StrictStr | None = None
    lists: list[StrictStr] = []
    steps: list[StrictStr] = []


class _Header(_Strict):
    mechanome_task: StrictInt
    name: StrictStr
    summary: StrictStr = ""
    metric: StrictStr = "logit_diff"
    examples: StrictInt
    provenance: _Provenance = _Provenance()


_SHAPES = {
    "inputs": "a text, a list of {role, content} messages or a list of token ids, not empty",
    "counterfactual": "a text, a list of {role, content} messages or a list of token ids, not empty",
    "answer": "a text or a list of token ids, not empty",
    "foil": "a text or a list of token ids, not empty",
    "label": "a text or a number",
    "spans": 'labels with a text, {"chars": [start, end]} or {"tokens": [3, 4]} each',
    "counterfactual_spans": 'labels with a text, {"chars": [start, end]} or {"tokens": [3, 4]} each',
    "groups": "names with a text each",
    "split": "a text",
    "weight": "a number above 0",
}
"""What each field must be, in words."""

_ELSEWHERE = {
    "inputs": ("clean", "clean_prompt", "input", "prompt", "question", "sentence", "text"),
    "counterfactual": ("corrupt", "corrupted", "corrupt_prompt", "corrupted_prompt", "counterfactual_prompt"),
    "answer": ("answers", "completion", "correct", "label_token", "target"),
    "foil": ("distractor", "foils", "incorrect", "wrong", "wrong_answer"),
}
"""What other formats call a field."""


def write_jsonl(task: Task, path: str | os.PathLike[str]) -> None:
    """Write a task, atomically.

    Raises:
        NotServed: inputs of tensors. BadInput: text that is not Unicode.
    """
    p = task.provenance
    header = {
        "mechanome_task": VERSION,
        "name": task.name,
        "summary": task.summary,
        "metric": task.metric,
        "examples": len(task),
        "provenance": {**vars(p), "lists": list(p.lists), "steps": list(p.steps)},
    }
    try:
        lines = [json.dumps(r, ensure_ascii=False).encode() for r in (header, *map(_record, task.examples))]
    except UnicodeEncodeError as error:
        raise BadInput(str(path), f"text that is not Unicode ({error})", "decode with errors='replace'") from error
    with atomic_write(path) as handle:
        handle.write(b"".join(line + b"\n" for line in lines))


def read_jsonl(path: str | os.PathLike[str]) -> Task:
    """Read a task; without a first line about it, it is called as the file is.

    Raises:
        BadInput: no such file, no example in it, or a line that is no example.
        CorruptFile: a line that is no JSON, or fewer examples than the first line says.
    """
    records = list(_records(path))
    header: _Header | None = None
    if records and "mechanome_task" in records[0][1]:
        place, record = records.pop(0)
        header = _validated(_Header, record, place)
        with _at(place):
            metric_named(header.metric)
        if header.mechanome_task > VERSION:
            why = f"version {header.mechanome_task} is newer than {VERSION}, the newest known here"
            raise CorruptFile(str(path), why, "update mechanome")
        if header.examples != len(records):
            why = f"it has {len(records)} examples, and its first line says {header.examples}"
            raise CorruptFile(str(path), why, "restore it, or remove its first line")
    elif not records:
        raise BadInput(str(path), "there is no example in it", "write one JSON object a line")
    examples = tuple(_example(record, place) for place, record in records)
    if header is None:
        return Task(Path(path).stem, examples, provenance=Provenance(str(path)))
    p = header.provenance
    provenance = Provenance(p.source, p.seed, p.shots, p.split, tuple(p.lists), tuple(p.steps))
    return Task(header.name, examples, header.summary, header.metric, provenance)


def _records(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and object of every line that is not blank."""
    for number, line in enumerate(existing(path).read_bytes().split(b"\n"), 1):
        place = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            raise CorruptFile(place, f"not whole JSON ({error})", "restore the line") from error
        if not isinstance(record, dict):
            raise BadInput(place, "it is not a JSON object", 'write {"inputs": ..., "answer": ...}')
        yield place, record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, unless it names a field twice."""
    names = [name for name, _ in pairs]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"'{twice}' occurs twice")
    return dict(pairs)


def _example(record: Mapping[str, Any], place: str) -> Example:
    row = _validated(_Row, record, place)
    settings = {name: getattr(row, name) for name in ("answer", "foil", "label", "groups", "split", "weight")}
    with _at(place):
        return Example(
            _plain(row.inputs),
            counterfactual=_plain(row.counterfactual),
            spans=_read_spans(row.spans),
            counterfactual_spans=_read_spans(row.counterfactual_spans),
            **settings,
        )


@contextmanager
def _at(place: str) -> Iterator[None]:
    """Refusals inside the block name the line."""
    try:
        yield
    except MechanomeError as error:
        raise BadInput(f"{place}: {error.what}", error.why, error.fix) from error


def _validated(kind: type[_Kind], record: Mapping[str, Any], place: str) -> _Kind:
    try:
        return kind.model_validate(record)
    except ValidationError as error:
        if kind is _Row and (renamed := _elsewhere(record)):
            why = f"there is no field {' or '.join(repr(name) for name in renamed.values())}"
            raise BadInput(
                place, why, f"rename {', '.join(f'{n!r} to {ours!r}' for ours, n in renamed.items())}"
            ) from error
        first = error.errors()[0]
        field = str(first["loc"][0])
        if field not in kind.model_fields:
            why = f"there is no field '{field}'"
            raise BadInput(place, why, nearest(field, kind.model_fields)) from error
        if first["type"] == "missing":
            raise BadInput(place, f"'{field}' is missing", f"give {_SHAPES.get(field, 'it')}") from error
        why = f"'{field}' cannot be {record[field]!r:.80}"
        raise BadInput(place, why, f"give {_SHAPES.get(field, first['msg'])}") from error


def _elsewhere(record: Mapping[str, Any]) -> dict[str, str]:
    """Fields that a record lacks, and what it calls them as other formats do."""
    lacking = {ours: names for ours, names in _ELSEWHERE.items() if ours not in record}
    found = {ours: next((name for name in names if name in record), None) for ours, names in lacking.items()}
    return {ours: name for ours, name in found.items() if name is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, list) and isinstance(value[0], _Message):
        return [message.model_dump() for message in value]
    return value


def _read_spans(spans: Mapping[str, str | _Chars | _Tokens]) -> dict[str, Span]:
    found: dict[str, Span] = {}
    for name, where in spans.items():
        if isinstance(where, _Chars):
            found[name] = (where.chars[0], where.chars[1])
        else:
            found[name] = where if isinstance(where, str) else where.tokens
    return found


def _record(example: Example) -> dict[str, Any]:
    """An example as JSON, without what has its default."""
    for inputs in (example.inputs, example.counterfactual):
        if isinstance(inputs, Mapping):
            raise NotServed("tensors in a JSON lines file", "they have no text form", "keep the files they come from")
    record = {name: getattr(example, name) for name in _Row.model_fields}
    for name in ("spans", "counterfactual_spans"):
        record[name] = {label: _write_span(where) for label, where in record[name].items()}
    return {name: value for name, value in record.items() if value != _Row.model_fields[name].default}


def _write_span(where: Span) -> Any:
    if isinstance(where, str):
        return where
    return {"chars" if isinstance(where, tuple) else "tokens": list(where)}
