"""Long documents cut into passages that can be read alone, in an order that mixes all documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256

LONGEST = 4000
"""Characters in a passage (about 900 tokens of English)."""


def passages(document: str, longest: int = LONGEST) -> Iterator[str]:
    """The document in pieces of at most ``longest`` characters.

    A piece ends with a paragraph where it can, else with a sentence, else with a word, and only a single word that is
    longer than a whole piece is broken.
    """
    kept = ""
    for piece in _pieces(document, longest, (r"\n\s*\n", r"(?<=[.!?;:])\s+", r"\s+")):
        if kept.strip() and len(kept) + len(piece) > longest:
            yield kept.strip()
            kept = ""
        elif not kept.strip():
            kept = ""  # white space must not make a passage longer
        kept += piece
    if kept.strip():
        yield kept.strip()


def mixed(texts: Iterable[str]) -> list[str]:
    """Texts in the order of their SHA-256, without repeats: any first part is a fair sample of the whole."""
    return sorted(set(texts), key=lambda text: sha256(text.encode()).digest())


def _pieces(text: str, longest: int, borders: tuple[str, ...]) -> Iterator[str]:
    """The text as parts that joined give it back, each short enough; coarse borders are tried before fine ones."""
    if len(text) <= longest:
        yield text
    elif not borders:
        yield from (text[start : start + longest] for start in range(0, len(text), longest))
    else:
        start = 0
        for border in [*re.finditer(borders[0], text), None]:
            end = len(text) if border is None else border.end()
            yield from _pieces(text[start:end], longest, borders[1:])
            start = end
