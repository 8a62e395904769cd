"""Mechanome, by its public interface and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import mechanome as mn
from benchmarks.engines.common import POINTS, Sweep, load, sample, start
from benchmarks.harness.serve import Work, serve


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    return mn.load(settings["folder"] if settings["layers"] is None else load(settings))


def forward(model: Any, args: Mapping[str, Any]) -> Work:
    ids = torch.tensor(args["ids"])
    capture = [f"{point}.*" for point in POINTS] if args["capture"] else []

    def work() -> Any:
        run = model.run(ids, capture=capture)
        if not capture:
            return {"logits": run.logits[:, -1]}
        layers = range(model.n_layers)
        return lambda: {
            "logits": run.logits[:, -1],
            **sample({point: [run[f"{point}.{layer}"] for layer in layers] for point in POINTS}, args["stride"]),
        }

    return work


def residual_sweep(model: Any, args: Mapping[str, Any]) -> Work:
    return _sweep(model, Sweep.of(args, model.n_layers), "resid_pre")


def head_sweep(model: Any, args: Mapping[str, Any]) -> Work:
    return _sweep(model, Sweep.of(args, model.n_layers, model.config.num_attention_heads), "z")


def _sweep(model: Any, sweep: Sweep, point: str) -> Work:
    metric = mn.LogitDiff(sweep.answer, sweep.foil)
    layers = None if sweep.whole else sweep.layers

    def work() -> dict[str, Any]:
        found = mn.activation_patching(model, sweep.clean, sweep.corrupted, point, metric, layers=layers, quiet=True)
        return sweep.grid(found.values[0][:, list(sweep.positions)])

    return work


def generate(model: Any, args: Mapping[str, Any]) -> Work:
    ids = torch.tensor([args["ids"]])
    edits = [mn.Add(f"resid_post.{args['layer']}", torch.tensor(args["vector"]))]

    def work() -> dict[str, Any]:
        made = model.generate(ids, max_new_tokens=args["tokens"], edits=edits, eos=None)
        return {"ids": torch.tensor(made.tokens[0])}

    return work


if __name__ == "__main__":
    tasks = {"forward": forward, "residual_sweep": residual_sweep, "head_sweep": head_sweep, "generate": generate}
    serve(open_model, tasks, "mechanome")
