"""Removing one unit after another, exactly: each removal is a row of a batch, and only what it can change is computed.

Where the units are removed at the last position of a causal model, everything before that position is the same for all
of them: it is encoded once (`Model.prefix`), and each removal costs a pass over a single token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mechanome.circuits.native.units import MLPUnits, Unit
from mechanome.core import Bar
from mechanome.engine import Batch, Edit, Model, Prefix, Scale
from mechanome.engine.metrics import Metric, measure
from mechanome.engine.operations import take_positions
from mechanome.engine.resume import shared_prefix

_TOKENS_AT_ONCE = 512
"""More tokens in one pass do not make it faster."""


def removed(
    units: MLPUnits,
    batch: Batch,
    metric: Metric,
    chosen: Sequence[Unit],
    pos: int | str,
    quiet: bool = False,
) -> tuple[Tensor, Tensor]:
    """The metric of each row, and what it loses without each unit.

    Args:
        units: of the write side. batch: prompts. metric: of their logits. chosen: (layer, index) of each unit.
        pos: where units are removed, and where logits are read. quiet: no progress line.

    Returns:
        `[row]` and `[row, unit]`, float64.
    """
    base, lost = [], []
    with Bar("removing units", batch.rows, quiet) as bar:
        for row in range(batch.rows):
            prompt = _alone(units.model, batch, row)
            prefix = _shared(units, prompt, pos)
            width = 1 if prefix is not None else max(1, prompt.frame.width)
            size = max(1, _TOKENS_AT_ONCE // width)
            whole = _values(units.model, prompt, [], metric, row, pos, prefix)
            without = [
                _values(units.model, prompt.take([0] * len(some)), _edits(units, some, pos), metric, row, pos, prefix)
                for some in (chosen[i : i + size] for i in range(0, len(chosen), size))
            ]
            base.append(whole)
            lost.append(whole - torch.cat(without))
            bar.advance()
    return torch.cat(base), torch.stack(lost)


def _values(
    model: Model, batch: Batch, edits: list[Edit], metric: Metric, row: int, pos: int | str, prefix: Prefix | None
) -> Tensor:
    run = model.run(batch, edits=edits, logits="last" if prefix is not None else True, prefix=prefix)
    assert run.logits is not None
    logits = run.logits if prefix is not None else take_positions(run.logits, batch.frame, pos)
    return measure(metric, logits, torch.full((len(logits),), row, device=logits.device)).double()


def _edits(units: MLPUnits, some: Sequence[Unit], pos: int | str) -> list[Edit]:
    """Row i without unit i."""
    edits = []
    for layer in dict.fromkeys(layer for layer, _ in some):
        rows = [i for i, (at, _) in enumerate(some) if at == layer]
        factor = torch.ones(len(some), len(units[layer]))
        factor[rows, [some[i][1] for i in rows]] = 0.0
        edits.append(Scale(units.site(layer), factor, units.basis(layer), pos=pos, rows=rows))
    return edits


def _alone(model: Model, batch: Batch, row: int) -> Batch:
    """One row without its padding, where it is tokens and nothing else."""
    ids = batch.arguments.get("input_ids")
    if not isinstance(ids, Tensor) or not set(batch.arguments) <= {"input_ids", "attention_mask"}:
        return batch.take([row])
    start, length = batch.frame.starts[row], batch.frame.lengths[row]
    return model.encode([ids[row, start : start + length].tolist()], bos="none")


def _shared(units: MLPUnits, prompt: Batch, pos: int | str) -> Prefix | None:
    """The tokens before the last one, encoded, where removals at the last one cannot change them."""
    if set(prompt.arguments) != {"input_ids"} or pos not in ("last", -1):
        return None
    return shared_prefix(units.model, prompt, prompt.input_ids.shape[1] - 1)
