"""Before a run: estimate its memory from what the self-test measured, cut it into pieces, or refuse it.

What a run keeps (captures and logits) must fit into the budget as a whole; what passes through it (activations
of the rows in flight) must fit for one row, and decides how many rows run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from torch import Tensor

from mechanome.core.errors import BudgetTooSmall
from mechanome.engine import memory
from mechanome.engine.edits import Edit, FromRows, FromRun, Resample
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch
from mechanome.engine.site import Site

if TYPE_CHECKING:
    from mechanome.engine.model import Model

# Tensors of one block that live at the same time: the stream, normalized input, projections, their outputs.
_IN_FLIGHT = 8
# Below this nobody asks the system what is free: the question would cost a small run more than the answer is worth.
_ALWAYS_THERE = 2**26


def kept_bytes(model: Model, batch: Batch, sites: Sequence[Site], pos: Positions) -> int:
    """Bytes that captures of these sites will hold; 0 where no self-test measured the sizes."""
    width = batch.frame.width
    if model.report is None or not width:
        return 0
    count = width if pos is None else max(len(batch.frame.positions(pos, r)) for r in range(batch.rows))
    size = memory.nbytes(1, dtype=model.dtype)
    total = 0
    for site in sites:
        key = f"{site.tower}/{site.point}" if site.tower else site.point
        features = list(model.report.features.get(key, []))
        if site.point in ("scores", "pattern"):
            features[-1:] = [width]
        chosen = {"head": 0, "kv": 0, "neuron": -1, "expert": -1}
        for axis, _ in site.selector:
            if features:
                features[chosen[axis]] = 1
        total += batch.rows * count * prod(features) * size
    return total


def rows_at_once(
    model: Model,
    batch: Batch,
    sites: Sequence[Site],
    edits: Sequence[Edit],
    pos: Positions,
    logits: bool | str,
    budget: memory.Budget,
) -> int:
    """How many rows of a batch to run at a time.

    Raises:
        BudgetTooSmall: what is kept does not fit, one row does not, or rows that must run together do not.
    """
    if model.report is None or not batch.frame.width:
        return batch.rows
    kept = kept_bytes(model, batch, sites, pos)
    size, width = memory.nbytes(1, dtype=model.dtype), batch.frame.width
    features = model.report.features
    vocab = prod(features.get("logits", [0]))
    kept += batch.rows * vocab * size * (width if logits is True else 1 if logits else 0)
    widest = max(
        (prod(v) for k, v in features.items() if k.rpartition("/")[2] not in ("scores", "pattern", "logits")), default=0
    )
    explicit = any(s.point in ("scores", "pattern") for s in (*sites, *(e.site for e in edits)))
    heads = max((v[0] for k, v in features.items() if k.rpartition("/")[2] == "pattern"), default=0)
    each = width * widest * size * _IN_FLIGHT + (heads * width * width * size * 4 if explicit else 0)
    if budget is None and kept + batch.rows * each <= _ALWAYS_THERE:
        return batch.rows
    limit = memory.parse_budget(budget, model.device)
    if kept > limit:
        raise BudgetTooSmall(
            f"a budget of {memory.show(limit)}",
            f"what this run keeps needs about {memory.show(kept)}",
            "capture fewer sites, give pos= or logits='last', or raise budget=",
        )
    fitting = memory.pieces(batch.rows, each, limit, "row of this run", kept)
    if fitting < batch.rows and (why := _together(edits)):
        raise BudgetTooSmall(
            f"a budget of {memory.show(limit)}",
            f"{why}, so all rows must run at once, which needs about {memory.show(kept + each * batch.rows)}",
            "raise budget=, or run fewer rows",
        )
    return fitting


def _together(edits: Sequence[Edit]) -> str | None:
    """Why edits need all rows of a batch in one pass, or None."""
    for edit in edits:
        if isinstance(edit.value, (FromRows, Resample)):
            return f"{edit} takes values from other rows"
        if edit.where.rows is not None or isinstance(edit.value, FromRun):
            return f"{edit} names rows"
        if isinstance(edit.value, Tensor) and edit.value.dim() > 1:
            return f"{edit} may hold one value per row"
    return None
