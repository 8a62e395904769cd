"""Does each part mean what its name says? Checked on the values of one pass, not trusted from a table.

A family table or a user's layout may name the wrong module. Then reading it still works and editing it still moves the
output, but the name lies. So the self-test adds up: the stream before a part, plus what the part is said to add, must
be the stream after it; and the output projection must turn `z` into what attention adds. What does not add up is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mechanome.engine.architecture import Architecture, Block
from mechanome.engine.plan import activate
from mechanome.engine.site import Site
from mechanome.engine.taps import hidden

_LIMIT = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 5e-2}
_MIXED = ("attn_out", "cross_out", "mixer_out")


Real = Callable[[Tensor], Tensor]


def liars(architecture: Architecture, found: Mapping[Site, Tensor], real: Real) -> dict[Site, str]:
    """Sites whose values do not fit their definition, with the reason.

    Args:
        architecture: which module is said to play which part.
        found: site -> its value in one pass, `batch pos feature...`.
        real: takes the real tokens of such a tensor.
    """
    wrong: dict[Site, str] = {}
    for tower in architecture.towers:
        for layer, block in enumerate(tower.blocks):
            values = {s.point: v for s, v in found.items() if s.layer == layer and s.tower == tower.name}
            checks = [*(_added(block, values, real) if tower.additive else ()), *_projected(block, values, real)]
            wrong |= {Site(point, layer, tower=tower.name): why for points, why in checks for point in points}
    return {site: why for site, why in wrong.items() if site in found or site.point == "head_out"}


def _off(claimed: Tensor, seen: Tensor, real: Real) -> float:
    """The largest relative difference over real tokens; 0 where it is no more than rounding."""
    if claimed.shape != seen.shape:
        return float("inf")
    a, b = real(claimed.float()), real(seen.float())
    error = float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
    return error if error > _LIMIT.get(seen.dtype, 0.2) else 0.0


def _added(block: Block, values: Mapping[str, Tensor], real: Real) -> Iterator[tuple[Sequence[str], str]]:
    before, after = values.get("resid_pre"), values.get("resid_post")
    mixed = [p for p in _MIXED if p in values]
    if before is None or after is None or not (mixed or "mlp_out" in values):
        return

    def plus(start: Tensor, *points: str) -> Tensor:
        parts = [values[p].reshape(start.shape).float() for p in points if p in values]
        return start.float() + sum(parts)

    def normed(role: str, x: Tensor) -> Tensor:
        with torch.no_grad(), activate(None):
            return block.roles[role].module(x.to(before.dtype))

    mid = values.get("resid_mid")
    if block.style == "post":
        if mid is not None and _off(normed("ln1", plus(before, *mixed)), mid, real):
            yield [*mixed, "resid_mid"], "the norm of the stream and attention is not the stream after it"
        start = mid if mid is not None else before
        if "ln2" in block.roles and _off(normed("ln2", plus(start, "mlp_out")), after, real):
            yield ["mlp_out"], "the norm of the stream and the MLP is not the stream after it"
        return
    whole = _off(plus(before, *mixed, "mlp_out"), after, real)
    first = _off(plus(before, *mixed), mid, real) if mid is not None else whole
    second = _off(plus(mid, "mlp_out"), after, real) if mid is not None else whole
    if first and second:
        yield ["resid_mid"], f"it is not the stream before it plus what the token mixer adds (off by {first:.1g})"
    if whole:
        names = [*(mixed if first else ()), *(["mlp_out"] if second else ())]
        yield names, f"it is not what is added to the stream (off by {whole:.1g})"


def _projected(block: Block, values: Mapping[str, Tensor], real: Real) -> Iterator[tuple[Sequence[str], str]]:
    z, out = values.get("z"), values.get("attn_out")
    if z is None or out is None:
        return
    projection, writer = block.roles["o_proj"].module, block.roles["attn_out"].module
    with torch.no_grad(), activate(None):
        mixed = hidden(projection(z.flatten(-2)))
        if mixed is not None and block.style == "sandwich":  # a norm adds what attention makes
            mixed = hidden(writer(mixed))
    if mixed is None or _off(mixed, out, real):
        yield ["z", "head_out"], "its output projection does not turn it into what attention adds"
