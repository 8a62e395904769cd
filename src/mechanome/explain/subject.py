"""What stays the same whatever a prompt is compared with: the prompt, its answer, a foil that was given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mechanome.core import BadInput
from mechanome.engine import Model
from mechanome.explain.answers import Continuation, fork
from mechanome.explain.choices import all_logits
from mechanome.explain.counterfactual import Swap, difference, log_odds, swaps
from mechanome.explain.prompts import Prompt
from mechanome.explain.tokens import Prediction, percent


@dataclass(frozen=True)
class Subject:
    """What stays the same whatever the prompt is compared with.

    Args:
        prompt: the prompt.
        answer: the whole answer.
        foil: the whole foil, None where each counterfactual brings its own.
    """

    prompt: Prompt
    answer: Continuation
    foil: Continuation | None

    @property
    def shared(self) -> int:
        """Tokens of the answer that a given foil shares."""
        return 0 if self.foil is None else fork(self.answer, self.foil)

    def swaps(self, model: Model) -> list[Swap]:
        """The swaps that cost the answer's token most where it parts from a given foil, best first.

        Raises:
            BadInput: none does.
        """
        n = self.shared
        own, row = self.answer.ids[n], self.prompt.followed_by(model, self.answer.ids[:n])
        score = log_odds(own) if self.foil is None else difference(own, self.foil.ids[n])
        return swaps(model, row, all_logits(model, row), score, self.prompt.content, self.prompt.length - 1)

    def best_swaps(self, model: Model, last: Tensor) -> list[Swap]:
        """As `swaps`; a refusal says what the model would answer, for the answer asked about may be another.

        Args:
            model: an opened language model.
            last: next-token logits after the prompt, `[vocab]`.

        Raises:
            BadInput: no swap costs the answer enough.
        """
        try:
            return self.swaps(model)
        except BadInput as none:
            top = Prediction.of(model, last, 1)
            would = f"the model would answer {top.tokens[0]} ({percent(top.probabilities[0])})"
            raise BadInput(none.what, f"{none.why}; {would}", none.fix) from none
