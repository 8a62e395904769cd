"""One prompt in two models: what can be said of both, and why no more where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy.stats import spearmanr

from mechanome.explain.result import Measured, Result


@dataclass(frozen=True)
class Pairing:
    """One prompt in both models.

    Args:
        base: the base model's result.
        tuned: the tuned model's.
    """

    base: Result
    tuned: Result

    @property
    def both(self) -> tuple[Measured, Measured] | None:
        """The numbers of both; None where one has none, or was asked something else."""
        a, b = self.base.measured, self.tuned.measured
        if a is None or b is None or (a.answer, a.foil) != (b.answer, b.foil):
            return None
        return a, b

    @property
    def why_not(self) -> str:
        """Why the two cannot be compared; empty if they can."""
        for name, result in (("first", self.base), ("second", self.tuned)):
            if result.measured is None:
                return f"{name}: {result.reason}"
        return "" if self.both else "the two were asked for other tokens"

    @property
    def comparable(self) -> bool:
        """Whether both have the same layers and heads, so that parts can be compared one by one."""
        return self.both is not None and self.both[0].shape == self.both[1].shape

    @property
    def overlap(self) -> float | None:
        """Parts named by both among those named by either; None where one names none."""
        if self.both is None or not self.comparable:
            return None
        a, b = (set(m.named) for m in self.both)
        return len(a & b) / len(a | b) if a and b else None

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of the effects of all parts measured in both; None where it has no value."""
        if self.both is None or not self.comparable:
            return None
        a, b = self.both
        shared = [site for site in a.effects if site in b.effects]
        one, other = ([m.effects[site] for site in shared] for m in (a, b))
        if len(set(one)) < 2 or len(set(other)) < 2:
            return None
        return float(spearmanr(one, other).statistic)

    @property
    def same_prediction(self) -> bool | None:
        """Whether both say the same; None where one says nothing."""
        a, b = self.base.measured, self.tuned.measured
        return None if a is None or b is None else a.says == b.says

    def record(self) -> dict[str, Any]:
        """As plain data."""
        both = self.both
        return {
            **self.base.item.record(),
            "base": self.base.record(),
            "tuned": self.tuned.record(),
            "preference_change": None if both is None else both[1].high - both[0].high,
            "same_prediction": self.same_prediction,
            "overlap": self.overlap,
            "rank_correlation": self.correlation,
            "why_not": self.why_not,
        }
