"""A transformer written out by hand, in which every edge can be patched: the reference for edge scores.

It uses the modules and weights of the Transformers model directly and nothing of Mechanome. Every target reads a stream
of its own, put together from what each source wrote: as it is, or with `mask` of the way to another value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as neox_rotary
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from mechanome.circuits import Graph

Projection = Callable[[Tensor], Tensor]


@dataclass
class Block:
    """One block's pieces: per head a query map, per key/value head a key and a value map, per head an output map."""

    norm1: Projection
    q: list[Projection]
    k: list[Projection]
    v: list[Projection]
    o: list[Tensor]
    o_bias: Tensor
    norm2: Projection
    mlp: Projection
    parallel: bool = False
    pieces: Callable[[Tensor], tuple[dict[str, Tensor], Tensor]] | None = None
    """What the MLP's output is the sum of, by name, and a rest that belongs to no source; None for one piece."""
    turn1: Projection = lambda x: x
    turn2: Projection = lambda x: x


@dataclass
class Parts:
    """A whole model's pieces."""

    embed: Callable[[Tensor], Tensor]
    blocks: list[Block]
    unembed: Projection
    causal: bool
    rotary: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    frozen: bool = False
    """Whether attention probabilities count as constant."""


def linear(weight: Tensor, bias: Tensor | None) -> Projection:
    return lambda x: x @ weight.T + (0.0 if bias is None else bias)


def heads(weight: Tensor, bias: Tensor | None, n: int) -> list[Projection]:
    """`[out, in]` cut into n maps."""
    biases = [None] * n if bias is None else bias.chunk(n)
    return [linear(w, b) for w, b in zip(weight.chunk(n), biases)]


def gpt2(model: Any) -> Parts:
    core, blocks = model.transformer, []
    for h in core.h:
        w, b = h.attn.c_attn.weight.T, h.attn.c_attn.bias
        q, k, v = (heads(*cut, 4) for cut in zip(w.chunk(3), b.chunk(3)))
        blocks.append(Block(h.ln_1, q, k, v, list(h.attn.c_proj.weight.chunk(4)), h.attn.c_proj.bias, h.ln_2, h.mlp))
    return Parts(
        lambda ids: core.wte(ids) + core.wpe(torch.arange(ids.shape[1])), blocks,
        lambda x: model.lm_head(core.ln_f(x)), True, lambda q, k: (q, k),
    )  # fmt: skip


def llama(model: Any) -> Parts:
    blocks = []
    for h in model.model.layers:
        a = h.self_attn
        q, k, v = (heads(p.weight, p.bias, n) for p, n in ((a.q_proj, 4), (a.k_proj, 2), (a.v_proj, 2)))
        blocks.append(
            Block(h.input_layernorm, q, k, v, list(a.o_proj.weight.T.chunk(4)), a.o_proj.bias,
                  h.post_attention_layernorm, h.mlp)
        )  # fmt: skip

    def rotary(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = model.model.rotary_emb(q, torch.arange(q.shape[1])[None])
        turned = llama_rotary(q[:, None], k[:, None], cos, sin)
        return turned[0][:, 0], turned[1][:, 0]

    return Parts(model.model.embed_tokens, blocks, lambda x: model.lm_head(model.model.norm(x)), True, rotary)


def gpt_neox(model: Any) -> Parts:
    core, blocks = model.gpt_neox, []
    for h in core.layers:
        w, b = (
            t.unflatten(0, (4, 3, -1)) for t in (h.attention.query_key_value.weight, h.attention.query_key_value.bias)
        )
        q, k, v = ([linear(w[i, c], b[i, c]) for i in range(4)] for c in range(3))
        out = h.attention.dense
        blocks.append(
            Block(
                h.input_layernorm,
                q,
                k,
                v,
                list(out.weight.T.chunk(4)),
                out.bias,
                h.post_attention_layernorm,
                h.mlp,
                True,
            )
        )

    def rotary(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = core.rotary_emb(q, torch.arange(q.shape[1])[None])
        turned = neox_rotary(q[:, None], k[:, None], cos, sin)
        return turned[0][:, 0], turned[1][:, 0]

    return Parts(core.embed_in, blocks, lambda x: model.lm_head(core.final_layer_norm(x)), True, rotary)


def bert(model: Any) -> Parts:
    blocks = []
    same = nn.Identity()
    for h in model.bert.encoder.layer:
        a, out = h.attention.self, h.attention.output
        q, k, v = (heads(p.weight, p.bias, 4) for p in (a.query, a.key, a.value))
        blocks.append(
            Block(same, q, k, v, list(out.dense.weight.T.chunk(4)), out.dense.bias, same,
                  lambda x, h=h: h.output.dense(h.intermediate(x)), turn1=out.LayerNorm, turn2=h.output.LayerNorm)
        )  # fmt: skip
    return Parts(lambda ids: model.bert.embeddings(input_ids=ids), blocks, model.cls, False, lambda q, k: (q, k))


FAMILIES: dict[str, Callable[[Any], Parts]] = {"gpt2": gpt2, "llama": llama, "gpt_neox": gpt_neox, "bert": bert}

Values = dict[str, Tensor]
Mask = Callable[[str, str], Tensor | float]


def forward(
    parts: Parts,
    ids: Tensor,
    patched: Values | None = None,
    mask: Mask = lambda s, t: 0.0,
    embedded: Tensor | None = None,
    clean: Values | None = None,
    held: Values | None = None,
) -> tuple[Tensor, Values]:
    """Logits at the last token `[1, vocab]` of one row, and what each source wrote `[1, pos, d_model]`.

    Args:
        parts: of the model. ids: `[1, pos]`.
        patched, clean: per source what it carries if patched, and from where the change counts (its own value if None).
        mask: how far an edge is patched.
        embedded: embeddings to use in place of the ids' own.
        held: sources that are held at a value.
    """
    wrote: Values = {}
    pieces = {i: [f"mlp_out.{i}"] for i in range(len(parts.blocks))}
    constants: dict[int, Tensor | float] = dict.fromkeys(pieces, 0.0)

    def write(name: str, value: Tensor) -> None:
        wrote[name] = value if held is None or name not in held else held[name]

    def part(source: str, target: str) -> Tensor:
        if patched is None:
            return wrote[source]
        start = wrote[source] if clean is None else clean[source]
        return wrote[source] + mask(source, target) * (patched[source] - start)

    def stream(target: str, layer: int, middle: bool) -> Tensor:
        """What a target in a layer reads, before the norm that belongs to it."""
        x = part("resid_pre.0", target)
        for i, block in enumerate(parts.blocks[: layer + 1]):
            if i == layer and not middle:
                break
            x = x + sum(part(f"z.{i}.h{h}", target) for h in range(len(block.o))) + block.o_bias
            x = block.turn1(x)
            if i < layer:
                x = block.turn2(x + sum(part(name, target) for name in pieces[i]) + constants[i])
        return x

    write("resid_pre.0", parts.embed(ids) if embedded is None else embedded)
    length = ids.shape[1]
    for i, block in enumerate(parts.blocks):
        shared = len(block.q) // len(block.k)
        for h, (project, out) in enumerate(zip(block.q, block.o)):
            kv = h // shared
            q = project(block.norm1(stream(f"q.{i}.h{h}", i, False)))
            k = block.k[kv](block.norm1(stream(f"k.{i}.kv{kv}", i, False)))
            v = block.v[kv](block.norm1(stream(f"v.{i}.kv{kv}", i, False)))
            q, k = parts.rotary(q, k)
            scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
            if parts.causal:
                scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
            pattern = scores.softmax(-1).detach() if parts.frozen else scores.softmax(-1)
            write(f"z.{i}.h{h}", pattern @ v @ out)
        x = block.norm2(stream(f"mlp_in.{i}", i, not block.parallel))
        summands, constants[i] = ({f"mlp_out.{i}": block.mlp(x)}, 0.0) if block.pieces is None else block.pieces(x)
        pieces[i] = list(summands)
        for name, value in summands.items():
            write(name, value)
    return parts.unembed(stream("logits", len(parts.blocks), True))[:, -1], wrote


def masked(graph: Graph, parts: Parts, mask: Tensor, clean: Tensor, patched: Values) -> Tensor:
    """Logits of one row whose edges are kept as the mask `[source, target]` says, `[vocab]`."""

    def left_out(source: str, target: str) -> Tensor:
        return 1.0 - mask[graph.source_index(source), graph.target_index(target)]

    return forward(parts, clean, patched, left_out)[0][0]
