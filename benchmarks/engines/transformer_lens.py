"""TransformerLens 4: the bridge as booted (raw weights), its own `patching` module, gradients off.

Compatibility mode, with or without weight processing, was timed and does not change the cost of a forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge

from benchmarks.engines.common import Sweep, load, sample, start, tokenizer
from benchmarks.harness.serve import Work, serve

_NAMES = {
    "resid_pre": "blocks.{}.hook_resid_pre",
    "resid_mid": "blocks.{}.hook_resid_mid",
    "resid_post": "blocks.{}.hook_resid_post",
    "z": "blocks.{}.attn.hook_z",
    "mlp_act": "blocks.{}.mlp.hook_post",
}


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    bridge = TransformerBridge.boot_transformers(
        settings["folder"], hf_model=load(settings), tokenizer=tokenizer(settings), device="cpu"
    )
    return bridge.eval()


def forward(bridge: Any, args: Mapping[str, Any]) -> Work:
    """All captures go through `run_with_cache` with a filter by name, the documented way to keep a subset."""
    ids = torch.tensor(args["ids"])
    layers = range(bridge.cfg.n_layers)
    names = [name.format(layer) for name in _NAMES.values() for layer in layers]

    def work() -> Any:
        if not args["capture"]:
            return {"logits": bridge(ids)[:, -1]}
        logits, cache = bridge.run_with_cache(ids, names_filter=names)
        kept = {point: [cache[name.format(layer)] for layer in layers] for point, name in _NAMES.items()}
        return lambda: {"logits": logits[:, -1], **sample(kept, args["stride"])}

    return work


def residual_sweep(bridge: Any, args: Mapping[str, Any]) -> Work:
    """`way="cells"`: `get_act_patch_resid_pre`. `way="rows"`: its general form, a batch row for each position."""
    sweep = Sweep.of(args, bridge.cfg.n_layers)

    def rows(act: Tensor, index: Any, clean: Tensor) -> Tensor:
        columns = torch.tensor(sweep.positions)
        act[torch.arange(len(columns)), columns] = clean[0, columns]
        return act

    def cells(*request: Any) -> Tensor:
        if sweep.whole:
            return patching.get_act_patch_resid_pre(*request)
        table = pd.DataFrame([(i, p) for i in sweep.layers for p in sweep.positions], columns=["layer", "pos"])
        return patching.generic_activation_patch(*request, patching.layer_pos_patch_setter, "resid_pre", index_df=table)

    return lambda: _sweep(bridge, sweep, args["way"], "resid_pre", cells, rows)


def head_sweep(bridge: Any, args: Mapping[str, Any]) -> Work:
    """`way="cells"`: `get_act_patch_attn_head_out_all_pos`. `way="rows"`: a batch row for each head."""
    sweep = Sweep.of(args, bridge.cfg.n_layers, bridge.cfg.n_heads)

    def rows(act: Tensor, index: Any, clean: Tensor) -> Tensor:
        heads = torch.tensor(sweep.positions)
        act[torch.arange(len(heads)), :, heads] = clean[0].transpose(0, 1)[heads]
        return act

    def cells(*request: Any) -> Tensor:
        if sweep.whole:
            return patching.get_act_patch_attn_head_out_all_pos(*request)
        table = pd.DataFrame([(i, h) for i in sweep.layers for h in sweep.positions], columns=["layer", "head"])
        return patching.generic_activation_patch(*request, patching.layer_head_vector_patch_setter, "z", index_df=table)

    return lambda: _sweep(bridge, sweep, args["way"], "z", cells, rows)


def _sweep(bridge: Any, sweep: Sweep, way: str, point: str, cells: Any, rows: Any) -> dict[str, Any]:
    names = [_NAMES[point].format(layer) for layer in sweep.layers]
    _, cache = bridge.run_with_cache(sweep.clean, names_filter=names)
    if way == "cells":
        return sweep.grid(cells(bridge, sweep.corrupted, cache, lambda logits: sweep.metric(logits[0, -1])))
    result = patching.generic_activation_patch(
        bridge,
        sweep.corrupted.expand(len(sweep.positions), -1),
        cache,
        lambda logits: sweep.metric(logits[:, -1]),
        rows,
        point,
        index_df=pd.DataFrame({"layer": sweep.layers}),
        reduce="none",
    )
    return sweep.grid(result.values)


def generate(bridge: Any, args: Mapping[str, Any]) -> Work:
    ids, vector = torch.tensor([args["ids"]]), torch.tensor(args["vector"])
    name = _NAMES["resid_post"].format(args["layer"])

    def work() -> dict[str, Any]:
        with bridge.hooks(fwd_hooks=[(name, lambda act, hook: act + vector)]):
            new = bridge.generate(
                ids,
                max_new_tokens=args["tokens"],
                do_sample=False,
                stop_at_eos=False,
                return_type="tokens",
                verbose=False,
            )
        return {"ids": new[0, ids.shape[1] :]}

    return work


if __name__ == "__main__":
    tasks = {"forward": forward, "residual_sweep": residual_sweep, "head_sweep": head_sweep, "generate": generate}
    serve(open_model, tasks, "transformer-lens")
