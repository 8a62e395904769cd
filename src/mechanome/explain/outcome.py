"""What a verb of `mechanome explain` leaves behind, and the exit code that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Left
from mechanome.explain.comparison import ModelComparison
from mechanome.explain.explanation import Explanation
from mechanome.explain.many import Explanations

Found = Explanation | Explanations | ModelComparison

RESULTS: dict[type, str] = {
    Explanation: "explanation.json",
    Explanations: "explanations.json",
    ModelComparison: "comparison.json",
}
"""The file that holds the record of each kind of result."""


@dataclass(frozen=True)
class Outcome(Left[Found]):
    """What a verb leaves behind."""

    @property
    def file(self) -> str:
        """Name of the file in the folder that holds the record."""
        return RESULTS[type(self.found)]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Of every prompt, in every model."""
        match self.found:
            case Explanation():
                return (self.found.verdict,)
            case Explanations():
                return tuple(result.verdict for result in self.found)
            case ModelComparison():
                return tuple(result.verdict for model in (self.found.base, self.found.tuned) for result in model)

    def code(self, strict: bool = False) -> int:
        """The exit code: 2 where everything was refused, 1 where something failed, else 0.

        Args:
            strict: 1 also where anything is not explained.
        """
        said = set(self.verdicts)
        if said == {"refused"}:
            return 2
        return int("failed" in said or (strict and said != {"explained"}))
