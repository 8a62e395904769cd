"""A strict reader of HTML: every element is closed in order, and nothing is loaded from anywhere."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}
LOADS = {"src", "srcset", "poster", "data", "action", "background", "ping"}


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.faults: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.stack.append(tag)
        for name, value in attrs:
            loads = name in LOADS or (name in ("href", "xlink:href") and tag != "a")
            if loads and not (value or "").startswith("data:"):
                self.faults.append(f"<{tag} {name}={value!r}> loads something")
            if name.startswith("on"):
                self.faults.append(f"<{tag} {name}> runs something")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.stack or self.stack.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(html: str) -> _Checker:
    """Read a page or fragment, and fail on what a browser would have to mend or fetch."""
    checker = _Checker()
    checker.feed(html)
    checker.close()
    assert not checker.stack, f"never closed: {checker.stack}"
    assert not checker.faults, checker.faults
    assert "@import" not in html and "url(" not in html
    return checker
