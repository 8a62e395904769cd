"""The one place that makes HTML: templates of this package, with every text escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("mechanome.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["visible"] = visible
    return found


def render(template: str, **values: Any) -> Markup:
    """A template filled in; texts are escaped, fragments that were rendered before are not escaped again."""
    return Markup(_environment().get_template(template).render(**values))


def resource(name: str) -> Markup:
    """A style sheet or script of this package, as it is."""
    loader = _environment().loader
    assert loader is not None
    return Markup(loader.get_source(_environment(), name)[0])


def visible(text: str) -> str:
    """A token with its leading space and line breaks made visible."""
    for blank, sign in ((" ", "\u00b7"), ("\n", "\u21b5"), ("\t", "\u21e5"), ("\r", "\u240d")):
        lead = len(text) - len(text.lstrip(blank))
        text = sign * lead + text[lead:] if blank == " " else text.replace(blank, sign)
    return text or "\u2205"


def number(value: float | None, digits: int = 2) -> str:
    """A number with a proper minus, and no sign on zero; nothing for None."""
    if value is None:
        return ""
    rounded = f"{value:.{digits}f}"
    return (rounded.removeprefix("-") if float(rounded) == 0 else rounded).replace("-", "\u2212")


def probability(value: float) -> str:
    """A probability as a percentage; a tiny one is only said to be below 0.1 %."""
    return f"below {share(0.001, 1)}" if value < 0.001 else share(value, 1)


def share(value: float | None, digits: int = 0) -> str:
    """A share of 1 as a percentage; nothing for None."""
    return "" if value is None else f"{number(100 * value, digits)}\u202f%"
