"""Contribution weights: the share of a head's output that each token explains, by projection.

Paper 34 (Cunningham & Muca Cirone 2026). With attention weights a, and u_j = v_j W_O what token j would add, a head
writes o_i = sum_j a_ij u_j at query i, and

    c_ij = <a_ij u_j, o_i> / ||o_i||^2,        so that  sum_j c_ij = 1.

c is negative for a token that opposes the output. Every product is taken in value space: <u_j, o_i> = <v_j, W_O o_i>,
so the target is pulled back through W_O once per query and nothing of size query x key x d_model is ever made. This is
the Gram form a (a G) / rowsum(a (a G)), G = U U^T, without making G.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from mechanome.core import BadInput, ShapeMismatch, UnknownName, nearest
from mechanome.heads.reading import per_query_head

Form = Literal["head", "layer", "joint"]
FORMS: dict[str, str] = {
    "head": "each head's parts on that head's own output",
    "layer": "the parts of all heads at a token, summed, on the output of all heads",
    "joint": "each head's parts on the output of all heads: the layer form before heads are summed",
}
"""What is projected on what."""
EPS = 1e-4


@dataclass(frozen=True)
class Contribution:
    """Shares of one layer.

    Args:
        values: c, `[head, query, key]`, or `[query, key]` in the layer form.
        squared: squared length of what was projected on, before clipping: `[head, query]` in the head form, else
            `[query]`.
        clipped: where the parts cancel almost entirely, so that the denominator was raised; axes as `squared`.
        stream: the share of the residual stream itself, where that is part of the target; axes as `squared`.
    """

    values: Tensor = field(repr=False)
    squared: Tensor = field(repr=False)
    clipped: Tensor = field(repr=False)
    stream: Tensor | None = field(default=None, repr=False)


def contribution(
    pattern: Tensor,
    values: Tensor,
    output_weight: Tensor | None = None,
    *,
    form: Form = "head",
    stream: Tensor | None = None,
    eps: float = EPS,
) -> Contribution:
    """Contribution weights of one layer, paper 34 (Cunningham & Muca Cirone 2026).

    Args:
        pattern: attention weights, `[head, query, key]`.
        values: `[kv, key, d_v]`; heads that share a key/value head lie side by side.
        output_weight: W_O, `[head, d_v, d_model]`, without bias; None projects in value space (before W_O), a cheap
            variant in which the heads of a layer count as orthogonal.
        form: a row of `FORMS`. Shares sum to 1 over keys ("head", "layer"), or over heads and keys ("joint").
        stream: x `[query, d_model]`: project on x + o instead; then the share of x belongs to the sum of 1.
        eps: the parts of o cancel almost entirely where ||o||^2 < eps S^2, S the sum of the parts' lengths. There the
            denominator is eps S^2: shares sum to less than 1, and sum_j |c_ij| never exceeds 1 / sqrt(eps).

    Returns:
        a `Contribution`.

    Raises:
        ShapeMismatch, UnknownName, BadInput: tensors that do not fit, an unknown form, a stream in value space, eps
            that is not positive.
    """
    _check(pattern, values, output_weight, form, stream, eps)
    per_head = per_query_head(values, pattern.shape[0])
    z = pattern @ per_head
    if output_weight is None:
        pulled, lengths = z, per_head.norm(dim=-1)
        squared = z.square().sum(-1)
        squared = squared if form == "head" else squared.sum(0)
        before = torch.zeros_like(squared)
    else:
        lengths = transformed_lengths(values, output_weight)
        pulled, squared, before = _targets(z, output_weight, form == "head", stream)
    parts = pattern * (pulled @ per_head.mT)
    reach = (pattern * lengths[:, None, :]).sum(-1)
    parts = parts.sum(0) if form == "layer" else parts
    reach = (reach if form == "head" else reach.sum(0)) + (0.0 if stream is None else stream.norm(dim=-1))
    floor = eps * reach.square()
    denominator = squared.maximum(floor).clamp(min=torch.finfo(squared.dtype).tiny)
    share = None if stream is None else before / denominator
    return Contribution(parts / denominator.unsqueeze(-1), squared, squared < floor, share)


def head_importance(pattern: Tensor, values: Tensor, output_weight: Tensor, *, eps: float = EPS) -> Tensor:
    """The share of attention's output that each head explains, <o^h, o> / ||o||^2, `[head, query]`.

    Sums to 1 over heads where nothing is clipped. Paper 34 (Cunningham & Muca Cirone 2026). Args as `contribution`.
    """
    return contribution(pattern, values, output_weight, form="joint", eps=eps).values.sum(-1)


def transformed_lengths(values: Tensor, output_weight: Tensor) -> Tensor:
    """||u_j|| of the transformed values u_j = v_j W_O, `[head, key]`, without making them.

    Args:
        values: `[kv, key, d_v]`. output_weight: `[head, d_v, d_model]`.
    """
    per_head = per_query_head(values, output_weight.shape[0])
    return ((per_head @ (output_weight @ output_weight.mT)) * per_head).sum(-1).clamp(min=0).sqrt()


def _targets(z: Tensor, weight: Tensor, own: bool, stream: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """What is projected on: pulled back to value space `[head, query, d_v]`, its squared length, its product with x."""
    if not own:
        target = torch.einsum("hqd,hdm->qm", z, weight)
        target = target if stream is None else target + stream
        before = torch.zeros_like(target[:, 0]) if stream is None else (stream * target).sum(-1)
        return torch.einsum("qm,hdm->hqd", target, weight), target.square().sum(-1), before
    pulled = z @ (weight @ weight.mT)
    squared = (pulled * z).sum(-1).clamp(min=0)
    if stream is None:
        return pulled, squared, torch.zeros_like(squared)
    back = torch.einsum("qm,hdm->hqd", stream, weight)
    cross, own_length = (back * z).sum(-1), stream.square().sum(-1)
    return pulled + back, (squared + 2 * cross + own_length).clamp(min=0), cross + own_length


def _check(
    pattern: Tensor, values: Tensor, weight: Tensor | None, form: str, stream: Tensor | None, eps: float
) -> None:
    if pattern.dim() != 3 or values.dim() != 3 or pattern.shape[-1] != values.shape[1]:
        raise ShapeMismatch(
            f"pattern {list(pattern.shape)} and values {list(values.shape)}",
            "they are [head, query, key] and [kv, key, d_v]",
            "give one layer of one prompt",
        )
    if weight is not None and (weight.dim() != 3 or weight.shape[:2] != (pattern.shape[0], values.shape[-1])):
        expected = f"[{pattern.shape[0]}, {values.shape[-1]}, d_model]"
        raise ShapeMismatch(f"output weight {list(weight.shape)}", f"it is {expected}", "use model.weight('W_O.5')")
    if form not in FORMS:
        raise UnknownName(f"form '{form}'", "there is no such form", nearest(form, FORMS))
    if stream is not None:
        if weight is None:
            raise BadInput("a stream in value space", "the stream lives after W_O", "give output_weight too")
        if stream.shape != (pattern.shape[1], weight.shape[-1]):
            expected = f"[{pattern.shape[1]}, {weight.shape[-1]}]"
            raise ShapeMismatch(f"stream {list(stream.shape)}", f"it is [query, d_model] {expected}", "slice it alike")
    if not eps > 0:
        raise BadInput(f"eps {eps}", "shares explode where the parts cancel", f"use a small number such as {EPS}")
