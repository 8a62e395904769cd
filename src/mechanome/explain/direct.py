"""What writes the answer directly: what each part adds to the preference by way of the residual stream alone.

`attribution.direct_logit_attribution` splits the preference of prompt and of counterfactual over all parts, exactly for
the last norm as it is. It shows a direct effect only: a part that other parts read from may decide everything and write
nothing. So each is shown beside its exact effect, which counts every route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mechanome.attribution import direct_logit_attribution
from mechanome.core import Table
from mechanome.engine import Model
from mechanome.explain.components import every_site
from mechanome.explain.effects import Grid
from mechanome.explain.question import Question

_NAMES = {"z": "head", "mlp_out": "MLP", "mixer_out": "mixer", "attn_out": "attention", "bias": "attention bias"}


@dataclass(frozen=True)
class Writer:
    """One part.

    Args:
        part: as `direct_logit_attribution` names it: a site, "embedding", "bias.3" or "constant".
        prompt: what it adds to the preference in the prompt, in logits.
        counterfactual: likewise in the counterfactual.
        restores: its exact effect by every route: the share of the gap that its value from the prompt brings back; None
            where that was not measured.
    """

    part: str
    prompt: float
    counterfactual: float
    restores: float | None

    @property
    def change(self) -> float:
        """What it adds to the gap between prompt and counterfactual, in logits."""
        return self.prompt - self.counterfactual

    @property
    def name(self) -> str:
        """In words: `head 23.4`, `MLP 7`."""
        point, _, place = self.part.partition(".")
        return f"{_NAMES[point]} {place.replace('.h', '.')}" if point in _NAMES else self.part


@dataclass(frozen=True)
class Direct:
    """All parts, by the size of what they add to the gap.

    Args:
        writers: the parts, largest first.
        total: the preference in the prompt and in the counterfactual, in logits before a soft-cap.
        error: how far the sums over all parts are from it at most.
        notes: what was not split, and why.
    """

    writers: tuple[Writer, ...] = field(repr=False)
    total: tuple[float, float]
    error: float
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """Between prompt and counterfactual, in logits."""
        return self.total[0] - self.total[1]

    def table(self) -> Table:
        """One row a part, all of them, and their sum."""
        rows = [(w.name, w.prompt, w.counterfactual, w.change / self.gap, w.restores) for w in self.writers]
        sums = [sum(w.prompt for w in self.writers), sum(w.counterfactual for w in self.writers)]
        columns = ("part", "prompt (logits)", "counterfactual (logits)", "direct share of the gap", "exact effect")
        return Table(columns, [*rows, ("sum", *sums, (sums[0] - sums[1]) / self.gap, None)])

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "writers": [vars(w) for w in self.writers],
            "total": {"prompt": self.total[0], "counterfactual": self.total[1]},
            "sum_error": self.error,
            "notes": list(self.notes),
        }


def direct(model: Model, question: Question, grids: Sequence[Grid]) -> Direct:
    """Split the preference over all parts, in both prompts.

    Args:
        model: an opened language model.
        question: the contrast.
        grids: the exact effects, one grid a kind of part.

    Raises:
        NotServed: a stream that is not a sum of parts, or logits that are not the unembedding of the last norm.
    """
    both = torch.cat([question.clean.input_ids, question.corrupted.input_ids])
    found = direct_logit_attribution(model, both, question.answer.id, question.foil.id)
    shares = [float(x) for grid in grids for x in grid.shares.flatten()]
    exact = {str(site): x for site, x in zip(every_site(grids), shares) if x == x}
    writers = [
        Writer(part, float(found.shares[0, i]), float(found.shares[1, i]), exact.get(part))
        for i, part in enumerate(found.parts)
    ]
    ordered = tuple(sorted(writers, key=lambda w: -abs(w.change)))
    error = float((found.shares.sum(1) - found.total).abs().max())
    high, low = found.total.tolist()
    return Direct(ordered, (high, low), error, found.notes)
