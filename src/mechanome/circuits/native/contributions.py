"""Subspace Contribution Analysis: what each unit of the MLPs adds to a prediction, at one position.

Paper 05 (NaNA, Xue & Andrzejak 2026). Unit i of a layer writes `o_i = values_i a_i q_i`. Three answers to how much of a
logit difference D is due to it:

| mode | what | kind |
|---|---|---|
| `direct` | `o_i . reader`: by way of the stream alone, the last norm's scale held | exact |
| `gradient` | `a_i . dD/da_i`: through everything after, to first order | estimate, one backward pass for all units |
| `ablation` | `D(model) - D(model without o_i)`, everything after computed again | exact, one short pass a unit |

Direct contributions of a layer, with its output bias, sum to its MLP's direct logit attribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mechanome.circuits.native.removal import removed
from mechanome.circuits.native.units import MLPUnits, Unit
from mechanome.core import BadInput, NotServed, Table, TooFewRows
from mechanome.engine import Batch, Logit, LogitDiff, Site
from mechanome.engine.asked import count, one_of
from mechanome.engine.inputs import Inputs
from mechanome.engine.metrics import Metric, check_metric
from mechanome.engine.operations import take_positions

MODES = ("direct", "gradient", "ablation")


@dataclass(frozen=True, eq=False)
class UnitContributions:
    """What units add to a metric.

    Args:
        values: `[row, unit]`, float64, in units of the metric.
        each: layer and index along the unit axis, `[unit, 2]`.
        bias: what the output biases of `layers` add, `[row, layer]`; direct mode only, else empty.
        layers: along the layer axis.
        metric: the model's own value, `[row]`.
        mode: a row of `MODES`.
        pos: the position that units are read at, and the metric too.
    """

    values: Tensor = field(repr=False)
    each: Tensor = field(repr=False)
    bias: Tensor = field(repr=False)
    layers: tuple[int, ...]
    metric: Tensor = field(repr=False)
    mode: str
    pos: int | str

    def by_layer(self) -> Tensor:
        """Units and bias of each layer summed, `[row, layer]`: in direct mode the direct attribution of its MLP."""
        sums = torch.stack([self.values[:, self.each[:, 0] == layer].sum(1) for layer in self.layers], 1)
        return sums if self.bias.numel() == 0 else sums + self.bias

    def centred(self) -> UnitContributions:
        """Each unit's contributions minus their mean over rows: what is particular to a prompt.

        Raises:
            TooFewRows: a single row.
        """
        if len(self.values) < 2:
            raise TooFewRows("centred contributions", "there is one row", "give several prompts")
        return replace(self, values=self.values - self.values.mean(0), bias=self.bias - self.bias.mean(0))

    @property
    def mean(self) -> Tensor:
        """Over rows, `[unit]`."""
        return self.values.mean(0)

    @property
    def size(self) -> Tensor:
        """Mean absolute value over rows, `[unit]`."""
        return self.values.abs().mean(0)

    @property
    def consistency(self) -> Tensor:
        """Share of rows on which a unit has the sign of its mean, `[unit]`."""
        return (self.values.sign() == self.mean.sign()).double().mean(0)

    def top(self, k: int, by: Tensor | None = None) -> list[Unit]:
        """The `k` units with the largest mean, or the largest of other numbers `[unit]` such as `size`.

        Raises:
            BadInput: k below 1, or numbers that are not one a unit.
        """
        count("k", k)
        score = self.mean if by is None else by
        if score.shape != self.mean.shape:
            raise BadInput(f"numbers of shape {list(score.shape)}", "there is not one a unit", "use .size or .mean")
        index = score.topk(min(k, len(score))).indices
        return [(int(layer), int(unit)) for layer, unit in self.each[index].tolist()]

    def covered(self, sizes: Sequence[int]) -> Tensor:
        """Share of the total size |SCA| that the `k` largest units of each row hold, `[row, size]`."""
        sizes = [count("a size", k) for k in sizes]
        each = self.values.abs().sort(1, descending=True).values.cumsum(1)
        index = torch.tensor([min(k, each.shape[1]) - 1 for k in sizes])
        return each[:, index] / each[:, -1:].clamp(min=torch.finfo(each.dtype).tiny)

    def table(self, k: int = 12) -> Table:
        """The units of largest mean absolute value."""
        consistency, rows = self.consistency, []
        for i in self.size.topk(min(k, len(self.size))).indices.tolist():
            layer, unit = self.each[i].tolist()
            rows.append((layer, unit, float(self.mean[i]), float(self.size[i]), float(consistency[i])))
        title = f"Units by contribution ({self.mode}), {len(self.values)} prompts, of {float(self.metric.mean()):.3g}"
        return Table(("layer", "unit", "mean", "mean size", "same sign"), rows, title)

    def _repr_html_(self) -> str:
        return self.table().html()


def sca(
    units: MLPUnits,
    inputs: Inputs,
    metric: Metric,
    *,
    mode: str = "direct",
    pos: int | str = "last",
    chosen: Iterable[Unit] | None = None,
    quiet: bool = False,
) -> UnitContributions:
    """What each unit adds to a metric at one position. Paper 05 (NaNA, Xue & Andrzejak 2026).

    Args:
        units: of the write side.
        inputs: prompts, or a task.
        metric: such as `LogitDiff(answer, foil)`, or the metric of `task.batch(model)`. Direct mode needs one that is
            linear in the logits (`LogitDiff`, `Logit`).
        mode: a row of `MODES`.
        pos: where units are read and removed, and where the metric reads logits.
        chosen: (layer, index) of the units that are measured; None for all, which ablation mode makes slow.
        quiet: no progress line.

    Returns:
        `UnitContributions`.

    Raises:
        BadInput, UnknownName: no such mode or unit, several positions, a metric that fits not the batch.
        NotServed: units of the read side; in direct mode a stream with norms behind its parts, capped logits, or a
            metric that is not linear in the logits.
    """
    one_of("mode", mode, MODES)
    if units.side != "write":
        raise NotServed(f"contributions of {units.side} units", "they do not write to the stream", "use side='write'")
    batch = units.model.encode(inputs)
    check_metric(metric, batch.rows)
    wanted = None if chosen is None else units.chosen(chosen)
    if mode == "ablation":
        where = units.each.tolist() if wanted is None else [(at, u) for at, each in wanted.items() for u in each]
        base, values = removed(units, batch, metric, where, pos, quiet)
        return UnitContributions(values, torch.tensor(where), torch.zeros(batch.rows, 0), units.layers, base, mode, pos)
    values, bias, base = (_direct if mode == "direct" else _gradient)(units, batch, metric, pos)
    whole = UnitContributions(values, units.each, bias, units.layers, base, mode, pos)
    if wanted is None:
        return whole
    kept = torch.tensor([int(u) in wanted.get(int(layer), ()) for layer, u in units.each.tolist()])
    return replace(whole, values=values[:, kept], each=units.each[kept], bias=torch.zeros(batch.rows, 0))


def _gradient(units: MLPUnits, batch: Batch, metric: Metric, pos: int | str) -> tuple[Tensor, Tensor, Tensor]:
    sites = [units.site(layer) for layer in units.layers]
    found = units.model.grad(metric, batch, sites, at=pos)
    values = []
    for layer, site in zip(units.layers, sites):
        h, g = (take_positions(x.detach(), batch.frame, pos) for x in (found.run[site], found[site]))
        values.append((units.gates(layer, h) * units.gates(layer, g)).double())
    return torch.cat(values, 1), torch.zeros(batch.rows, 0), found.metric.double()


def _direct(units: MLPUnits, batch: Batch, metric: Metric, pos: int | str) -> tuple[Tensor, Tensor, Tensor]:
    model, tower = units.model, units.model.architecture.tower(units.tower)
    what = f"direct contributions in {model.name}"
    if any(block.style in ("post", "sandwich") for block in tower.blocks):
        raise NotServed(what, "norms stand behind its MLPs", "use mode='gradient' or mode='ablation'")
    if getattr(model.text_config, "final_logit_softcapping", None) is not None:
        raise NotServed(what, "its logits are capped", "use mode='gradient' or mode='ablation'")
    if not isinstance(metric, (LogitDiff, Logit)):
        raise NotServed(what, "the metric may not be linear in the logits", "use LogitDiff or Logit")
    last = Site("resid_post", len(tower.blocks) - 1, tower=units.tower)
    # With the last norm's scale held, the metric is linear in the last stream: its gradient is what every part is
    # read with.
    found = model.grad(metric, batch, last, rules="detach_norm", at=pos)
    reader = take_positions(found[last], batch.frame, pos).double()
    sites = [units.site(layer) for layer in units.layers]
    run = model.run(batch, capture=sites, pos=pos, logits=False)
    values, bias = [], []
    for layer, site in zip(units.layers, sites):
        part = units[layer]
        read = part.values.double() * (reader @ part.right.double().T)
        values.append(units.gates(layer, run[site]).double() * read)
        bias.append(reader @ units.bias(layer).double())
    return torch.cat(values, 1), torch.stack(bias, 1), found.metric.double()
