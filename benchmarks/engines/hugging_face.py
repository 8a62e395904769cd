"""The plain model, and what a careful user writes around it with forward hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.engines.common import Sweep, by_layer, load, start
from benchmarks.harness.serve import Work, serve


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    return load(settings)


def forward(model: Any, args: Mapping[str, Any]) -> Work:
    ids = torch.tensor(args["ids"])
    return lambda: {"logits": model(input_ids=ids, use_cache=False).logits[:, -1]}


def residual_sweep(model: Any, args: Mapping[str, Any]) -> Work:
    """`way="cells"`: one forward a cell. `way="rows"`: one forward a layer, a batch row for each position."""
    sweep = Sweep.of(args, len(model.model.layers))
    return lambda: _sweep(model, sweep, args["way"], list(model.model.layers), head=None)


def head_sweep(model: Any, args: Mapping[str, Any]) -> Work:
    """As `residual_sweep`, at the input of each output projection, one head at all positions a cell."""
    sweep = Sweep.of(args, len(model.model.layers), model.config.num_attention_heads)
    head = model.config.head_dim
    return lambda: _sweep(model, sweep, args["way"], [b.self_attn.o_proj for b in model.model.layers], head)


def _sweep(model: Any, sweep: Sweep, way: str, modules: list[Any], head: int | None) -> dict[str, Any]:
    kept: dict[int, torch.Tensor] = {}

    def keep(layer: int) -> Any:
        return lambda module, inputs: kept.__setitem__(layer, inputs[0])

    handles = [modules[i].register_forward_pre_hook(keep(i)) for i in sweep.layers]
    model(input_ids=sweep.clean, use_cache=False, logits_to_keep=1)
    for handle in handles:
        handle.remove()

    def patched(layer: int, columns: tuple[int, ...]) -> torch.Tensor:
        """One forward: row i has column i of this layer patched; the metric of each row."""

        def patch(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            stream = inputs[0].clone()
            for row, column in enumerate(columns):
                if head is None:
                    stream[row, column] = kept[layer][0, column]
                else:
                    part = slice(column * head, (column + 1) * head)
                    stream[row, :, part] = kept[layer][0, :, part]
            return (stream, *inputs[1:])

        handle = modules[layer].register_forward_pre_hook(patch)
        try:
            ids = sweep.corrupted.expand(len(columns), -1)
            return sweep.metric(model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1])
        finally:
            handle.remove()

    if way == "rows":
        return by_layer(sweep, lambda layer: patched(layer, sweep.positions))
    return by_layer(sweep, lambda layer: torch.cat([patched(layer, (column,)) for column in sweep.positions]))


def generate(model: Any, args: Mapping[str, Any]) -> Work:
    """Greedy, exactly `tokens` new tokens; a `vector` is added to the output of block `layer` at every step."""
    ids = torch.tensor([args["ids"]])
    vectors = [] if args["vector"] is None else [torch.tensor(args["vector"])]
    model.generation_config.eos_token_id = None

    def adding(vector: torch.Tensor) -> Any:
        return lambda module, inputs, output: output + vector

    def work() -> dict[str, Any]:
        handles = [model.model.layers[args["layer"]].register_forward_hook(adding(v)) for v in vectors]
        new = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args["tokens"], do_sample=False)
        for handle in handles:
            handle.remove()
        return {"ids": new[0, ids.shape[1] :]}

    return work


if __name__ == "__main__":
    tasks = {"forward": forward, "residual_sweep": residual_sweep, "head_sweep": head_sweep, "generate": generate}
    serve(open_model, tasks, "transformers")
