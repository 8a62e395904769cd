"""Many prompts, from a list or a file: each is checked before any is explained.

A file has one prompt a line: JSON lines with `prompt` (text, or a list of messages) and what else is fixed, or plain
text. A mistake is named with its line, so that nothing runs for an hour and then stops at a typo.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechanome.core import BadInput, UnknownName, nearest
from mechanome.core.files import existing

if TYPE_CHECKING:
    from mechanome.explain.asked import Asked
    from mechanome.tasks import Task


@dataclass(frozen=True)
class Item:
    """One prompt to explain, and what is fixed about it.

    Args:
        id: its name in tables; the position in the list, from 1, where none is given.
        prompt: the text or chat.
        answer, foil, counterfactual: as in `mechanome.explain`; None for an automatic choice.
    """

    id: str
    prompt: Asked
    answer: str | None = None
    foil: str | None = None
    counterfactual: Asked | None = None

    @property
    def text(self) -> str:
        """The prompt as one text; of a chat, its last message."""
        return self.prompt if isinstance(self.prompt, str) else str(self.prompt[-1]["content"])

    def record(self) -> dict[str, Any]:
        """As a line of a file; what is None is left out."""
        values = {name: getattr(self, name) for name in KEYS}
        return {name: value for name, value in values.items() if value is not None}

    def as_chat(self) -> Item:
        """The same with text prompts as a user's message."""
        return Item(self.id, chat(self.prompt), self.answer, self.foil, chat(self.counterfactual))


KEYS = tuple(field.name for field in fields(Item))


def chat(prompt: Any) -> Any:
    """A text as a user's message; a chat, or None, as it is."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def items(prompts: Path | Sequence[Any] | Task) -> tuple[Item, ...]:
    """Check prompts.

    Args:
        prompts: the path of a file, `.jsonl` or plain text with one prompt a line; or a list of texts, chats,
            mappings as the lines of a file have, examples of a task, or `Item`s; or a `Task`.

    Raises:
        BadInput: no prompts, a line that is not as described, an id that comes twice; the message names the place.
        UnknownName: a key that does not exist, with the nearest one that does.
    """
    if isinstance(prompts, Path):
        found = _file(prompts)
    elif isinstance(prompts, str) or not isinstance(prompts, Sequence):
        found = [(f"example {n}", example) for n, example in enumerate(_examples(prompts))]
    else:
        found = [(f"prompt {n}", item) for n, item in enumerate(prompts, 1)]
    if not found:
        raise BadInput(str(prompts), "it holds no prompt", "give one prompt a line")
    made = tuple(_item(place, n, value) for n, (place, value) in enumerate(found, 1))
    places: dict[str, str] = {}
    for (place, _), item in zip(found, made):
        if item.id in places:
            raise BadInput(f"{place}: id {item.id!r}", f"{places[item.id]} has it, too", "give every prompt its own id")
        places[item.id] = place
    return made


def further(prompts: Path | Sequence[Any] | Task) -> tuple[Item, ...]:
    """As `items`, but there may be none: an empty list."""
    return () if isinstance(prompts, Sequence) and not prompts else items(prompts)


def _examples(prompts: Any) -> Sequence[Any]:
    from mechanome.tasks import Task

    if not isinstance(prompts, Task):
        why = f"a {type(prompts).__name__} is no list"
        raise BadInput("prompts", why, "pass a list, a Task, or the Path of a file")
    return prompts.examples


def _file(path: Path) -> list[tuple[str, Any]]:
    reader = _READERS.get(existing(path).suffix)
    if reader is None:
        raise BadInput(str(path), "the ending says neither JSON lines nor text", "name it .jsonl or .txt")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(str(path), f"not UTF-8 ({error})", "save it as UTF-8") from error
    lines = ((f"{path}, line {n}", line.removesuffix("\r")) for n, line in enumerate(text.split("\n"), 1))
    return [(place, reader(place, line)) for place, line in lines if line.strip()]


def _json(place: str, line: str) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(place, f"not JSON ({error})", 'write {"prompt": "..."}') from error
    if not isinstance(value, dict):
        raise BadInput(place, f"a {type(value).__name__}, not an object", 'write {"prompt": "..."}')
    return value


_READERS: Mapping[str, Callable[[str, str], Any]] = {".jsonl": _json, ".txt": lambda _, line: line}


def _item(place: str, number: int, value: Any) -> Item:
    if isinstance(value, Item):
        return value
    if not isinstance(value, Mapping | Sequence):
        value = _fields(value)
    if not isinstance(value, Mapping):
        return Item(str(number), _prompt(place, "prompt", value))
    for key in value:
        if key not in KEYS:
            raise UnknownName(f"{place}: key {key!r}", "there is no such key", nearest(str(key), KEYS))
    if "prompt" not in value:
        raise BadInput(place, "it has no prompt", 'write {"prompt": "..."}')
    for key in ("id", "answer", "foil"):
        if not isinstance(value.get(key, ""), str | None):
            raise BadInput(f"{place}: {key}", f"a {type(value[key]).__name__} is no text", f'write "{key}": "..."')
        _unicode(f"{place}: {key}", value.get(key) or "")
    other = value.get("counterfactual")
    return Item(
        value.get("id") or str(number),
        _prompt(place, "prompt", value["prompt"]),
        value.get("answer"),
        value.get("foil"),
        None if other is None else _prompt(place, "counterfactual", other),
    )


def _fields(value: Any) -> Any:
    """An example of a task as a line of a file would have it; anything else as it is."""
    from mechanome.tasks import Example

    if not isinstance(value, Example):
        return value
    same = {"answer": value.answer, "foil": value.foil, "counterfactual": value.counterfactual}
    return {"prompt": value.inputs, **same}


def _prompt(place: str, key: str, value: Any) -> Asked:
    """A text, or a checked list of messages."""
    if isinstance(value, str):
        return _unicode(f"{place}: {key}", value)
    fix = 'write a text, or [{"role": "user", "content": "..."}]'
    if isinstance(value, Mapping) or not isinstance(value, Sequence) or not value:
        raise BadInput(f"{place}: {key}", f"a {type(value).__name__} is neither a text nor a list of messages", fix)
    for n, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise BadInput(f"{place}: {key}, message {n}", "it needs role and content, and nothing else", fix)
        if not all(isinstance(part, str) for part in message.values()):
            raise BadInput(f"{place}: {key}, message {n}", "role and content must be texts", fix)
        _unicode(f"{place}: {key}, message {n}", "".join(message.values()))
    return [dict(message) for message in value]


def _unicode(place: str, text: str) -> str:
    """The text, which must be one that can be written to a file."""
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise BadInput(place, "it holds half of a character (a lone surrogate)", "write the whole character")
    return text
