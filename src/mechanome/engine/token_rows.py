"""Text, chats and token ids, one or many, as rows of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any, Literal

import numpy as np
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.engine.plain import is_integral, whole

Inputs = Any
"""A string, a list of strings, a chat (list of role/content dicts), a list of chats, token ids, or a mapping of
tensors as the model's own processor makes them."""

Bos = Literal["auto", "none"] | int


def is_message(value: Any) -> bool:
    """Whether a value is one message of a chat."""
    return isinstance(value, Mapping) and "role" in value and "content" in value


def token_rows(inputs: Inputs, tokenizer: Any, bos: Bos) -> tuple[list[list[int]], list[Any], list[str]]:
    """Token ids per row, with character offsets and text where the row came from text.

    Args:
        inputs: anything of `Inputs` but a mapping of tensors. tokenizer: for text and chats. bos: see `encode`.

    Raises:
        BadInput: nothing that can be read. ShapeMismatch: a tensor that is not integers of one or two axes.
    """
    if isinstance(inputs, (Tensor, np.ndarray)):
        if inputs.ndim not in (1, 2) or not is_integral(inputs):
            raise ShapeMismatch(
                f"{inputs.dtype} inputs of shape {list(inputs.shape)}",
                "token ids are integers [pos] or [batch, pos]",
                "pass ids or text",
            )
        inputs = inputs.tolist() if inputs.ndim == 2 else [inputs.tolist()]
    if isinstance(inputs, str) or is_message(inputs):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or isinstance(inputs, (bytes, bytearray)) or len(inputs) == 0:
        kind = f"an empty {type(inputs).__name__}" if isinstance(inputs, Sized) and not len(inputs) else ""
        raise BadInput(
            "the inputs",
            f"nothing can be read from {kind or type(inputs).__name__}",
            "pass text, a chat or token ids",
        )
    if is_message(inputs[0]) or whole(inputs[0]) is not None:
        inputs = [inputs]
    rows, offsets, texts = [], [], []
    for item in inputs:
        if isinstance(item, str) or (isinstance(item, Sequence) and item and is_message(item[0])):
            ids, offset, text = _tokenize(item, tokenizer, bos)
        else:
            ids, offset, text = _ids(item), None, ""
        rows.append(ids)
        offsets.append(offset)
        texts.append(text)
    return rows, offsets, texts


def _ids(item: Any) -> list[int]:
    """One row of token ids.

    Raises:
        BadInput: anything else, such as floats, booleans, or ids mixed with text.
    """
    arrays = isinstance(item, (Tensor, np.ndarray))
    if arrays and item.ndim == 1 and is_integral(item):
        return [int(i) for i in item.tolist()]
    if arrays or isinstance(item, (bytes, bytearray)) or not isinstance(item, Sequence):
        kind = f"{item.dtype} values of shape {list(item.shape)}" if arrays else f"type {type(item).__name__}"
        held = hasattr(item, "inputs")  # an example of a task
        fix = "pass the task itself, or a list of each one's .inputs" if held else "pass one of these"
        raise BadInput(f"an input of {kind}", "it is not text, a chat or token ids", fix)
    found = [whole(i) for i in item]
    if None in found:
        odd = item[found.index(None)]
        raise BadInput(f"a row with {odd!r} among its token ids", "ids are integers", "pass text, a chat or token ids")
    return [i for i in found if i is not None]


def _tokenize(item: Any, tokenizer: Any, bos: Bos) -> tuple[list[int], Any, str]:
    if tokenizer is None:
        raise BadInput("text", "this model came without a tokenizer", "pass token ids, or load it with tokenizer=...")
    chat = not isinstance(item, str)
    text = _rendered(item, tokenizer) if chat else item
    if not text:
        raise BadInput("the prompt", "it is empty", "write some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            "the prompt", f"character {error.start} is half of a surrogate pair, which no text holds", "decode it anew"
        ) from error
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


def _rendered(chat: Sequence[Any], tokenizer: Any) -> str:
    """A chat as the text its template makes of it.

    Raises:
        BadInput: no template, a message that is not one, or a chat that the template refuses.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise BadInput("a chat", "this tokenizer has no chat template", "pass plain text")
    for i, message in enumerate(chat):
        content = message["content"] if is_message(message) else None
        calls = isinstance(message, Mapping) and bool(message.get("tool_calls"))
        if not (isinstance(content, (str, list)) or (content is None and calls)):
            raise BadInput(
                f"message {i} of a chat", f"{message!r} has no text", "give {'role': ..., 'content': 'some text'}"
            )
    try:
        return str(tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of the tokenizer's author, and may raise anything
        raise BadInput("a chat", f"the tokenizer's template refused it ({error})", "check its roles") from error
