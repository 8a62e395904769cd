"""The sink report: over many prompts, does each head follow the convex relation, and what does its sink suppress?

Paper 34 (Cunningham & Muca Cirone 2026). With u and m fixed, ||o||^2 is convex in the sink rate by algebra; the content
of the measurement is that the relation survives m varying from query to query. So a parabola is fitted to ||o|| against
s for each head, over all queries of all prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import BadInput, Interval, Table, TooFewRows, binomial
from mechanome.engine import Model
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.reading import read_attention, stacked
from mechanome.heads.sinks import fit_parabola, looking, split_at_sink

COLUMNS = ("rate", "output", "mean", "cosine", "contribution")


@dataclass(frozen=True)
class SinkReport:
    """Sinks of every head, measured at every query of every prompt.

    Args:
        rate: s, `[layer, head, row]`; a row is a query of a prompt, sinks and query 0 left out.
        output: ||o||. mean: ||m||, the output's length with the sink removed and the rest renormalized.
        cosine: cos(u, m). contribution: the sink's contribution weight. All `[layer, head, row]`; NaN where undefined.
        curvature: 2 c2 of the parabola fitted to ||o|| against s, `[layer, head]`; NaN where s hardly varies.
        layers: of the layer axis. prompts: how many. heavy: the mean rate from which a head counts as sink-heavy.
    """

    rate: Tensor = field(repr=False)
    output: Tensor = field(repr=False)
    mean: Tensor = field(repr=False)
    cosine: Tensor = field(repr=False)
    contribution: Tensor = field(repr=False)
    curvature: Tensor = field(repr=False)
    layers: tuple[int, ...]
    prompts: int
    heavy: float
    axes: tuple[str, ...] = ("layer", "head", "row")

    @property
    def suppression(self) -> Tensor:
        """The suppression index of each head, 1 - ||o|| / ||m|| from mean lengths over rows, `[layer, head]`."""
        return 1 - self.output.mean(-1) / self.mean.mean(-1)

    @property
    def sink_heavy(self) -> Tensor:
        """Which heads give the sink more than `heavy` of their attention on average, bool `[layer, head]`."""
        return self.rate.mean(-1) > self.heavy

    @property
    def convex_share(self) -> Interval:
        """The share of fitted heads whose parabola opens upwards.

        Raises:
            TooFewRows: no head's sink rate varies enough to be fitted.
        """
        fitted = self.curvature[~self.curvature.isnan()]
        if not len(fitted):
            raise TooFewRows("parabolas", "no head's sink rate varies enough", "use more, or longer, prompts")
        return binomial(int((fitted > 0).sum()), len(fitted))

    @property
    def louder_share(self) -> Interval:
        """The share of sink-heavy heads whose output grows when the sink is removed and the rest renormalized.

        Raises:
            TooFewRows: no head is sink-heavy.
        """
        heavy = self.suppression[self.sink_heavy]
        if not len(heavy):
            raise TooFewRows("sink-heavy heads", f"none has a mean sink rate above {self.heavy}", "lower heavy=")
        return binomial(int((heavy > 0).sum()), len(heavy))

    def table(self) -> Table:
        """One row a head: mean sink rate, suppression index, curvature, cos(u, m), the sink's contribution (median)."""
        columns = ("layer", "head", "sink rate", "suppression", "curvature", "cos(u, m)", "sink contribution")
        rate, suppression = self.rate.mean(-1), self.suppression
        cosine, share = self.cosine.nanmean(-1), self.contribution.nanmedian(-1).values
        rows = [
            (layer, head, *(_number(x[i, head]) for x in (rate, suppression, self.curvature, cosine, share)))
            for i, layer in enumerate(self.layers)
            for head in range(rate.shape[1])
        ]
        return Table(columns, rows, f"Sinks over {self.prompts} prompts, {self.rate.shape[-1]} queries")


def sink_report(
    model: Model,
    prompts: Sequence[Inputs],
    sink: int | Sequence[int] = 0,
    *,
    layers: Iterable[int] | None = None,
    heavy: float = 0.5,
    tower: str | None = None,
    budget: Budget = None,
) -> SinkReport:
    """Measure the sinks of every head over prompts, paper 34 (Cunningham & Muca Cirone 2026).

    Args:
        model: an opened model.
        prompts: a list of prompts.
        sink: the sink's position, or several (`[0, -1]` for an encoder with a first and a last special token);
            `mechanome.heads.find_sinks` finds them.
        layers, tower, budget: as in `mechanome.heads.read_attention`.
        heavy: the mean sink rate from which a head counts as sink-heavy.

    Returns:
        a `SinkReport`.

    Raises:
        BadInput: no prompt, or a sink outside one. TooFewRows: a prompt in which every query is a sink.
        NotServed: attention that cannot be read.
    """
    if isinstance(prompts, str) or not len(prompts):
        raise BadInput("the prompts", "they are no list with something in it", "give a list of prompts")
    wanted = None if layers is None else list(layers)
    pieces: list[Tensor] = []
    found: tuple[int, ...] = ()
    for prompt in prompts:
        reading = read_attention(model, prompt, wanted, tower=tower, budget=budget)
        kept = looking(reading.queries, sink, reading.causal, len(reading.tokens))
        found = reading.indices
        parts = []
        for layer in reading.layers:
            split = split_at_sink(layer.pattern[:, kept], layer.values, layer.output_weight, sink)
            lengths = (split.output_squared.sqrt(), split.mean_squared.sqrt())
            parts.append(torch.stack([split.rate, *lengths, split.cosine, split.contribution]).cpu())
        pieces.append(stacked(parts, "a sink report"))
    columns = dict(zip(COLUMNS, torch.cat(pieces, -1).transpose(0, 1)))
    curvature = torch.stack(
        [
            torch.stack([_curvature(s, o) for s, o in zip(rates, outputs)])
            for rates, outputs in zip(columns["rate"], columns["output"])
        ]
    )
    return SinkReport(**columns, curvature=curvature, layers=found, prompts=len(prompts), heavy=heavy)


def _curvature(rate: Tensor, output: Tensor) -> Tensor:
    fit = fit_parabola(rate, output)
    return torch.tensor(float("nan"), dtype=torch.float64) if fit is None else 2 * fit[2]


def _number(value: Tensor) -> float | None:
    return None if bool(value.isnan()) else float(value)
