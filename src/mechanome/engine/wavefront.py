"""The wavefront: many variants of one run in a single pass, each joining where it first differs.

The base run is one row. When the pass reaches block `l`, a row is appended for every variant that edits block
`l`, so blocks before an edit run once for all variants, each layer's weights are used once on many rows, and
positions before the first edited one come from an encoded prefix. The logits are those of the naive loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mechanome.engine.inputs import Batch
from mechanome.engine.operations import Remember, Through
from mechanome.engine.plan import Call, Plan
from mechanome.engine.resume import Prefix, Recorded
from mechanome.engine.run import execute, place
from mechanome.engine.site import Site
from mechanome.engine.taps import logits_of
from mechanome.engine.views import Plain

if TYPE_CHECKING:
    from mechanome.engine.model import Model

_KEYS = frozenset({"k", "v"})


@dataclass(frozen=True)
class Cell:
    """One variant: a site whose value at some positions is replaced by the donor's.

    Args:
        site: what is replaced; a head or neuron restricts it.
        pos: positions in real tokens, in order.
        index: where the result goes in the caller's grid.
    """

    site: Site
    pos: tuple[int, ...]
    index: tuple[int, ...]

    @property
    def layer(self) -> int:
        """The block it edits."""
        assert self.site.layer is not None
        return self.site.layer

    @property
    def start(self) -> int:
        """Its first position."""
        return min(self.pos)


Donor = Callable[[Site], Tensor]
"""For a whole site, the donor's values at all positions: `[1, pos, feature...]`."""


def groups(cells: Sequence[Cell], length: int, prefix: bool, tokens: int) -> Iterator[tuple[int, list[Cell]]]:
    """Split cells by first position, so that late cells do not run early positions again.

    Args:
        cells: all variants. length: tokens of the base run. prefix: whether a prefix can be resumed from.
        tokens: rows times positions below which splitting does not pay.

    Yields:
        the position to resume from, and the cells that need only positions from there on.
    """
    if not prefix:
        yield 0, sorted(cells, key=lambda c: c.layer)
        return
    pending: list[Cell] = []
    by_start = sorted(cells, key=lambda c: -c.start)
    for i, cell in enumerate(by_start):
        pending.append(cell)
        last = i + 1 == len(by_start) or by_start[i + 1].start != cell.start
        if last and (len(pending) * (length - cell.start) >= tokens or i + 1 == len(by_start)):
            yield cell.start, sorted(pending, key=lambda c: c.layer)
            pending = []


@dataclass
class _Append:
    """At a block's input: add one row per variant of this block, copied from the base row."""

    count: int

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        call.rows = x.shape[0] + self.count
        return torch.cat([x, x[:1].expand(self.count, *x.shape[1:])])


@dataclass
class _Replace:
    """At a variant's tap: write the donor's values into its row."""

    cells: Sequence[Cell]
    first_row: int
    start: int
    donor: Tensor
    donor_start: int

    def __call__(self, x: Tensor, call: Call) -> Tensor:
        x = x.clone()
        over_keys = self.cells[0].site.point in _KEYS
        shift, donor_shift = (0, 0) if over_keys else (self.start, self.donor_start)
        rows = [self.first_row + i for i, c in enumerate(self.cells) for _ in c.pos]
        pos = torch.tensor([p for c in self.cells for p in c.pos], device=x.device)
        target = (torch.tensor(rows, device=x.device), pos - shift)
        axis = dict(self.cells[0].site.selector)
        if not axis:
            x[target] = self.donor[0][pos - donor_shift].to(x)
            return x
        values = [v for c in self.cells for v in [dict(c.site.selector)] for _ in c.pos]
        chosen = torch.tensor([next(iter(v.values())) for v in values], device=x.device)
        if "head" in axis or "kv" in axis:
            x[(*target, chosen)] = self.donor[0][pos - donor_shift, chosen].to(x)
        else:
            x[(target[0], target[1], chosen)] = self.donor[0][pos - donor_shift, chosen].to(x)
        return x


def sweep_rows(
    model: Model,
    batch: Batch,
    cells: Sequence[Cell],
    donor: Donor,
    recorded: Recorded,
    start: int = 0,
    prefix: Prefix | None = None,
) -> Tensor:
    """Run one batch of variants.

    Args:
        model: the model. batch: the base input, one unpadded row.
        cells: variants, sorted by layer.
        donor: the values to write.
        recorded: the base run, to resume from.
        start: positions before it are not run again; needs `prefix`.
        prefix: the base input's keys and values, at least up to `start`.

    Returns:
        logits at the last position `[variant, vocab]` (for a classifier its scores).
    """
    tower = recorded.tower
    plan = Plan(root=model.module)
    first = cells[0].layer
    recorded.stub(plan, first, start)
    row = 1
    for layer, sites in _by_layer(cells):
        members = [c for cs in sites for c in cs]
        _first_at(plan.inputs, tower.blocks[layer].part.module, _Append(len(members)))
        for same in sites:
            whole = same[0].site.whole
            tap = model.tap(same[0].site)
            replace: Any = _Replace(same, row, start, donor(whole), recorded.start)
            row += len(same)
            if tap.through:
                writer, stream = tap.through
                place(plan, stream, Remember(stream.part.path))
                place(plan, writer, Through(stream.part.path, replace))
            else:
                place(plan, tap, replace)
    extra: dict[str, Any] = dict(model.keep_logits(1))
    arguments = dict(batch.arguments)
    if start:
        assert prefix is not None
        arguments["input_ids"] = arguments["input_ids"][:, start:]
        extra |= {"cache": prefix.cut(start), "use_cache": True}
    with torch.no_grad():
        output = execute(model, Batch(arguments, batch.frame, batch.frames), plan, **extra)
    logits = logits_of(output)
    assert logits is not None
    return (logits[:, -1] if logits.dim() == 3 else logits)[1:]


def _first_at(table: dict[nn.Module, list[Any]], module: nn.Module, operation: Any) -> None:
    from mechanome.engine.plan import Bound
    from mechanome.engine.taps import install

    install(module, "input")
    table.setdefault(module, []).insert(0, Bound(Plain(), operation))


def _by_layer(cells: Sequence[Cell]) -> Iterator[tuple[int, list[list[Cell]]]]:
    """Cells per layer, and within it per whole site and kind of coordinate, so that each group is one write."""
    layers: dict[int, dict[tuple[Site, tuple[str, ...]], list[Cell]]] = {}
    for cell in cells:
        key = (cell.site.whole, tuple(axis for axis, _ in cell.site.selector))
        layers.setdefault(cell.layer, {}).setdefault(key, []).append(cell)
    for layer in sorted(layers):
        yield layer, list(layers[layer].values())
