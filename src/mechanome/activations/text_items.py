"""What one text is: a string, or a chat of messages; and how it is found in a record of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechanome.core.errors import BadInput, UnknownName, nearest

Message = dict[str, str]
Item = str | list[Message]
"""A text, or a chat of ``{"role", "content"}`` messages."""

TEXT_FIELDS = ("text", "content", "document")
CHAT_FIELDS = ("messages", "conversations", "conversation", "chat")
"""Where texts and chats are looked for if no field is named, in this order."""

# How messages name their author and words: ours, and the one of ShareGPT.
_FORMS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("role", "content", {}),
    ("from", "value", {"human": "user", "gpt": "assistant"}),
)


def item_of(value: Any, place: str) -> Item | None:
    """A string or a chat, checked; None where there is nothing but white space to read.

    Args:
        value: what should be one.
        place: where it stands, for the error.

    Raises:
        BadInput: it is neither, or not Unicode.
    """
    if isinstance(value, str):
        _unicode(value, place)
        return value if value.strip() else None
    if isinstance(value, Sequence) and value and all(isinstance(message, Mapping) for message in value):
        return [_message(message, f"{place}, message {k}") for k, message in enumerate(value)]
    if isinstance(value, Sequence) and not value:
        return None
    why = f"a {type(value).__name__} is neither a text nor a list of messages"
    raise BadInput(place, why, 'give a string, or messages as {"role": "user", "content": "..."}')


def field_of(record: Mapping[str, Any], field: str | None, place: str) -> str:
    """The name of the field that holds the text.

    Args:
        record: one record of a file, or its column names.
        field: what the user named, if anything.
        place: where the record stands.

    Raises:
        UnknownName: there is no such field, or none of the usual names is there.
    """
    if field is not None:
        if field not in record:
            raise UnknownName(f"field {field!r} in {place}", "the record does not have it", nearest(field, record))
        return field
    for name in (*CHAT_FIELDS, *TEXT_FIELDS):
        if name in record:
            return name
    names = ", ".join(map(str, record)) or "nothing"
    why = f"the record has {names}, none of which is one of {', '.join((*TEXT_FIELDS, *CHAT_FIELDS))}"
    raise UnknownName(f"the text in {place}", why, "name its field, as in texts(path, field='body')")


def _message(message: Mapping[str, Any], place: str) -> Message:
    for author, words, roles in _FORMS:
        if author in message and words in message:
            role, content = message[author], message[words]
            if not isinstance(role, str) or not role or not isinstance(content, str):
                raise BadInput(place, f"its {author} or {words} is no text", "give both as strings")
            _unicode(role + content, place)
            return {"role": roles.get(role, role), "content": content}
    raise BadInput(place, f"it has {', '.join(map(str, message)) or 'nothing'}", "give a role and a content")


def _unicode(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(place, f"text that is not Unicode ({error})", "decode with errors='replace'") from error
