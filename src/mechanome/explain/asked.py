"""What can be asked about at all: a text or a chat, checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechanome.core.errors import BadInput

Message = Mapping[str, str]
Asked = str | Sequence[Message]
"""A text, or a chat: messages with "role" and "content"."""


def check_asked(what: str, asked: Any) -> None:
    """Whether something can be a prompt at all.

    Raises:
        BadInput: neither text nor chat, or empty.
    """
    if isinstance(asked, str):
        if not asked:
            raise BadInput(what, "it is empty", "write some text")
        return
    chat = isinstance(asked, Sequence) and not isinstance(asked, bytes | bytearray)
    if not chat or not all(_is_message(m) for m in asked):
        raise BadInput(
            f"{what} of type {type(asked).__name__}",
            "one text or one chat is explained at a time",
            "pass a string, or a list such as [{'role': 'user', 'content': 'some text'}]",
        )
    if not any(m["content"].strip() for m in asked):
        raise BadInput(what, "the chat is empty", "write a message")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))
