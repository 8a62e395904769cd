"""What a patched source carries: its value on the other input, nothing, a mean, or its value on a noisy input.

| intervention | a patched source carries |
|---|---|
| `patch` | its value on the corrupted input of the same example |
| `zero` | zero |
| `mean` | its mean over all tokens of the reference inputs |
| `positional-mean` | its mean over the reference inputs at the same position |
| `noise` | its value where the embeddings of the tokens that differ (all, without a corrupted input) are noisy |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.wiring import Wiring
from mechanome.core import BadInput
from mechanome.engine import Batch, Edit, Run
from mechanome.engine.asked import one_of, seed_of
from mechanome.engine.plain import number

KINDS = ("patch", "zero", "mean", "positional-mean", "noise")
ROOTED = ("patch", "noise")
"""Those whose patched values are those of a run of the model."""


@dataclass(frozen=True)
class Intervention:
    """What is put in place of what a source carries.

    Args:
        kind: a row of the table above.
        reference: inputs that means are taken over; None takes the clean inputs that are scored.
        amplitude: of noise, in standard deviations of the embeddings. seed: of its draw.
    """

    kind: str = "patch"
    reference: Any = None
    amplitude: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("intervention", self.kind, KINDS, "there is no such intervention")
        if not 0 < number(self.amplitude, "amplitude") < float("inf"):
            raise BadInput(f"amplitude={self.amplitude}", "noise of no size changes nothing", "give one such as 1.0")
        seed_of(self.seed)

    @classmethod
    def of(cls, given: Any) -> Intervention:
        """What is asked for: a kind, or an intervention with settings.

        Raises:
            BadInput: neither.
        """
        return given if isinstance(given, Intervention) else cls(given)

    @property
    def means(self) -> bool:
        """Whether it takes means over inputs."""
        return self.kind in ("mean", "positional-mean")


def written(wiring: Wiring, run: Run) -> list[Tensor]:
    """What every group of sources wrote in a run that captured it, `[batch, pos, unit, width]` each."""
    with torch.no_grad():
        return [w.cut.values(run.captured[w.site].to(wiring.dtype)) for w in wiring.writes]


@dataclass(frozen=True)
class Means:
    """Mean values of every source, over tokens or by position.

    Args:
        values: per group of sources, `[pos, unit, width]`, one position where they are means over all.
    """

    values: tuple[Tensor, ...]

    @classmethod
    def over(cls, wiring: Wiring, batches: Sequence[Batch], positional: bool) -> Means:
        """Means over the real tokens of some batches, in float64.

        Args:
            wiring: of the model. batches: inputs. positional: by position, counted from the first real token.
        """
        sums: list[Tensor] = []
        count = torch.zeros(1, dtype=torch.float64)
        for batch in batches:
            run = wiring.model.run(batch, wiring.sites, logits=False)
            values = written(wiring, run)
            frame = wiring.model.frames(batch)[wiring.graph.tower].resolved(*values[0].shape[:2])
            width = max(frame.lengths) if positional else 1
            count = _longer(count, width)
            sums = sums or [torch.zeros(1, *v.shape[2:], dtype=torch.float64) for v in values]
            for row, (start, length) in enumerate(zip(frame.starts, frame.lengths)):
                count[: length if positional else 1] += 1 if positional else length
                for i, value in enumerate(values):
                    part = value[row, start : start + length].double().cpu()
                    sums[i] = _longer(sums[i], width)
                    sums[i][: length if positional else 1] += part if positional else part.sum(0, keepdim=True)
        return cls(tuple((s / count[:, None, None].clamp(min=1)).to(wiring.dtype) for s in sums))

    def like(self, wiring: Wiring, batch: Batch, values: Sequence[Tensor]) -> list[Tensor]:
        """The means laid out as values `[batch, pos, unit, width]` of a batch.

        Raises:
            BadInput: a row longer than any of the reference.
        """
        frame = wiring.model.frames(batch)[wiring.graph.tower].resolved(*values[0].shape[:2])
        known = len(self.values[0])
        if 1 < known < max(frame.lengths):
            raise BadInput(
                f"a row of {max(frame.lengths)} tokens", f"means are known for {known} positions", "use kind='mean'"
            )
        found = []
        for mean, value in zip(self.values, values):
            laid = torch.zeros_like(value)
            for row, (start, length) in enumerate(zip(frame.starts, frame.lengths)):
                laid[row, start : start + length] = mean[:length].to(value) if known > 1 else mean.to(value)
            found.append(laid)
        return found


def _longer(x: Tensor, length: int) -> Tensor:
    return x if len(x) >= length else torch.cat([x, x.new_zeros(length - len(x), *x.shape[1:])])


def noisy(wiring: Wiring, intervention: Intervention, batch: Batch, differs: Tensor, rows: Sequence[int]) -> Edit:
    """The edit that adds noise to embeddings.

    Args:
        wiring: of the model.
        intervention: how much.
        batch: the clean inputs.
        differs: which embeddings are noisy, `[batch, pos]`.
        rows: the number of each row among all examples; its noise depends on this and not on its batch.
    """
    site = wiring.writes[0].site
    embedded = wiring.model.run(batch, [site], logits=False).captured[site]
    frame = wiring.model.frames(batch)[wiring.graph.tower].resolved(*embedded.shape[:2])
    noise = torch.zeros_like(embedded)
    for i, row in enumerate(rows):
        start, length = frame.starts[i], frame.lengths[i]
        generator = torch.Generator().manual_seed(intervention.seed * 1_000_003 + row)
        if not bool(differs[i].any()):
            continue
        drawn = torch.randn(length, embedded.shape[-1], generator=generator).to(embedded)
        noise[i, start : start + length] = drawn * embedded[i][differs[i]].std() * intervention.amplitude
    return Edit(site, "set", embedded + noise * differs[..., None].to(embedded))
