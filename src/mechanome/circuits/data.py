"""What circuits are scored and run on: pairs of clean and corrupted inputs, and a metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.core import BadInput, ShapeMismatch
from mechanome.engine import Batch, Model
from mechanome.engine.metrics import Metric, check_metric

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Data:
    """What is scored: inputs, their counterfactuals (or None), and a metric."""

    clean: Batch
    other: Batch | None
    metric: Metric


def read_data(graph: Graph, data: Any, metric: Metric | None, change: Intervention) -> Data:
    """A task, or a pair of inputs with a metric, as checked `Data`.

    Raises:
        BadInput: neither; no graph, dropout in train mode, no metric, no corrupted input where the intervention needs
            one; examples of unequal weight.
        ShapeMismatch: pairs of different number, token length or padding.
    """
    if not isinstance(graph, Graph):
        raise BadInput("the graph", f"it is no Graph but {type(graph).__name__}", "give Graph.of(mn.load(...))")
    model = graph.opened()
    _refuse_drawing(model)
    if hasattr(data, "batch"):
        if len({example.weight for example in data}) > 1:
            why = "its examples have different weights, and circuits count each example the same"
            raise BadInput(f"task '{data.name}'", why, "give all the same weight")
        data = data.batch(model)
    if isinstance(data, (str, torch.Tensor)) or not isinstance(data, Sequence) or len(data) not in (2, 3):
        raise BadInput("the data", "it is no task and no pair of inputs", "give a Task, or (clean, corrupted)")
    metric = metric if metric is not None else data[2] if len(data) == 3 else None
    if metric is None:
        raise BadInput("the data", "it brings no metric", "give metric=mn.LogitDiff(answer, foil)")
    clean = model.encode(data[0])
    other = None if data[1] is None else model.encode(data[1])
    if other is None and change.kind == "patch":
        raise BadInput("the data", "patching needs a corrupted input", "give one, or intervention='zero'")
    check_metric(metric, clean.rows)
    if other is not None and clean.rows != other.rows:
        raise ShapeMismatch(f"{clean.rows} clean and {other.rows} corrupted inputs", "they are pairs", "give as many")
    frames = () if other is None else zip(clean.frame.lengths, other.frame.lengths)
    for row, (n, m) in enumerate(frames):
        if n != m:
            raise ShapeMismatch(
                f"example {row}: {n} clean and {m} corrupted tokens",
                "parts are patched position by position",
                "choose counterfactuals of equal token length (task.aligned(model))",
            )
    if other is not None and clean.frame.starts != other.frame.starts:
        raise ShapeMismatch("the two batches", "they are padded on different sides", "pad both on one side")
    return Data(clean, other, metric)


def _refuse_drawing(model: Model) -> None:
    """Circuits compare runs of a model, so that no two of them may draw.

    Raises:
        BadInput: the model is in train mode, or a part of it that has dropout is.
    """
    module = model.module
    drawing = (name for name, part in module.named_modules() if part.training and (part is module or _draws(part)))
    if (name := next(drawing, None)) is not None:
        who = f"its part '{name}'" if name else "it"
        why = f"{who} is in train mode, where dropout draws anew in every run, and circuits compare runs"
        raise BadInput("the model", why, "call model.module.eval()")


def _draws(part: nn.Module) -> bool:
    """Whether a part is dropout, or names a share to be dropped as attention layers do."""
    if isinstance(part, _DROPOUTS):
        return part.p > 0
    return any("dropout" in name and isinstance(value, float) and value > 0 for name, value in vars(part).items())
