"""Inputs of any kind become one `Batch`: model arguments, where real tokens are, and labelled spans.

Text, chats, token ids and mappings of tensors all go through `encode`. Rows of different length are padded on
one side with a mask, and positions always mean real tokens, so padding never changes an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.engine.frame import Frame
from mechanome.engine.plain import array, is_integral, whole
from mechanome.engine.spans import Spans, labelled
from mechanome.engine.token_rows import Bos, Inputs, is_message, token_rows

__all__ = ["Batch", "Bos", "Encodes", "Inputs", "Spans", "encode", "token_strings"]

_TOKENS = (
    "input_ids",
    "decoder_input_ids",
    "attention_mask",
    "decoder_attention_mask",
    "token_type_ids",
    "position_ids",
)
_MAIN = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")


@dataclass(frozen=True)
class Batch:
    """Model arguments with their bookkeeping.

    Attributes:
        arguments: keyword arguments of the model's forward, tensors with `batch` first.
        frame: where real tokens are in the main sequence (`input_ids`, or `decoder_input_ids` for a decoder).
        frames: per tower name, where that tower's main tokens are; towers not listed have no padding.
        tokenizer: what reads the main sequence, or None.
        bos: what was done about the first token: "auto", "none" or the id that was put first.
    """

    arguments: Mapping[str, Any]
    frame: Frame
    frames: Mapping[str | None, Frame] = field(default_factory=dict)
    tokenizer: Any = field(default=None, repr=False, compare=False)
    bos: Bos = "auto"

    @cached_property
    def tokens(self) -> tuple[tuple[str, ...], ...]:
        """Per row, the token strings of the main sequence, without padding; empty for other modalities."""
        main = self.arguments.get("decoder_input_ids", self.arguments.get("input_ids"))
        if not isinstance(main, Tensor):
            return ()
        real = (main[i, s : s + n].tolist() for i, (s, n) in enumerate(zip(self.frame.starts, self.frame.lengths)))
        return tuple(tuple(token_strings(self.tokenizer, row)) for row in real)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.frame.rows

    @property
    def input_ids(self) -> Tensor:
        """Token ids `[batch, pos]`.

        Raises:
            BadInput: for inputs without token ids.
        """
        ids = self.arguments.get("decoder_input_ids", self.arguments.get("input_ids"))
        if ids is None:
            raise BadInput("these inputs", "they have no token ids", "pass text or input_ids")
        return ids

    def __repr__(self) -> str:
        shapes = ", ".join(f"{k} {list(v.shape)}" for k, v in self.arguments.items() if isinstance(v, Tensor))
        return f"Batch({self.rows} row(s): {shapes})"

    def take(self, rows: Sequence[int]) -> Batch:
        """Some rows, in the given order (a row may repeat)."""
        index = torch.tensor(list(rows), dtype=torch.long)
        n = self.rows
        arguments = {
            k: v[index.to(v.device)] if isinstance(v, Tensor) and v.dim() and v.shape[0] == n else v
            for k, v in self.arguments.items()
        }
        frames = {k: f.take(rows) for k, f in self.frames.items()}
        return Batch(arguments, self.frame.take(rows), frames, self.tokenizer, self.bos)


@runtime_checkable
class Encodes(Protocol):
    """Inputs that know how to become a batch for a model, such as the examples of a task."""

    def __batch__(self, model: Any) -> Batch:
        """Their rows, as `model.encode` makes them."""
        ...


def encode(
    inputs: Inputs,
    tokenizer: Any = None,
    *,
    bos: Bos = "auto",
    spans: Spans = (),
    pad: Literal["left", "right"] = "right",
    device: torch.device | str = "cpu",
    max_length: int | None = None,
    vocab_size: int | None = None,
) -> Batch:
    """Turn inputs of any kind into a `Batch`.

    Args:
        inputs: see `Inputs`; a `Batch` passes through.
        tokenizer: needed for text and chats.
        bos: "auto" puts the tokenizer's first token first where the tokenizer itself adds none and the text does
            not start with it; "none" adds nothing; an id puts that token first.
        spans: per row, a label for a substring (`{"subject": "France"}`), a character range `(start, end)` or a list
            of token positions.
        pad: the side that short rows are padded on.
        device: where tensors go.
        max_length: the longest row the model can take.
        vocab_size: ids must be below it.

    Raises:
        BadInput: empty prompts, no tokenizer, ids out of range, a prompt longer than the context, a span that names
            no token.
    """
    if pad not in ("left", "right"):
        raise BadInput(f"pad={pad!r}", "there is no such side", "use 'left' or 'right'")
    if bos not in ("auto", "none") and whole(bos) is None:
        raise BadInput(f"bos={bos!r}", "it is not a token id", "use 'auto', 'none' or an id")
    if isinstance(inputs, Batch):
        if spans:
            raise BadInput("spans of a batch", "it was encoded before", "give the spans to model.encode")
        return inputs
    if isinstance(inputs, Mapping) and not is_message(inputs):
        return _from_mapping(inputs, device, tokenizer, spans, max_length, vocab_size)
    rows, offsets, texts = token_rows(inputs, tokenizer, bos)
    for i, row in enumerate(rows):
        if not row:
            raise BadInput("the prompt" if len(rows) == 1 else f"prompt {i}", "it has no token", "write some text")
        if max_length is not None and len(row) > max_length:
            raise BadInput(
                f"prompt {i} of {len(row)} tokens", f"the model's context is {max_length}", "shorten the prompt"
            )
        if vocab_size is not None and not 0 <= min(row) <= max(row) < vocab_size:
            raise BadInput(
                f"token ids of prompt {i}", f"they must be 0 to {vocab_size - 1}", "use the model's tokenizer"
            )
    labels = labelled(spans, list(map(len, rows)), offsets, texts)
    arguments, frame = _packed(rows, _pad_id(tokenizer), pad)
    frame = replace(frame, spans=tuple(labels))
    arguments = {name: value.to(device) for name, value in arguments.items()}
    return Batch(arguments, frame, tokenizer=tokenizer, bos=bos)


def _packed(rows: list[list[int]], filler: int, pad: str) -> tuple[dict[str, Any], Frame]:
    """Rows as one tensor, with a mask where their lengths differ."""
    width = max(map(len, rows))
    if all(len(row) == width for row in rows):
        return {"input_ids": torch.tensor(rows)}, Frame.full(len(rows), width)
    gaps = [width - len(row) for row in rows]
    left = [gap if pad == "left" else 0 for gap in gaps]
    ids = [[filler] * a + row + [filler] * (gap - a) for row, gap, a in zip(rows, gaps, left)]
    mask = [[0] * a + [1] * len(row) + [0] * (gap - a) for row, gap, a in zip(rows, gaps, left)]
    arguments = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    return arguments, Frame(tuple(left), tuple(map(len, rows)), width)


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One readable string per token id; without a tokenizer the ids themselves."""
    if tokenizer is None:
        return [str(i) for i in ids]
    return [tokenizer.decode([int(i)], clean_up_tokenization_spaces=False) for i in ids]


def _pad_id(tokenizer: Any) -> int:
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int):
            return value
    return 0


def _check_ids(name: str, ids: Tensor, max_length: int | None, vocab_size: int | None) -> None:
    """The checks of id lists, for a tensor of a mapping."""
    if max_length is not None and ids.shape[1] > max_length:
        raise BadInput(
            f"'{name}' of {ids.shape[1]} tokens", f"the model's context is {max_length}", "shorten the prompts"
        )
    if vocab_size is not None and not bool(((ids >= 0) & (ids < vocab_size)).all()):
        raise BadInput(f"'{name}'", f"token ids must be 0 to {vocab_size - 1}", "use the model's tokenizer")


def _tensor(name: str, value: Any) -> Any:
    """Token arguments that a tokenizer left as Python lists, or NumPy arrays, as tensors `[batch, pos]`."""
    if isinstance(value, np.ndarray):
        value = array(value, f"'{name}'")
    elif name in _TOKENS and isinstance(value, (list, tuple)):
        try:
            value = torch.tensor(value)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadInput(f"'{name}'", f"its lists make no tensor ({error})", "pad the rows, as integers") from error
        value = value[None] if value.dim() == 1 else value
    ids = name in ("input_ids", "decoder_input_ids") and isinstance(value, Tensor)
    if ids and (value.dim() != 2 or not (is_integral(value) or value.numel() == 0)):
        raise ShapeMismatch(
            f"'{name}' of {value.dtype} {list(value.shape)}", "token ids are integers [batch, pos]", "convert it"
        )
    if isinstance(value, Tensor) and value.dim() > 1 and 0 in value.shape[:2] and name in (*_TOKENS, *_MAIN):
        raise BadInput(f"'{name}' of shape {list(value.shape)}", "it has no token", "give at least one row and token")
    return value


def _from_mapping(
    inputs: Mapping[str, Any],
    device: torch.device | str,
    tokenizer: Any,
    spans: Spans,
    max_length: int | None,
    vocab_size: int | None,
) -> Batch:
    arguments = {name: _tensor(name, value) for name, value in inputs.items()}
    arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in arguments.items()}
    for ids in ("input_ids", "decoder_input_ids"):
        if isinstance(arguments.get(ids), Tensor):
            _check_ids(ids, arguments[ids], max_length, vocab_size)
    known = [k for k in ("decoder_input_ids", *_MAIN) if isinstance(arguments.get(k), Tensor)]
    tensors = [k for k, v in arguments.items() if isinstance(v, Tensor) and v.dim()]
    if not tensors:
        raise BadInput("a mapping of inputs", "it holds no tensor", "pass what the model's processor returns")
    name = (known or tensors)[0]
    main = arguments[name]
    rows = main.shape[0]
    odd = [k for k, v in arguments.items() if isinstance(v, Tensor) and v.dim() and v.shape[0] not in (rows, 1)]
    if odd and "pixel_values" not in odd:
        raise ShapeMismatch(
            f"'{odd[0]}' of {arguments[odd[0]].shape[0]} rows",
            f"'{name}' has {rows}",
            "give every tensor the same batch",
        )
    frame = _frame(arguments, name, rows)
    frames: dict[str | None, Frame] = {}
    if name == "decoder_input_ids" and isinstance(arguments.get("input_ids"), Tensor):
        frames["encoder"] = _frame(arguments, "input_ids", rows)
    if spans:
        lengths: Sequence[int | None] = frame.lengths if frame.width else [None] * rows
        frame = replace(frame, spans=labelled(spans, lengths, [None] * rows, [""] * rows))
    return Batch(arguments, frame, frames, tokenizer)


def _frame(arguments: Mapping[str, Any], name: str, rows: int) -> Frame:
    main = arguments[name]
    mask = arguments.get("decoder_attention_mask" if name == "decoder_input_ids" else "attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and name not in ("pixel_values", "input_features", "input_values"):
        if mask.shape[:2] != main.shape[:2]:
            raise ShapeMismatch(
                f"attention mask {list(mask.shape)}", f"'{name}' is {list(main.shape)}", "make their shapes equal"
            )
        return Frame.from_mask(mask)
    tokens = name == "inputs_embeds" or (main.dim() == 2 and not main.is_floating_point())
    return Frame.full(rows, main.shape[1]) if tokens else Frame.unknown(rows)
