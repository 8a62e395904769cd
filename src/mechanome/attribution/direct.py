"""Direct logit attribution: what each part adds to a logit difference by way of the residual stream alone.

The last stream is a sum of parts: the embedding, every head, every MLP. With the last norm's scale held at its
actual value the logit difference is linear in that sum, so each part's share is exact and the shares add up. What
a part does through later parts is not counted; exact patching measures that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mechanome.core import BadInput, NotServed, Table
from mechanome.engine import Model, Run
from mechanome.engine.architecture import Block
from mechanome.engine.asked import ids_or_texts, in_vocabulary, one_each, opened_model, token_ids
from mechanome.engine.inputs import Inputs
from mechanome.engine.operations import take_positions
from mechanome.engine.parameters import effective_gain, epsilon

Tokens = int | str | Sequence[int | str]

_EXACT = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class DirectAttribution:
    """Shares of a logit (difference), exact for the frozen last norm.

    Attributes:
        parts: what each share belongs to: "embedding", a site such as `z.5.h3` or `mlp_out.5`, "bias.5" (the output
            projection's bias), "constant" (biases of the last norm and the unembedding).
        shares: `[row, part]`, float64.
        total: the model's own logit difference at the position, before a soft-cap, `[row]`; shares sum to it.
        notes: what was not split, and why.
    """

    parts: tuple[str, ...]
    shares: Tensor = field(repr=False)
    total: Tensor
    notes: tuple[str, ...] = ()

    def table(self, row: int = 0, k: int | None = 12) -> Table:
        """The largest shares of one row, by size."""
        order = self.shares[row].abs().argsort(descending=True)[:k].tolist()
        whole = float(self.total[row])
        rows = [(self.parts[i], float(self.shares[row, i]), float(self.shares[row, i]) / whole) for i in order]
        return Table(("part", "share", "of the total"), rows, "direct logit attribution")

    def _repr_html_(self) -> str:
        return self.table().html()


def direct_logit_attribution(
    model: Model,
    inputs: Inputs,
    answer: Tokens,
    foil: Tokens | None = None,
    *,
    pos: int | str = "last",
    heads: bool = True,
) -> DirectAttribution:
    """Split a logit, or a difference of two, over the parts of the network.

    Args:
        answer, foil: one for all rows or one each, as token ids or one-token texts such as " Paris"; without a foil
            the answer's logit alone is split.
        pos: the one position whose logits are split.
        heads: split attention by head (not possible where a norm follows attention).

    Raises:
        BadInput: texts of several tokens, ids that do not exist or are not one per row, an answer that is its own
            foil, several positions.
        NotServed: a stream that is not a sum of parts (norms after each part), or logits that are not the unembedding
            of the last norm.
    """
    opened_model(model)
    tower = model.architecture.tower(None)
    if any(block.style == "post" for block in tower.blocks) or tower.ln_final is None:
        raise NotServed(
            f"direct attribution in {model.name}", "its stream is normalized after each part", "use activation_patching"
        )
    split = [heads and block.style != "sandwich" and "o_proj" in block.roles for block in tower.blocks]
    sites = [s for layer, block in enumerate(tower.blocks) for s in _sites(layer, block, split[layer])]
    last = f"resid_post.{len(tower.blocks) - 1}"
    batch = model.encode(inputs)
    vocabulary = model.weight("W_U").value.shape[1]
    chosen = _ids("answer", ids_or_texts(model, answer), batch.rows, vocabulary)
    other = None if foil is None else _ids("foil", ids_or_texts(model, foil), batch.rows, vocabulary)
    if other is not None and bool((chosen == other).any()):
        raise BadInput("answer and foil", "they are the same token", "choose different ones")
    run = model.run(batch, capture=["resid_pre.0", *sites, last], pos=pos)
    if run[last].dim() != 2:
        raise BadInput(f"pos={pos!r}", "one position is split at a time", "give one, such as pos='last' or pos=-2")
    reader, constant = _reader(model, run, last, chosen, other)
    parts: list[str] = ["embedding"]
    values = [run["resid_pre.0"]]
    for name, value in _pieces(run, tower.blocks, split):
        parts.append(name)
        values.append(value)
    stacked = torch.stack([v.double() for v in values], dim=1)
    shares = torch.einsum("rpd,rd->rp", stacked, reader)
    shares = torch.cat([shares, constant[:, None]], dim=1)
    cap = getattr(model.text_config, "final_logit_softcapping", None)
    total = _total(run, chosen, other, pos, cap)
    error = float((shares.sum(1) - total).abs().max() / total.abs().max().clamp(min=1e-6))
    if error > _EXACT.get(model.dtype, 1e-1):
        why = f"its logits are not the unembedding of the last norm (shares miss them by {error:.1e})"
        raise NotServed(f"direct attribution in {model.name}", why, "use activation_patching")
    notes = []
    if heads and any(block.style == "sandwich" for block in tower.blocks):
        notes.append("attention is not split by head, because a norm follows it")
    if cap is not None:
        notes.append("logits before their soft-cap")
    return DirectAttribution((*parts, "constant"), shares, total, tuple(notes))


def _sites(layer: int, block: Block, split: bool) -> Iterator[str]:
    points = {"attn_out": "attn_out", "cross_out": "cross_out", "mixer": "mixer_out", "mlp_out": "mlp_out"}
    yield from (f"{point}.{layer}" for role, point in points.items() if role in block.roles)
    if split:
        yield f"head_out.{layer}"


def _pieces(run: Run, blocks: Sequence[Block], split: Sequence[bool]) -> Iterator[tuple[str, Tensor]]:
    for layer, block in enumerate(blocks):
        for name in _sites(layer, block, False):
            whole = run[name]
            if not name.startswith("attn_out") or not split[layer]:
                yield name, whole
                continue
            each = run[f"head_out.{layer}"]
            for head in range(each.shape[-2]):
                yield f"z.{layer}.h{head}", each[..., head, :]
            yield f"bias.{layer}", whole - each.sum(-2)


def _ids(what: str, tokens: Any, rows: int, vocabulary: int) -> Tensor:
    ids = token_ids(what, tokens)
    one_each(what, ids, rows)
    in_vocabulary(what, ids, vocabulary)
    return ids.expand(rows)


def _reader(model: Model, run: Run, last: str, chosen: Tensor, other: Tensor | None) -> tuple[Tensor, Tensor]:
    """Per row, the vector that a part's value is read with, and what does not depend on the stream."""
    x = run[last].double()
    norm = model.tap("ln_final").module
    gain = effective_gain(norm).double()
    w_u = model.weight("W_U").value
    rows = x.shape[0]
    direction, bias = w_u[:, chosen].T.double(), _bias(model, "b_U", rows)[torch.arange(rows), chosen]
    if other is not None:
        direction = direction - w_u[:, other].T.double()
        bias = bias - _bias(model, "b_U", rows)[torch.arange(rows), other]
    constant = bias + (direction * _bias(model, "b_ln_final", rows)).sum(-1)
    centred = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
    scale = (centred.pow(2).mean(-1, keepdim=True) + epsilon(norm)).rsqrt()
    reader = direction * gain * scale
    if isinstance(norm, nn.LayerNorm):
        # Centring is linear and symmetric: it can be done to the reader instead of to every part.
        reader = reader - reader.mean(-1, keepdim=True)
    return reader, constant


def _bias(model: Model, name: str, rows: int) -> Tensor:
    size = model.weight("W_U").value.shape[1 if name == "b_U" else 0]
    try:
        return model.weight(name).value.double().expand(rows, -1)
    except NotServed:
        return torch.zeros(rows, size, dtype=torch.float64)


def _total(run: Run, chosen: Tensor, other: Tensor | None, pos: int | str, cap: float | None) -> Tensor:
    assert run.logits is not None
    logits = take_positions(run.logits, run.batch.frame, pos).double()
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    rows = torch.arange(logits.shape[0])
    total = logits[rows, chosen]
    return total if other is None else total - logits[rows, other]
