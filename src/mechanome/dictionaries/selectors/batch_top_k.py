"""BatchTopK: over a batch of B rows the B k largest pre-activations, where positive; at inference, a threshold.

While training, rows compete, so that a row may have more or fewer than k. The smallest chosen value, averaged over
batches, is the threshold by which a row is encoded alone afterwards (Bussmann et al. 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanome.dictionaries.crew import ALONE, Crew
from mechanome.dictionaries.pattern import Pattern
from mechanome.dictionaries.selectors.selector import Exactly, Selector
from mechanome.dictionaries.selectors.top_k import check_k

SAMPLE = 200_000
"""Scores looked at to guess how large the chosen ones are."""


class BatchTopKSelector(Selector):
    """The B k largest of a batch while training; above `threshold []` otherwise.

    Args:
        k: mean number per row.
        width: how many latents there are.
        momentum: weight of each new batch in the running threshold.

    Raises:
        BadInput: k below 1 or above the width.
    """

    threshold: Tensor

    def __init__(self, k: int, width: int, momentum: float = 0.01) -> None:
        super().__init__()
        check_k(k, width)
        self.k, self.momentum = k, momentum
        self.crew = ALONE  # processes whose parts of a batch compete together; a fit sets it
        self.register_buffer("threshold", torch.tensor(-1.0))  # negative: no batch seen, every positive one passes

    def places(self, scores: Tensor, exactly: Exactly) -> tuple[Pattern, Tensor]:
        if not self.training:
            pattern = Pattern.of_mask(scores > self.threshold.clamp_min(0))
            return pattern, exactly(pattern)
        wanted = self.k * int(self.crew.total(torch.tensor(len(scores), device=scores.device)))
        candidates = _candidates(scores, wanted)
        pre = exactly(candidates)
        chosen = largest(pre, wanted, self.crew)
        pattern, pre = candidates.keep(chosen), pre[chosen]
        self._watch(pre)
        return pattern, pre

    @torch.no_grad()
    def _watch(self, chosen: Tensor) -> None:
        positive = torch.cat(self.crew.gather(chosen[chosen > 0]))
        if len(positive):
            least = positive.min()
            seen = self.threshold >= 0
            self.threshold.copy_(torch.where(seen, self.threshold.lerp(least, self.momentum), least))


def largest(values: Tensor, n: int, crew: Crew = ALONE) -> Tensor:
    """A mask of the n largest `[len(values)]`, over all of a crew's processes; of equal ones the first."""
    parts = crew.gather(values)
    everything = torch.cat(parts)
    if len(everything) <= n:
        return torch.ones_like(values, dtype=torch.bool)
    least = torch.topk(everything, n, sorted=False).values.min()
    above, equal = values > least, values == least
    before = sum(int((part == least).sum()) for part in parts[: crew.rank])
    return above | (equal & (equal.cumsum(0) + before <= n - (everything > least).sum()))


def _candidates(scores: Tensor, wanted: int) -> Pattern:
    """Places that include the `wanted` largest scores and few others: those above a floor guessed from a sample.

    Where the guess was too high it is lowered until enough places remain, so the choice among them is exact. Scores
    that are not positive are never needed: their values would be zero.
    """
    flat = scores.flatten()
    stride = max(1, len(flat) // SAMPLE) | 1  # odd, so that it shares no factor with most widths
    sample = flat[::stride].float()
    rank = 1.3 * wanted * len(sample) / len(flat) + 10
    while rank < len(sample):
        floor = float(torch.topk(sample, int(rank), sorted=False).values.min())
        if floor <= 0:
            break
        places = (flat > floor).nonzero().squeeze(1)
        if len(places) >= wanted:
            return Pattern.of_flat(places, *scores.shape)
        rank *= 2
    return Pattern.of_mask(scores > 0)
