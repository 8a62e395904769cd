"""Prompts of a generation: left-aligned, so that every row's next token is its last column, with frames that grow.

A decoder sees one more column at each step, with a key/value cache only the newest one. `Prompt.at` says where
real tokens are in such a pass, so that an edit means the same with and without a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.engine.frame import Frame
from mechanome.engine.inputs import Batch, Inputs, Spans
from mechanome.engine.model import Model

_GROWING = (None, "decoder", "text")
_BY_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "inputs_embeds")


@dataclass(frozen=True)
class Prompt:
    """Rows that a decoder continues.

    Attributes:
        batch: the encoded inputs, left-aligned where the model is a decoder only.
        arguments: what the model is called with, without a cache.
        frames: per tower, where real tokens are before anything is generated; None is the tower that grows.
    """

    batch: Batch
    arguments: Mapping[str, Any]
    frames: Mapping[str | None, Frame]

    @property
    def main(self) -> Frame:
        """Where real tokens are in the sequence that grows."""
        return self.frames[None]

    def at(self, width: int, grown: int) -> dict[str | None, Frame]:
        """The frames of a forward pass that sees the last `width` columns after `grown` generated tokens."""
        offset = self.main.width + grown - width
        return {t: f.at(offset, width, grown) if t in _GROWING else f for t, f in self.frames.items()}

    def grows(self, tower: str | None) -> bool:
        """Whether a tower sees generated tokens."""
        return tower in _GROWING


def prepare(model: Model, inputs: Inputs, spans: Spans = ()) -> Prompt:
    """Inputs of any kind as a `Prompt`.

    Raises:
        BadInput: position ids, or a decoder prompt without its start token.
        NotServed: rows of different length where padding would change the answer.
    """
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        return _with_encoder(model, model.encode(inputs, spans=spans))
    batch = left_aligned(model.encode(inputs, spans=spans, pad="left"))
    if any(batch.frame.starts) and not padding_is_neutral(model):
        raise NotServed(
            "prompts of different lengths",
            f"{type(model.core).__name__} does not ignore padding on the left (measured on this model)",
            "generate for prompts of one length at a time",
        )
    arguments = dict(batch.arguments)
    if "position_ids" in arguments:
        raise BadInput("position_ids", "generation counts positions itself", "leave them out; pass an attention_mask")
    ids = arguments.get("input_ids")
    if isinstance(ids, Tensor) and model.accepts("attention_mask"):
        # Without a mask Transformers would take every pad id inside a prompt for padding.
        arguments.setdefault("attention_mask", torch.ones_like(ids))
    return Prompt(batch, arguments, model.frames(batch))


def _with_encoder(model: Model, batch: Batch) -> Prompt:
    arguments = dict(batch.arguments)
    ids = arguments.get("decoder_input_ids")
    first = start_token(model)
    if ids is None:
        encoder = batch.frame
        main = Frame.full(batch.rows, 1)
        arguments["decoder_input_ids"] = torch.full((batch.rows, 1), first, device=model.device)
    else:
        encoder, main = batch.frames.get("encoder", Frame.unknown(batch.rows)), batch.frame
        if bool((ids[:, 0] != first).any()):
            raise BadInput("decoder_input_ids", f"they must start with the start token {first}", "put it first")
    if main.padded:
        raise NotServed(
            "decoder prompts of different lengths",
            "a decoder behind an encoder has no padding-proof positions",
            "generate for decoder prompts of one length at a time",
        )
    arguments.pop("decoder_attention_mask", None)
    source = arguments.get("input_ids")
    if isinstance(source, Tensor) and model.accepts("attention_mask"):
        arguments.setdefault("attention_mask", torch.ones_like(source))
    return Prompt(batch, arguments, {**model.frames(batch), None: main, "decoder": main, "encoder": encoder})


def start_token(model: Model) -> int:
    """The id that an encoder-decoder model's answer starts with.

    Raises:
        BadInput: its config names none.
    """
    generation = getattr(model.core, "generation_config", None)
    for source in (generation, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            value = getattr(source, name, None)
            if isinstance(value, int):
                return value
    raise BadInput("the decoder prompt", "the model names no decoder_start_token_id", "pass decoder_input_ids")


def left_aligned(batch: Batch) -> Batch:
    """The batch with each row's padding moved to its left."""
    frame = batch.frame
    shifts = [frame.width - start - length for start, length in zip(frame.starts, frame.lengths)]
    if not any(shifts) or not frame.width:
        return batch
    columns = (torch.arange(frame.width) - torch.tensor(shifts)[:, None]) % frame.width
    rows = torch.arange(batch.rows)[:, None]
    arguments = {
        k: v[rows.to(v.device), columns.to(v.device)] if k in _BY_TOKEN and isinstance(v, Tensor) else v
        for k, v in batch.arguments.items()
    }
    starts = tuple(frame.width - n for n in frame.lengths)
    return replace(batch, arguments=arguments, frame=replace(frame, starts=starts))


_neutral: WeakKeyDictionary[Model, bool] = WeakKeyDictionary()


def padding_is_neutral(model: Model) -> bool:
    """Whether tokens padded on the left change nothing, measured once on three tokens."""
    if model not in _neutral:
        ids = torch.tensor([[0, 0, 5, 7, 6], [5, 7, 6, 5, 7]], device=model.device)
        mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], device=model.device)
        padded = model.run({"input_ids": ids, "attention_mask": mask}).logits
        alone = model.run({"input_ids": ids[:1, 2:]}).logits
        assert padded is not None and alone is not None
        allowed = 3 * torch.finfo(alone.dtype).eps ** 0.5 * float(alone.abs().max())
        _neutral[model] = bool((padded[0, -1] - alone[0, -1]).abs().max() <= allowed)
    return _neutral[model]
