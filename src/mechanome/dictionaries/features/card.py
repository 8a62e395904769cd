"""The card of one latent, and the contexts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """One context of a latent.

    Args:
        drawn: drawn evenly from all rows on which the latent fires; else one of the strongest.
        value: the activation at the peak. quantile: share of the latent's firing rows that are weaker, an estimate.
        seq, pos: where it is.
        tokens: the context. values: the latent's activation on each. at: the peak among them.
    """

    drawn: bool
    value: float
    quantile: float
    seq: int
    pos: int
    tokens: tuple[str, ...]
    values: tuple[float, ...]
    at: int

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "tokens": list(self.tokens), "values": list(self.values)}


@dataclass(frozen=True)
class FeatureCard:
    """One latent.

    Args:
        latent: which. rows: seen. fired: rows on which it was above 0; 0 for a dead latent.
        maximum: its largest activation, 0 for a dead latent.
        examples: the strongest first, then those drawn.
        promoted, suppressed: tokens and effects by way of the stream alone, strongest first; empty where unknown.
        similar: other latents and the cosine of their atoms, nearest first.
    """

    latent: int
    rows: int
    fired: int
    maximum: float
    examples: tuple[Example, ...] = field(repr=False)
    promoted: tuple[tuple[str, float], ...] = field(repr=False)
    suppressed: tuple[tuple[str, float], ...] = field(repr=False)
    similar: tuple[tuple[int, float], ...] = field(repr=False)

    @property
    def dead(self) -> bool:
        """Whether it fired on no row."""
        return self.fired == 0

    @property
    def density(self) -> float:
        """Share of rows on which it fires."""
        return self.fired / self.rows

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "latent": self.latent, "dead": self.dead, "rows": self.rows, "fired": self.fired, "density": self.density,
            "maximum": self.maximum, "examples": [e.record() for e in self.examples],
            "promoted": [list(pair) for pair in self.promoted],
            "suppressed": [list(pair) for pair in self.suppressed],
            "similar": [list(pair) for pair in self.similar],
        }  # fmt: skip
