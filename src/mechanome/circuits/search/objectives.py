"""Objectives: how far a circuit is from the model, as a number per example that a search keeps low.

| objective | per example |
|---|---|
| `kl` | `KL(model // circuit)` over the vocabulary at the answer position, nats (Conmy et al. 2023) |
| `deviation` | how far the metric is from the model's, in units of the metric |
| `metric` | minus the metric: a circuit may do better than the model, and is not held back |

Any function of `Said` that is differentiable serves as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from mechanome.core import BadInput
from mechanome.engine.asked import one_of


@dataclass(frozen=True, eq=False)
class Said:
    """What circuits said on some examples, beside what the model said.

    Args:
        logits: of the circuits at the answer position, `[circuit, example, vocab]`.
        values: their metric, `[circuit, example]`.
        own_logits, own_values: of the model, `[example, vocab]` and `[example]`.
        rows: numbers of the examples.
    """

    logits: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    own_logits: Tensor = field(repr=False)
    own_values: Tensor = field(repr=False)
    rows: tuple[int, ...]

    @property
    def divergence(self) -> Tensor:
        """`KL(model || circuit)` in nats, `[circuit, example]` float64."""
        own, says = (x.double().log_softmax(-1) for x in (self.own_logits, self.logits))
        return (own.exp() * (own - says)).sum(-1)

    @property
    def deviation(self) -> Tensor:
        """Distance of the metric from the model's, `[circuit, example]` float64."""
        return (self.values - self.own_values.to(self.values)).double().abs()


Objective = Callable[[Said], Tensor]
"""From what circuits said to what is kept low, `[circuit, example]`."""

OBJECTIVES: dict[str, Objective] = {
    "kl": lambda said: said.divergence,
    "deviation": lambda said: said.deviation,
    "metric": lambda said: -said.values.double(),
}


def objective_of(given: str | Objective) -> tuple[str, Objective]:
    """An objective and its name.

    Raises:
        BadInput: a name that does not exist, or neither a name nor a function.
    """
    if isinstance(given, str):
        return given, OBJECTIVES[one_of("objective", given, OBJECTIVES, "there is no such objective")]
    if not callable(given):
        fix = f"give one of {', '.join(OBJECTIVES)}, or a function of Said"
        raise BadInput(f"objective={given!r}", "it is no name and no function", fix)
    return getattr(given, "__name__", "a function"), given
