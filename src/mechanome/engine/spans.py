"""Labelled spans: names for some tokens of each prompt, given as text, as characters or as token positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechanome.core.errors import BadInput, UnknownName
from mechanome.engine.frame import is_reserved
from mechanome.engine.plain import integers, whole

Spans = Sequence[Mapping[str, Any]]
"""Per row, what each label stands for: a substring, a character range `(start, end)` or a list of token positions."""

_FORMS = "give a substring, a (start, end) character range, or a list of token positions"


def labelled(
    spans: Spans, lengths: Sequence[int | None], offsets: Sequence[Any], texts: Sequence[str]
) -> tuple[dict[str, list[int]], ...]:
    """Spans as token positions; none for no spans.

    Args:
        spans: as the caller gave them.
        lengths: tokens per row, None where only the model knows.
        offsets: per row, the character range of each token, or None for rows that did not come from text.
        texts: per row, its text.

    Raises:
        BadInput: not one mapping per row, a label that already means something, a span without a token.
        UnknownName: a substring that is not in the prompt.
    """
    if spans is None:
        return ()
    if not isinstance(spans, Sequence) or isinstance(spans, str) or not all(isinstance(s, Mapping) for s in spans):
        raise BadInput(f"spans {spans!r}", "they are one mapping per prompt, in a list", "use spans=[{'label': ...}]")
    if not spans:
        return ()
    if len(spans) != len(lengths):
        raise BadInput(
            f"spans for {len(spans)} rows", f"there are {len(lengths)} prompts", "give one mapping per prompt"
        )
    return tuple(
        {
            _label(name): _span(f"span '{name}' of row {i}", where, lengths[i], offsets[i], texts[i])
            for name, where in labels.items()
        }
        for i, labels in enumerate(spans)
    )


def _label(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise BadInput(f"span label {name!r}", "a label is a name", "use text such as 'subject'")
    if is_reserved(name):
        raise BadInput(f"span label '{name}'", "it already means positions", "choose another label")
    return name


def _span(what: str, where: Any, length: int | None, offset: Any, text: str) -> list[int]:
    if not isinstance(where, (str, tuple)):
        return _positions(what, where, length)
    if offset is None:
        raise BadInput(what, "only text has characters", "give token positions as a list")
    lo, hi = _found(what, where, text) if isinstance(where, str) else _range(what, where, text)
    tokens = [i for i, (a, b) in enumerate(offset) if a < hi and b > lo and b > a]
    if not tokens:
        raise BadInput(what, f"characters {lo} to {hi} are in no token", "name a longer range")
    return tokens


def _positions(what: str, where: Any, length: int | None) -> list[int]:
    if where is None or whole(where) is not None:
        raise BadInput(what, f"{where!r} is not a span", _FORMS)
    found = list(integers(where, what, _FORMS))
    if not found:
        raise BadInput(what, "it has no position", _FORMS)
    if length is not None and (wrong := [p for p in found if not -length <= p < length]):
        raise BadInput(what, f"position {wrong[0]} is not in a row of {length} tokens", f"use 0 to {length - 1}")
    return found


def _found(what: str, where: str, text: str) -> tuple[int, int]:
    if not where:
        raise BadInput(what, "its text is empty", _FORMS)
    start = text.find(where)
    if start < 0:
        raise UnknownName(what, f"{where!r} is not in the prompt", "check the spelling")
    if text.find(where, start + 1) >= 0:
        raise BadInput(what, f"{where!r} occurs more than once", "give a (start, end) character range")
    return start, start + len(where)


def _range(what: str, where: tuple[Any, ...], text: str) -> tuple[int, int]:
    ends = [whole(p) for p in where]
    if len(ends) == 2:
        lo, hi = ends
        if lo is not None and hi is not None and 0 <= lo < hi <= len(text):
            return lo, hi
    raise BadInput(
        what, f"{where!r} is not a range of its {len(text)} characters", "give (start, end) with 0 <= start < end"
    )
