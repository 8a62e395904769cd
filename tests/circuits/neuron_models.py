"""A llama written out by hand whose neurons can be moved, held and cut, with or without RelP's rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from circuit_models import opened
from torch import Tensor, nn


def norm(module: Any, x: Tensor, linear: bool) -> Tensor:
    scale = (x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()
    return x * (scale.detach() if linear else scale) * module.weight


def turned(y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = y.shape[-1] // 2
    return y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin


def naive(
    ids: Tensor,
    linear: bool = False,
    delta: Mapping[int, Tensor] | None = None,
    held: Mapping[int, Tensor] | None = None,
    cut: bool = False,
) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits at the last position, and neurons `[row, pos, neuron]` by layer.

    Args:
        linear: with RelP's rules. delta: added to neurons. held: put in their place. cut: no gradient passes through
            neurons, only from what is added.
    """
    llama: Any = opened("llama").module.model
    head: nn.Module = opened("llama").module.lm_head
    x = llama.embed_tokens(ids)
    cos, sin = (t[:, None] for t in llama.rotary_emb(x, torch.arange(ids.shape[1])[None]))
    seen = {}
    for layer, block in enumerate(llama.layers):
        attn, mlp = block.self_attn, block.mlp
        h = norm(block.input_layernorm, x, linear)
        width = attn.head_dim
        q, k, v = (p(h).unflatten(-1, (-1, width)).transpose(1, 2) for p in (attn.q_proj, attn.k_proj, attn.v_proj))
        groups = q.shape[1] // k.shape[1]
        q, k, v = turned(q, cos, sin), turned(k, cos, sin).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(-1, -2) * width**-0.5
        pattern = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf")).softmax(-1)
        pattern = pattern.detach() if linear else pattern
        x = x + attn.o_proj((pattern @ v).transpose(1, 2).flatten(2))
        h = norm(block.post_attention_layernorm, x, linear)
        gate, up = mlp.gate_proj(h), mlp.up_proj(h)
        if linear:
            gate = gate * gate.sigmoid().detach()
            neurons = (gate * up).detach() + 0.5 * (gate * up - (gate * up).detach())
        else:
            neurons = gate * gate.sigmoid() * up
        seen[layer] = neurons
        neurons = neurons.detach() if cut else neurons
        neurons = held[layer] if held and layer in held else neurons
        x = x + mlp.down_proj(neurons if delta is None else neurons + delta[layer])
    return head(norm(llama.norm, x[:, -1], linear)), seen


def deltas(ids: Tensor) -> dict[int, Tensor]:
    """Zeros to differentiate by, one for every neuron."""
    with torch.no_grad():
        return {layer: torch.zeros_like(v).requires_grad_() for layer, v in naive(ids)[1].items()}
