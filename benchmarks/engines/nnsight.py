"""nnsight: one trace a layer with an invoke for each cell (its documented layer by position map), or one trace a cell.

Both compute logits at the last token only, which the model's own `logits_to_keep` gives to every trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nnsight
import torch
from nnsight.modeling.transformers import TransformersModel
from torch import Tensor

from benchmarks.engines.common import Sweep, by_layer, load, sample, start, tokenizer
from benchmarks.harness.serve import Work, serve


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    return TransformersModel(load(settings), tokenizer=tokenizer(settings), task="text-generation")


def forward(model: Any, args: Mapping[str, Any]) -> Work:
    ids = torch.tensor(args["ids"])

    def work() -> Any:
        with model.trace(ids, use_cache=False):
            kept = nnsight.save({"resid_pre": [], "resid_mid": [], "resid_post": [], "z": [], "mlp_act": []})
            for block in model.model.layers:
                kept["resid_pre"].append(block.input)
                kept["z"].append(block.self_attn.o_proj.input)
                kept["resid_mid"].append(block.post_attention_layernorm.input)
                kept["mlp_act"].append(block.mlp.down_proj.input)
                kept["resid_post"].append(block.output)
            logits = model.lm_head.output.save()
        return lambda: {"logits": logits[:, -1], **sample(kept, args["stride"])}

    return work


def residual_sweep(model: Any, args: Mapping[str, Any]) -> Work:
    sweep = Sweep.of(args, model.config.num_hidden_layers)

    def work() -> dict[str, Any]:
        with model.trace(sweep.clean, use_cache=False, logits_to_keep=1):
            clean = nnsight.save([block.input for block in model.model.layers])

        def invokes(layer: int) -> Tensor:
            with model.trace(use_cache=False, logits_to_keep=1) as tracer:
                row = nnsight.save([])
                for column in sweep.positions:
                    with tracer.invoke(sweep.corrupted):
                        model.model.layers[layer].input[:, column] = clean[layer][:, column]
                        row.append(sweep.metric(model.lm_head.output[0, -1]))
            return torch.stack(list(row))

        def cell(layer: int, column: int) -> Tensor:
            with model.trace(sweep.corrupted, use_cache=False, logits_to_keep=1):
                model.model.layers[layer].input[:, column] = clean[layer][:, column]
                logits = model.lm_head.output[0, -1].save()
            return sweep.metric(logits)

        return _sweep(sweep, args["way"], invokes, cell)

    return work


def head_sweep(model: Any, args: Mapping[str, Any]) -> Work:
    sweep = Sweep.of(args, model.config.num_hidden_layers, model.config.num_attention_heads)
    size = model.config.head_dim

    def work() -> dict[str, Any]:
        with model.trace(sweep.clean, use_cache=False, logits_to_keep=1):
            clean = nnsight.save([block.self_attn.o_proj.input for block in model.model.layers])

        def invokes(layer: int) -> Tensor:
            with model.trace(use_cache=False, logits_to_keep=1) as tracer:
                row = nnsight.save([])
                for head in sweep.positions:
                    with tracer.invoke(sweep.corrupted):
                        part = slice(head * size, (head + 1) * size)
                        model.model.layers[layer].self_attn.o_proj.input[:, :, part] = clean[layer][:, :, part]
                        row.append(sweep.metric(model.lm_head.output[0, -1]))
            return torch.stack(list(row))

        def cell(layer: int, head: int) -> Tensor:
            part = slice(head * size, (head + 1) * size)
            with model.trace(sweep.corrupted, use_cache=False, logits_to_keep=1):
                model.model.layers[layer].self_attn.o_proj.input[:, :, part] = clean[layer][:, :, part]
                logits = model.lm_head.output[0, -1].save()
            return sweep.metric(logits)

        return _sweep(sweep, args["way"], invokes, cell)

    return work


def _sweep(sweep: Sweep, way: str, invokes: Any, cell: Any) -> dict[str, Any]:
    if way == "invokes":
        return by_layer(sweep, invokes)
    return by_layer(sweep, lambda layer: torch.stack([cell(layer, column) for column in sweep.positions]))


def generate(model: Any, args: Mapping[str, Any]) -> Work:
    ids, vector = torch.tensor([args["ids"]]), torch.tensor(args["vector"])
    steps, layer = args["tokens"], args["layer"]
    model.pipeline.model.generation_config.eos_token_id = None

    def work() -> dict[str, Any]:
        with model.generate(ids, max_new_tokens=steps, do_sample=False) as tracer:
            for _ in tracer.iter[:steps]:
                model.model.layers[layer].output[:] += vector
            new = tracer.result.save()
        return {"ids": new[0, ids.shape[1] :]}

    return work


if __name__ == "__main__":
    tasks = {"forward": forward, "residual_sweep": residual_sweep, "head_sweep": head_sweep, "generate": generate}
    serve(open_model, tasks, "nnsight")
