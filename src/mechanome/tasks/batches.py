"""From examples to what the engine takes: batches, token ids of answers, and the contrast between answer and foil.

Answer and foil often begin alike (" 19" and " 21" share the space where digits are single tokens). What decides between
them is the first token that differs; the tokens before it are put behind both prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed, ShapeMismatch, UnknownName, nearest
from mechanome.engine.boundaries import listed
from mechanome.engine.inputs import Batch
from mechanome.engine.metrics import LogitDiff, LogProb, Metric
from mechanome.engine.model import Model
from mechanome.tasks.example import Answer, Example


class Pair(NamedTuple):
    """What `activation_patching(model, *pair[:2], point, pair.metric)` takes; rows are examples."""

    clean: Batch
    corrupted: Batch
    metric: Metric


@dataclass(frozen=True)
class Contrast:
    """The tokens that decide: those that answer and foil share, then one of each (no foil: None)."""

    shared: tuple[int, ...]
    answer: int
    foil: int | None


METRICS: dict[str, Callable[[Sequence[int], Sequence[int | None]], Metric]] = {
    "logit_diff": lambda answers, foils: LogitDiff(list(answers), [_given(foil) for foil in foils]),
    "logprob": lambda answers, foils: LogProb(list(answers)),
}
"""Metrics of a task by name: from one answer token and one foil token per row."""


def metric_named(name: str) -> Callable[[Sequence[int], Sequence[int | None]], Metric]:
    """The metric of this name.

    Raises:
        UnknownName: there is none.
    """
    if name not in METRICS:
        raise UnknownName(f"metric '{name}'", "there is no such metric of a task", nearest(name, METRICS))
    return METRICS[name]


def encode(model: Model, examples: Sequence[Example], counterfactual: bool = False) -> Batch:
    """The inputs (or counterfactuals) of examples as one batch, padded on the right, with their spans.

    Raises:
        BadInput: an example without a counterfactual, inputs of tensors beside others.
        ShapeMismatch: tensors that cannot be put into one batch.
    """
    inputs = [e.counterfactual if counterfactual else e.inputs for e in examples]
    if None in [None if i is None else 0 for i in inputs]:
        row = next(r for r, i in enumerate(inputs) if i is None)
        raise BadInput(f"example {row}", "it has no counterfactual", "drop it with task.aligned(model).task")
    spans = [e.counterfactual_spans if counterfactual else e.spans for e in examples]
    tensors = [isinstance(i, Mapping) for i in inputs]
    if any(tensors) and not all(tensors):
        raise BadInput("these examples", "some are tensors and some are not", "encode each kind apart")
    return model.encode(_stacked(inputs) if all(tensors) else inputs, spans=spans if any(spans) else ())


def answer_ids(model: Model, example: Example, answer: Answer) -> tuple[int, ...]:
    """Token ids of an answer behind the example's input.

    Raises:
        BadInput: a text whose tokens straddle the boundary, or no token.
    """
    prompt = None if isinstance(example.inputs, Mapping) else example.inputs
    text = prompt if isinstance(prompt, str) or (prompt and isinstance(prompt[0], Mapping)) else None
    return tuple(listed(model, [text], [answer if isinstance(answer, str) else list(answer)])[0])


def contrast(model: Model, example: Example) -> Contrast:
    """What decides between answer and foil.

    Raises:
        BadInput: no answer; one of the two begins with all of the other; an answer of several tokens without a foil.
    """
    if example.answer is None:
        raise BadInput(f"example {example.inputs!r}", "it has no answer", "give one")
    answer = answer_ids(model, example, example.answer)
    if example.foil is None:
        if len(answer) > 1:
            why = f"it has {len(answer)} tokens and no foil, so none of them decides"
            raise BadInput(f"answer {example.answer!r}", why, "give a foil, or score the answer with model.logprob")
        return Contrast((), answer[0], None)
    foil = answer_ids(model, example, example.foil)
    same = next((i for i, (a, b) in enumerate(zip(answer, foil)) if a != b), None)
    if same is None:
        why = f"in tokens it begins with all of {example.foil!r}, or the other way around"
        raise BadInput(f"answer {example.answer!r}", why, "choose a foil that differs before it ends")
    return Contrast(answer[:same], answer[same], foil[same])


def pair(model: Model, examples: Sequence[Example], metric: str, equal_length: bool = True) -> Pair:
    """Both batches of examples and their metric at the last token; see `Task.batch`."""
    build = metric_named(metric)
    contrasts = [contrast(model, example) for example in examples]
    shared = [c.shared for c in contrasts]
    clean, corrupted = (_extended(model, encode(model, examples, other), shared) for other in (False, True))
    odd = [r for r, (n, m) in enumerate(zip(clean.frame.lengths, corrupted.frame.lengths)) if n != m]
    if odd and equal_length:
        n, m = clean.frame.lengths[odd[0]], corrupted.frame.lengths[odd[0]]
        raise ShapeMismatch(
            f"{len(odd)} of {len(examples)} counterfactuals",
            f"they have another token length (example {odd[0]}: {n} and {m})",
            "use task.aligned(model).task, or equal_length=False with positions named by spans",
        )
    return Pair(clean, corrupted, build([c.answer for c in contrasts], [c.foil for c in contrasts]))


def _extended(model: Model, batch: Batch, more: Sequence[tuple[int, ...]]) -> Batch:
    """A batch with further tokens behind each row."""
    if not any(more):
        return batch
    ids = batch.arguments.get("input_ids")
    if not isinstance(ids, Tensor) or not set(batch.arguments) <= {"input_ids", "attention_mask"}:
        raise NotServed(
            "answers and foils that share their first tokens",
            "these tokens can only be put behind a prompt of text or ids",
            "choose foils whose first token differs",
        )
    rows = [ids[r, s : s + n].tolist() for r, (s, n) in enumerate(zip(batch.frame.starts, batch.frame.lengths))]
    return model.encode([[*row, *new] for row, new in zip(rows, more)], spans=batch.frame.spans)


def _stacked(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(inputs[0])
    if any(list(i) != names for i in inputs):
        raise ShapeMismatch("these examples", "they hold tensors of other names", "give each the same tensors")
    stacked = {}
    for name in names:
        parts = [i[name] for i in inputs]
        if len({tuple(p.shape) for p in parts}) > 1:
            shapes = f"{list(parts[0].shape)} and others"
            raise ShapeMismatch(f"'{name}' of these examples", f"shapes differ ({shapes})", "pad them alike")
        stacked[name] = torch.cat(parts)
    return stacked


def _given(foil: int | None) -> int:
    if foil is None:
        raise BadInput("the metric 'logit_diff'", "an example has no foil", "give one, or use metric='logprob'")
    return foil
