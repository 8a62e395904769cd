"""The main job: one behavior, explained from prediction to verified mechanism."""

import inspect
from typing import TYPE_CHECKING, Any

from mechanome.lazy import Package, offer

if TYPE_CHECKING:
    from mechanome.explain.circuit import PromptCircuit
    from mechanome.explain.comparison import Average, Change, ModelComparison, compare
    from mechanome.explain.components import Component
    from mechanome.explain.effects import Grid
    from mechanome.explain.explanation import Explanation, Origin
    from mechanome.explain.items import Item
    from mechanome.explain.many import Explanations, Recurring, explain_many
    from mechanome.explain.pairing import Pairing
    from mechanome.explain.pipeline import DEFAULT_MODEL, explain
    from mechanome.explain.question import Question
    from mechanome.explain.result import Measured, Result
    from mechanome.explain.stability import Comparison, Stability
    from mechanome.explain.verification import Trial, Verification

__all__ = [
    "DEFAULT_MODEL",
    "Average",
    "Change",
    "Comparison",
    "Component",
    "Explanation",
    "Explanations",
    "Grid",
    "Item",
    "Measured",
    "ModelComparison",
    "Origin",
    "Pairing",
    "PromptCircuit",
    "Question",
    "Recurring",
    "Result",
    "Stability",
    "Trial",
    "Verification",
    "compare",
    "explain",
    "explain_many",
]


class _Package(Package):
    """A package that is its function, so that `mn.explain(prompt)` and `mechanome.explain.Explanation` both work."""

    def __call__(self, *args: Any, **options: Any) -> "Explanation":
        found: Explanation = self.explain(*args, **options)
        return found

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.explain)


offer(__name__, _Package)
