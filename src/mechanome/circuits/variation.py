"""How much a component's effect varies from input to input, and how many inputs its mean needs.

Of exact effects this is the variance that no faster or better method can remove (paper 40, section 3.4): the
coefficient of variation CV = sd / |mean|, its inverse SNR, the share of inputs that agree with the sign of the mean.
Where the mean could as well be 0, its CV is large by division alone; such components are marked and not left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from scipy.special import ndtri
from torch import Tensor

from mechanome.circuits.effects import Components, Effects
from mechanome.circuits.score_matrix import Scores
from mechanome.core import BadInput, Table, TooFewRows
from mechanome.engine.asked import count, seeded_generator


@dataclass(frozen=True, eq=False)
class Variation:
    """Of every component, over inputs.

    Args:
        components: what the columns are.
        n: inputs.
        mean, sd: of the effect, `[component]` float64, in units of the metric; sd with n - 1.
        agree: share of inputs whose effect has the sign of the mean, `[component]`.
    """

    components: Components
    n: int
    mean: Tensor = field(repr=False)
    sd: Tensor = field(repr=False)
    agree: Tensor = field(repr=False)

    @property
    def cv(self) -> Tensor:
        """sd / |mean|, `[component]`; infinite where the mean is 0, NaN where the effect is 0 on every input."""
        return self.sd / self.mean.abs()

    @property
    def snr(self) -> Tensor:
        """|mean| / sd, `[component]`."""
        return self.mean.abs() / self.sd

    @property
    def unsettled(self) -> Tensor:
        """Whether |mean| is below two standard errors, so that its sign is not known, `[component]` of booleans."""
        return self.mean.abs() < 2 * self.sd / math.sqrt(self.n)

    def top(self, k: int) -> Tensor:
        """The k components with the largest |mean|, largest first.

        Raises:
            BadInput: more than there are.
        """
        if count("k", k) > len(self.mean):
            raise BadInput(f"the top {k}", f"there are {len(self.mean)} components", "ask for fewer")
        return self.mean.abs().argsort(descending=True, stable=True)[:k]

    def median_cv(self, k: int) -> float:
        """The median CV of the k components with the largest |mean|."""
        return float(self.cv[self.top(k)].quantile(0.5))

    def required_n(self, eps: float = 0.1, level: float = 0.95) -> Tensor:
        """Inputs that each mean needs for a relative error of `eps`; see `required_n`."""
        return required_n(self.cv, eps, level)

    def table(self, k: int | None = 20, eps: float = 0.1) -> Table:
        """The components with the largest |mean|: mean, sd, CV, sign consistency, inputs needed."""
        chosen = self.top(len(self.mean) if k is None else min(k, len(self.mean)))
        needed = self.required_n(eps)
        rows = [
            (
                self.components.name(i),
                *(float(x[i]) for x in (self.mean, self.sd, self.cv, self.agree)),
                int(needed[i]) if math.isfinite(needed[i]) else None,
                "sign not settled" if self.unsettled[i] else "",
            )
            for i in chosen.tolist()
        ]
        columns = ["component", "mean", "sd", "CV", "inputs with its sign", f"inputs for {eps:.0%}", "remark"]
        return Table(columns, rows, f"Effects over {self.n} inputs")

    def record(self, k: int = 20) -> dict[str, Any]:
        """As plain data: the median of the top k, and how many components are unsettled."""
        k = min(k, len(self.mean))
        top = self.top(k)
        return {
            "inputs": self.n,
            "top": k,
            "median_cv": self.median_cv(k),
            "median_sign_agreement": float(self.agree[top].quantile(0.5)),
            "unsettled": int(self.unsettled.sum()),
            "components": len(self.mean),
        }


def variation(scores: Scores | Tensor | Effects) -> Variation:
    """Mean, spread and sign of every component's effect over inputs.

    Args:
        scores: per input, as `bootstrap_circuits` takes them.

    Raises:
        TooFewRows: a single input.
    """
    effects = Effects.of(scores)
    if effects.inputs < 2:
        raise TooFewRows("the variation of effects", "one input shows none", "score at least two")
    x = effects.values.double()
    mean = x.mean(0)
    return Variation(effects.components, len(x), mean, x.std(0), (x.sign() == mean.sign()).double().mean(0))


@dataclass(frozen=True)
class SplitHalf:
    """CV of top components where the same inputs choose and judge, and where other inputs judge.

    Args:
        size: components that are chosen.
        same: median CV on the half that chose them, mean over splits.
        other: on the other half.
        splits: how many random splits.
    """

    size: int
    same: float
    other: float
    splits: int

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {"size": self.size, "same_half": self.same, "other_half": self.other, "splits": self.splits}


def split_half(scores: Scores | Tensor | Effects, size: int, splits: int = 100, seed: int = 0) -> SplitHalf:
    """Does choosing the largest means flatter their CV? Choose on one half of the inputs, judge on the other.

    Args:
        scores: per input. size: components chosen. splits: random halves. seed: of the halves.

    Raises:
        TooFewRows: fewer than four inputs. BadInput: more components than there are.
    """
    effects = Effects.of(scores)
    if effects.inputs < 4:
        raise TooFewRows("halves", f"{effects.inputs} inputs leave no two in each", "score at least four")
    generator = seeded_generator(seed)
    same, other = [], []
    for _ in range(count("splits", splits)):
        order = torch.randperm(effects.inputs, generator=generator)
        one, two = (
            variation(Effects(effects.values[half], effects.components))
            for half in (order[: effects.inputs // 2], order[effects.inputs // 2 :])
        )
        chosen = one.top(size)
        same.append(float(one.cv[chosen].quantile(0.5)))
        other.append(float(two.cv[chosen].quantile(0.5)))
    return SplitHalf(size, sum(same) / splits, sum(other) / splits, splits)


@overload
def required_n(cv: float, eps: float = ..., level: float = ...) -> float: ...
@overload
def required_n(cv: Tensor, eps: float = ..., level: float = ...) -> Tensor: ...
def required_n(cv: float | Tensor, eps: float = 0.1, level: float = 0.95) -> float | Tensor:
    """Inputs after which a mean is known to a relative error: (z CV / eps)^2, rounded up (paper 40, section 3.4).

    Args:
        cv: coefficient of variation, a number or a tensor; an infinite one needs infinitely many.
        eps: relative error, such as 0.1.
        level: of the normal interval.

    Returns:
        of the same kind; at least 1.

    Raises:
        BadInput: a CV below 0, an error that is not positive, a level outside 0 to 1.
    """
    if not (eps > 0 and 0 < level < 1):
        raise BadInput(f"eps={eps}, level={level}", "they are no relative error and no level", "use 0.1 and 0.95")
    given = torch.as_tensor(cv, dtype=torch.float64)
    if bool((given < 0).any()):
        raise BadInput("cv", "it is below 0", "give sd / |mean|")
    found = (float(ndtri((1 + level) / 2)) * given / eps).square().ceil().clamp(min=1)
    return found if isinstance(cv, Tensor) else float(found)
