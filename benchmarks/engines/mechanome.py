"""Mechanome, by its public interface and defaults; beside it, in the same process, the plain model.

Two processes lie differently in memory, which alone moves a forward pass by 2 %. What an open model costs is less, so
it is measured against modules in the same process that were never opened and hold the very same weight tensors; rounds
take turns on several of either kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import nn

import mechanome as mn
from benchmarks.engines import hugging_face
from benchmarks.engines.common import POINTS, Sweep, load, sample, start
from benchmarks.harness.serve import Work, serve


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    return mn.load(settings["folder"] if settings["layers"] is None else load(settings))


@cache
def twin(model: mn.Model, number: int) -> nn.Module:
    """A plain module with the weight tensors of an opened one; each number is a module of its own."""
    config = deepcopy(model.config)
    config._attn_implementation = "sdpa"
    plain = type(model.module)(config).eval()
    plain.load_state_dict(model.module.state_dict(), assign=True)
    return plain


@cache
def opened(model: mn.Model, number: int) -> mn.Model:
    """The model once more, as modules of its own; number 0 is the model itself."""
    return mn.load(twin(model, -number)) if number else model


def forward(model: Any, args: Mapping[str, Any]) -> Work:
    model = opened(model, args.get("copy", 0))
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


def plain_forward(model: Any, args: Mapping[str, Any]) -> Work:
    """What `forward` is compared with; with `others`, by plain modules that are not those of a request without."""
    return hugging_face.forward(twin(model, args["copy"] + (100 if args.get("others") else 0)), args)


def plain_generate(model: Any, args: Mapping[str, Any]) -> Work:
    """What `generate` is compared with."""
    return hugging_face.generate(twin(model, args["copy"]), args)


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
    model = opened(model, args.get("copy", 0))
    ids = torch.tensor([args["ids"]])
    edits = [mn.Add(f"resid_post.{args['layer']}", torch.tensor(args["vector"]))]

    def work() -> dict[str, Any]:
        made = model.generate(ids, max_new_tokens=args["tokens"], edits=edits, eos=None)
        return {"ids": torch.tensor(made.tokens[0])}

    return work


if __name__ == "__main__":
    tasks = {
        "forward": forward,
        "plain_forward": plain_forward,
        "plain_generate": plain_generate,
        "residual_sweep": residual_sweep,
        "head_sweep": head_sweep,
        "generate": generate,
    }
    serve(open_model, tasks, "mechanome")
