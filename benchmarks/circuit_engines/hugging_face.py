"""Exact effects of edges by what a careful user writes around a plain GPT-2: one hooked forward pass an edge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from benchmarks.circuit_engines.common import Layout, Pairs, start
from benchmarks.engines.common import load
from benchmarks.harness.serve import Work, serve


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    return load(settings)


def exact(model: Any, args: Mapping[str, Any]) -> Work:
    """The effects of `edges`, `[[source, target]]`."""
    pairs, layout = Pairs.of(args), Layout(model.config.n_layer, model.config.n_head)
    kinds = list(layout.targets())

    def work() -> dict[str, Any]:
        found = layout.matrix()
        with torch.no_grad():
            clean, base = _written(model, layout, pairs, pairs.clean)
            other, _ = _written(model, layout, pairs, pairs.corrupted)
            for source, target in args["edges"]:
                module, edit = _edit(model, *kinds[target], other[source] - clean[source])
                handle = module.register_forward_hook(edit)
                found[source, target] = (_metric(model, pairs, pairs.clean) - base).mean()
                handle.remove()
        return {"edge": found, "clean": base}

    return work


def _metric(model: Any, pairs: Pairs, ids: Tensor) -> Tensor:
    return pairs.metric(model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1])


def _written(model: Any, layout: Layout, pairs: Pairs, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What every source writes, `[source, pair, pos, width]`, and the metric."""
    blocks, kept = model.transformer.h, {}

    def keep(name: Any, before: bool) -> Callable[..., None]:
        return lambda module, inputs, *output: kept.__setitem__(name, inputs[0] if before else output[0])

    handles = [blocks[0].register_forward_pre_hook(keep("embedding", True))]
    for layer, block in enumerate(blocks):
        handles.append(block.attn.c_proj.register_forward_pre_hook(keep(("z", layer), True)))
        handles.append(block.mlp.register_forward_hook(keep(("mlp", layer), False)))
    metric = _metric(model, pairs, ids)
    for handle in handles:
        handle.remove()
    written = [kept["embedding"]]
    for layer, block in enumerate(blocks):
        by_head = kept["z", layer].unflatten(-1, (layout.heads, -1))
        weight = block.attn.c_proj.weight.unflatten(0, (layout.heads, -1))
        written += [by_head[:, :, head] @ weight[head] for head in range(layout.heads)]
        written.append(kept["mlp", layer])
    return torch.stack(written), metric


def _edit(model: Any, kind: str, layer: int, head: int, change: Tensor) -> tuple[Any, Callable[..., Tensor]]:
    """A module, and what its output becomes where one target reads a changed stream."""
    block = model.transformer.h[layer]
    norm = {"mlp": block.ln_2, "logits": model.transformer.ln_f}.get(kind, block.ln_1)

    def normed(stream: Tensor) -> Tensor:
        return layer_norm(stream + change, norm.normalized_shape, norm.weight, norm.bias, norm.eps)

    if kind in ("mlp", "logits"):
        return norm, lambda module, inputs, output: normed(inputs[0])
    heads, width = block.attn.num_heads, block.attn.head_dim
    first = ("q", "k", "v").index(kind) * heads * width + head * width
    columns, project = slice(first, first + width), block.attn.c_attn
    streams: dict[str, Tensor] = {}
    inner = norm.register_forward_pre_hook(lambda module, inputs: streams.__setitem__("pre", inputs[0]))

    def projected(module: Any, inputs: Any, output: Tensor) -> Tensor:
        inner.remove()
        changed = output.clone()
        changed[..., columns] = normed(streams["pre"]) @ project.weight[:, columns] + project.bias[columns]
        return changed

    return project, projected


if __name__ == "__main__":
    serve(open_model, {"exact": exact}, "transformers")
