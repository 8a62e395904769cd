"""Templates that remember where they put each word: `write("The capital of {place} is", place="France")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter


@dataclass(frozen=True)
class Text:
    """A text with labelled character ranges `name -> (start, end)`."""

    text: str
    spans: Mapping[str, tuple[int, int]]

    def behind(self, head: str) -> Text:
        """The same text behind another one."""
        moved = {name: (lo + len(head), hi + len(head)) for name, (lo, hi) in self.spans.items()}
        return Text(head + self.text, moved)


def write(template: str, **words: str) -> Text:
    """Fill a template's `{fields}`; each becomes a span of its name, but for names that start with an underscore."""
    text, spans = "", {}
    for literal, name, _, _ in Formatter().parse(template):
        text += literal
        if name is None:
            continue
        start = len(text)
        text += words[name]
        if not name.startswith("_"):
            spans[name] = (start, len(text))
    return Text(text, spans)
