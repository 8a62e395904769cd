"""Inputs of any kind become one `Batch`: model arguments, where real tokens are, and labelled spans.

Text, chats, token ids and mappings of tensors all go through `encode`. Rows of different length are padded on
one side with a mask, and positions always mean real tokens, so padding never changes an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch, UnknownName
from mechanome.engine.frame import Frame

Inputs = Any
"""A string, a list of strings, a chat (list of role/content dicts), a list of chats, token ids, or a mapping of
tensors as the model's own processor makes them."""

Bos = Literal["auto", "none"] | int
Spans = Sequence[Mapping[str, Any]]

_MAIN = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values")


@dataclass(frozen=True)
class Batch:
    """Model arguments with their bookkeeping.

    Attributes:
        arguments: keyword arguments of the model's forward, tensors with `batch` first.
        frame: where real tokens are in the main sequence (`input_ids`, or `decoder_input_ids` for a decoder).
        frames: per tower name, where that tower's main tokens are; towers not listed have no padding.
        tokens: per row, the token strings of the main sequence; empty for other modalities.
        bos: what was done about the first token: "auto", "none" or the id that was put first.
    """

    arguments: Mapping[str, Any]
    frame: Frame
    frames: Mapping[str | None, Frame] = field(default_factory=dict)
    tokens: tuple[tuple[str, ...], ...] = ()
    bos: Bos = "auto"

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

    def take(self, rows: Sequence[int]) -> Batch:
        """Some rows, in the given order (a row may repeat)."""
        index = torch.tensor(list(rows), dtype=torch.long)
        n = self.rows
        arguments = {
            k: v[index.to(v.device)] if isinstance(v, Tensor) and v.dim() and v.shape[0] == n else v
            for k, v in self.arguments.items()
        }
        frames = {k: f.take(rows) for k, f in self.frames.items()}
        tokens = tuple(self.tokens[r] for r in rows) if self.tokens else ()
        return Batch(arguments, self.frame.take(rows), frames, tokens, self.bos)


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
        spans: per row, a label for a substring (`{"subject": "France"}`), a character range or token positions.
        pad: the side that short rows are padded on.
        device: where tensors go.
        max_length: the longest row the model can take.
        vocab_size: ids must be below it.

    Raises:
        BadInput: empty prompts, no tokenizer, ids out of range, a prompt longer than the context.
    """
    if isinstance(inputs, Batch):
        return inputs
    if isinstance(inputs, Mapping) and not _is_message(inputs):
        return _from_mapping(inputs, device, tokenizer, spans)
    rows, offsets, texts = _token_rows(inputs, tokenizer, bos)
    for i, row in enumerate(rows):
        if not row:
            raise BadInput("the prompt" if len(rows) == 1 else f"prompt {i}", "it has no token", "write some text")
        if max_length is not None and len(row) > max_length:
            raise BadInput(
                f"prompt {i} of {len(row)} tokens", f"the model's context is {max_length}", "shorten the prompt"
            )
        if vocab_size is not None and not all(0 <= t < vocab_size for t in row):
            raise BadInput(
                f"token ids of prompt {i}", f"they must be 0 to {vocab_size - 1}", "use the model's tokenizer"
            )
    labels = _spans(spans, rows, offsets, texts)
    width = max(map(len, rows))
    filler = _pad_id(tokenizer)
    ids = torch.full((len(rows), width), filler, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        start = width - len(row) if pad == "left" else 0
        ids[i, start : start + len(row)] = torch.tensor(row)
        mask[i, start : start + len(row)] = 1
    arguments: dict[str, Any] = {"input_ids": ids.to(device)}
    if bool((mask == 0).any()):
        arguments["attention_mask"] = mask.to(device)
    frame = Frame.from_mask(mask, labels)
    tokens = tuple(tuple(token_strings(tokenizer, row)) for row in rows)
    return Batch(arguments, frame, tokens=tokens, bos=bos)


def token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """One readable string per token id; without a tokenizer the ids themselves."""
    if tokenizer is None:
        return [str(i) for i in ids]
    return [tokenizer.decode([int(i)], clean_up_tokenization_spaces=False) for i in ids]


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "content" in value


def _token_rows(inputs: Inputs, tokenizer: Any, bos: Bos) -> tuple[list[list[int]], list[Any], list[str]]:
    """Token ids per row, with character offsets and text where the row came from text."""
    if isinstance(inputs, Tensor):
        if inputs.dim() not in (1, 2) or inputs.is_floating_point():
            raise ShapeMismatch(
                f"a tensor of shape {list(inputs.shape)}",
                "token ids are integers [pos] or [batch, pos]",
                "pass ids or text",
            )
        rows = inputs.tolist() if inputs.dim() == 2 else [inputs.tolist()]
        return rows, [None] * len(rows), [""] * len(rows)
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or len(inputs) == 0:
        raise BadInput(
            "the inputs", f"nothing can be read from {type(inputs).__name__}", "pass text, a chat or token ids"
        )
    if _is_message(inputs[0]):
        inputs = [inputs]
    if isinstance(inputs[0], int):
        return [[int(i) for i in inputs]], [None], [""]
    rows, offsets, texts = [], [], []
    for item in inputs:
        if isinstance(item, str) or (isinstance(item, Sequence) and item and _is_message(item[0])):
            ids, offset, text = _tokenize(item, tokenizer, bos)
        elif isinstance(item, Sequence) and all(isinstance(i, int) for i in item):
            ids, offset, text = [int(i) for i in item], None, ""
        elif isinstance(item, Tensor) and item.dim() == 1:
            ids, offset, text = item.tolist(), None, ""
        else:
            raise BadInput(
                f"an input of type {type(item).__name__}", "it is not text, a chat or token ids", "pass one of these"
            )
        rows.append(ids)
        offsets.append(offset)
        texts.append(text)
    return rows, offsets, texts


def _tokenize(item: Any, tokenizer: Any, bos: Bos) -> tuple[list[int], Any, str]:
    if tokenizer is None:
        raise BadInput("text", "this model came without a tokenizer", "pass token ids, or load it with tokenizer=...")
    chat = not isinstance(item, str)
    if chat and getattr(tokenizer, "chat_template", None) is None:
        raise BadInput("a chat", "this tokenizer has no chat template", "pass plain text")
    text = tokenizer.apply_chat_template(list(item), tokenize=False, add_generation_prompt=True) if chat else item
    if not text:
        raise BadInput("the prompt", "it is empty", "write some text")
    fast = getattr(tokenizer, "is_fast", False)
    found = tokenizer(text, add_special_tokens=not chat and bos == "auto", return_offsets_mapping=fast)
    ids = list(found["input_ids"])
    offset = list(found["offset_mapping"]) if fast else None
    first = tokenizer.bos_token_id if bos == "auto" else None if bos == "none" else int(bos)
    encoder = getattr(tokenizer, "cls_token_id", None) is not None
    if first is not None and not (bos == "auto" and encoder) and ids[:1] != [first]:
        ids = [first, *ids]
        offset = [(0, 0), *offset] if offset is not None else None
    return ids, offset, text


def _pad_id(tokenizer: Any) -> int:
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(tokenizer, name, None)
        if isinstance(value, int):
            return value
    return 0


def _spans(
    spans: Spans, rows: list[list[int]], offsets: list[Any], texts: list[str]
) -> tuple[dict[str, list[int]], ...]:
    if not spans:
        return ()
    if len(spans) != len(rows):
        raise BadInput(f"spans for {len(spans)} rows", f"there are {len(rows)} prompts", "give one mapping per prompt")
    return tuple(
        {name: _span(name, where, i, offsets[i], texts[i]) for name, where in labels.items()}
        for i, labels in enumerate(spans)
    )


def _span(name: str, where: Any, row: int, offset: Any, text: str) -> list[int]:
    if isinstance(where, Sequence) and not isinstance(where, (str, tuple)):
        return [int(p) for p in where]
    if offset is None:
        raise BadInput(f"span '{name}' of row {row}", "only text has characters", "give token positions as a list")
    if isinstance(where, str):
        start = text.find(where)
        if start < 0:
            raise UnknownName(f"span '{name}' of row {row}", f"{where!r} is not in the prompt", "check the spelling")
        if text.find(where, start + 1) >= 0:
            raise BadInput(
                f"span '{name}' of row {row}", f"{where!r} occurs more than once", "give a (start, end) character range"
            )
        where = (start, start + len(where))
    lo, hi = where
    return [i for i, (a, b) in enumerate(offset) if a < hi and b > lo and b > a]


def _from_mapping(inputs: Mapping[str, Any], device: torch.device | str, tokenizer: Any, spans: Spans) -> Batch:
    arguments = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
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
        frame = Frame(
            frame.starts, frame.lengths, frame.width, spans=tuple({k: list(v) for k, v in s.items()} for s in spans)
        )
    tokens: tuple[tuple[str, ...], ...] = ()
    if name in ("input_ids", "decoder_input_ids") and tokenizer is not None:
        real = [main[i, s : s + n].tolist() for i, (s, n) in enumerate(zip(frame.starts, frame.lengths))]
        tokens = tuple(tuple(token_strings(tokenizer, row)) for row in real)
    return Batch(arguments, frame, frames, tokens)


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
