"""Chats as text, with who wrote what: a chat template is a program, and only its output shows where messages lie.

The template is run twice: once on the chat, once on the same chat with a private character for each message. What
stands between those characters is what the template itself wrote, so what stands between it in the first run is what
the messages became, trimmed or rewritten as the template likes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechanome.activations.activations import ROLES
from mechanome.core.errors import BadInput, NotServed, nearest

_PRIVATE = 0xE000
_AUTHORS = ROLES[2:]


@dataclass(frozen=True)
class Rendered:
    """A chat as its template writes it.

    Args:
        text: all of it.
        spans: per message, where its content begins and ends in the text, and its role.
    """

    text: str
    spans: tuple[tuple[int, int, str], ...]


def render(chat: Sequence[Mapping[str, Any]], tokenizer: Any) -> Rendered:
    """A whole dialogue (nothing is left open for a reply) in the tokenizer's template.

    Raises:
        BadInput: no template, a message without text or of an unknown role, or a chat that the template refuses.
        NotServed: a template that writes something else depending on what messages say.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise BadInput("a chat", "this tokenizer has no chat template", "give plain text, or set its chat_template")
    for i, message in enumerate(chat):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise BadInput(f"message {i} of a chat", "it has no text", "give {'role': ..., 'content': 'some text'}")
        if message.get("role") not in _AUTHORS:
            role = str(message.get("role"))
            raise BadInput(f"role '{role}' of message {i} of a chat", "it is not known", nearest(role, _AUTHORS))
    text = _template(chat, tokenizer)
    marked = _template([{**m, "content": chr(_PRIVATE + i)} for i, m in enumerate(chat)], tokenizer)
    spans: list[tuple[int, int, str]] = []
    at = before = 0
    for i, message in enumerate(chat):
        mark = marked.find(chr(_PRIVATE + i), before)
        written = marked[before:mark]
        start = text.find(written, at) if mark >= 0 else -1
        if start < 0 or (i == 0 and start):
            raise _unclear(i)
        if spans:
            spans[-1] = (at, start, spans[-1][2])
        at, before = start + len(written), mark + 1
        spans.append((at, len(text), message["role"]))
    rest = marked[before:]
    if not text.endswith(rest) or len(text) - len(rest) < at:
        raise _unclear(len(chat) - 1)
    spans[-1] = (at, len(text) - len(rest), spans[-1][2])
    return Rendered(text, tuple(spans))


def _unclear(message: int) -> NotServed:
    return NotServed(
        f"the role of message {message} of a chat",
        "this template writes other text around it for other messages",
        "give the rendered text as plain text, without roles",
    )


def _template(chat: Sequence[Any], tokenizer: Any) -> str:
    try:
        return str(tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=False))
    except Exception as error:  # a template is a program of the tokenizer's author, and may raise anything
        raise BadInput("a chat", f"the tokenizer's template refused it ({error})", "check its roles") from error
