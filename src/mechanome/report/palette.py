"""The colors of every page, in light and in dark, once: for the style sheet, and for charts, which cannot read it."""

from __future__ import annotations

from collections.abc import Iterator

COLORS: dict[str, tuple[str, str]] = {
    "paper": ("#fcfbf8", "#141518"),
    "card": ("#ffffff", "#1b1d21"),
    "ink": ("#1c1d20", "#e9e8e4"),
    "soft": ("#63656b", "#a3a5ab"),
    "faint": ("#e7e5df", "#2a2c31"),
    "line": ("#d9d6ce", "#3a3d44"),
    "for": ("#0c746e", "#40beb4"),
    "against": ("#c45416", "#f08c4a"),
    "answer": ("#0b6b66", "#5fd0c6"),
    "foil": ("#b04a10", "#f2a067"),
    "good": ("#0b6b65", "#5fd0c5"),
    "bad": ("#a03b12", "#f2a068"),
    "good-back": ("#e6f3f1", "#16302e"),
    "bad-back": ("#fbeee5", "#38241a"),
}
"""Role to its colors in the light and in the dark scheme. No two roles share a light color, so a chart made in light
colors turns dark by exchanging them."""

LIGHT: dict[str, str] = {role: light for role, (light, _) in COLORS.items()}
"""What figures are made of."""
DARK: dict[str, str] = dict(COLORS.values())
"""Light color to dark color."""


def variables() -> str:
    """The colors as CSS, `--role`, and `--role-rgb` for use with an opacity; dark where the reader's system is."""
    light, dark = ("\n".join(f"  {line}" for line in _declared(scheme)) for scheme in (0, 1))
    return f":root {{\n{light}\n}}\n@media (prefers-color-scheme: dark) {{ :root {{\n{dark}\n}} }}"


def _declared(scheme: int) -> Iterator[str]:
    for role, colors in COLORS.items():
        color = colors[scheme]
        channels = " ".join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))
        yield f"--{role}: {color}; --{role}-rgb: {channels};"
