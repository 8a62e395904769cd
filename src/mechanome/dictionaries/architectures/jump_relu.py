"""JumpReLU autoencoder: a learned threshold for each latent (Rajamanoharan et al. 2024; Anthropic, January 2025).

Thresholds alone move slowly, about one learning rate a step, and a penalty on them alone may never reach the wished
sparsity. So the default penalty is a smooth count, `tanh(scale z |W_dec|)`, which also pushes small pre-activations
down; thresholds learn faster than the rest; and `l0` may be aimed at directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mechanome.core.errors import BadInput, UnknownName, nearest
from mechanome.dictionaries.architectures.recipe import Recipe
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.selectors import JumpSelector, Selector
from mechanome.dictionaries.trace import Trace


@dataclass(frozen=True)
class JumpReLU(Recipe):
    """A threshold a latent, straight-through near it.

    Args:
        width, dead_after: as :class:`Recipe`.
        sparsity: weight of the penalty; of the squared relative distance where `l0` is given.
        penalty: "tanh" (a smooth count of active latents, whose gradient reaches encoder and thresholds) or "l0" (the
            count, whose straight-through gradient reaches thresholds only).
        l0: mean number of active latents to aim at; None weighs their number itself.
        tanh_scale: steepness of the smooth count.
        threshold: where thresholds start, in units of normalized pre-activations.
        bandwidth: of the straight-through estimate, likewise.
        threshold_rate: learning rate of thresholds, relative to the others.

    Raises:
        UnknownName: another penalty. BadInput: numbers out of range.
    """

    sparsity: float = 1.0
    penalty: str = "tanh"
    l0: float | None = None
    tanh_scale: float = 4.0
    threshold: float = 1.0
    bandwidth: float = 0.5
    threshold_rate: float = 10.0

    architecture: ClassVar[str] = "jumprelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty not in ("tanh", "l0"):
            raise UnknownName(f"penalty {self.penalty!r}", "it does not exist", nearest(self.penalty, ("tanh", "l0")))
        if self.sparsity < 0 or self.tanh_scale <= 0 or self.threshold_rate <= 0:
            why = f"sparsity {self.sparsity}, tanh_scale {self.tanh_scale}, threshold_rate {self.threshold_rate}"
            raise BadInput("JumpReLU", why, "give positive numbers")
        if self.l0 is not None and not 0 < self.l0 <= self.width:
            raise BadInput(
                f"l0 = {self.l0}", f"there are {self.width} latents", "aim at more than 0, at most the width"
            )
        self.try_parts()

    def selector(self) -> Selector:
        return JumpSelector(self.width, self.threshold, self.bandwidth)

    def penalties(self, trace: Trace) -> dict[str, Tensor]:
        selector, codes = trace.model.selector, trace.codes
        assert isinstance(selector, JumpSelector)
        if self.penalty == "tanh":
            norms = trace.model.decoder.norms().detach()[codes.indices]
            count = trace.mean((self.tanh_scale * codes.values * norms).tanh().sum())
        else:
            count = trace.mean(selector.active(trace.pre, codes.pattern).sum())
        excess = count if self.l0 is None else (count / self.l0 - 1).square()
        return {"sparsity": self.sparsity * excess}

    def rates(self, model: SparseAutoencoder) -> dict[str, float]:
        return {"selector.threshold": self.threshold_rate}
