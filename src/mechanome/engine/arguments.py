"""From a batch to what a model's forward is called with, and the refusals of what it cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.engine.frame import Frame
from mechanome.engine.inputs import Batch

if TYPE_CHECKING:
    from mechanome.engine.opened import Opened


def call_arguments(model: Opened, batch: Batch) -> dict[str, Any]:
    """What the model's forward is called with: the batch, no cache, and true positions under left padding.

    Raises:
        BadInput: token ids for a model that takes other inputs, or others besides.
        NotServed: rows padded on a side that the self-test found to change this model's answers.
    """
    arguments = dict(batch.arguments)
    _check(model, arguments)
    _refuse_padding(model, batch.frame)
    if model.accepts("use_cache"):
        arguments.setdefault("use_cache", False)
    if model.config is None and "input_ids" in arguments and not model.accepts("input_ids"):
        # A module of the user's own: tokens go to its first parameter, whatever its name.
        first = next(iter(inspect.signature(model.core.forward).parameters), "input_ids")
        arguments[first] = arguments.pop("input_ids")
    mask = arguments.get("attention_mask")
    if isinstance(mask, Tensor) and any(batch.frame.starts) and _counts_columns(model):
        arguments.setdefault("position_ids", (mask.long().cumsum(-1) - 1).clamp(min=0))
    return arguments


def with_frames_of_sound(model: Opened, batch: Batch) -> Batch:
    """A waveform's mask counts samples; only the model knows how many positions they become.

    Raises:
        BadInput: a waveform padded on the left, which these models take for one padded on the right.
    """
    wave, mask = batch.arguments.get("input_values"), batch.arguments.get("attention_mask")
    positions = getattr(model.core, "_get_feat_extract_output_lengths", None)
    if not isinstance(wave, Tensor) or positions is None or batch.frame.width:
        return batch
    samples = mask.sum(-1) if isinstance(mask, Tensor) else torch.full((batch.rows,), wave.shape[-1])
    if isinstance(mask, Tensor) and not bool(mask[:, 0].all()):
        raise BadInput("the waveforms", "they are padded on the left", "pad them on the right")
    lengths = tuple(int(positions(n)) for n in samples.cpu())
    width = int(positions(torch.tensor(wave.shape[-1])))
    return replace(batch, frame=replace(batch.frame, lengths=lengths, width=width))


def _check(model: Opened, arguments: Mapping[str, Any]) -> None:
    """Refuse inputs that this model's forward does not take, or that lack another it needs."""
    if model.config is None:
        return
    others = ("pixel_values", "input_features", "input_values", "decoder_input_ids")
    needed = [name for name in others if model.accepts(name)]
    if model.accepts("input_ids"):
        mixed = getattr(model.config, "is_encoder_decoder", False) or len(model.architecture.towers) > 1
        needed = needed if mixed else []
    given = set(arguments)
    if given & {"labels", "decoder_inputs_embeds"}:
        given.add("decoder_input_ids")
    if "input_ids" in arguments and (not model.accepts("input_ids") or not set(needed) <= given):
        takes = ", ".join(name for name in ("input_ids", *needed) if model.accepts(name))
        raise BadInput(
            f"token ids alone for {model.name}",
            f"its forward takes {takes or 'other inputs'}",
            "pass a mapping of tensors, as the model's own processor makes it",
        )


def _refuse_padding(model: Opened, frame: Frame) -> None:
    if model.report is None or not frame.padded:
        return
    side = "left" if any(frame.starts) else "right"
    error = model.report.left_padding_error if side == "left" else model.report.padding_error
    if error is not None and error > (1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1):
        raise NotServed(
            "rows of different lengths",
            f"padding on the {side} changes what {type(model.core).__name__} says (by {error:.1g}, measured)",
            "run rows of one length at a time, or pad on the other side",
        )


def _counts_columns(model: Opened) -> bool:
    """Whether positions are columns unless told otherwise; some embeddings (roberta) count the ids instead."""
    counts_ids = any(hasattr(m, "create_position_ids_from_input_ids") for m in model.module.modules())
    return model.accepts("position_ids") and not counts_ids
