"""Mechanome's circuits, by their public interface and defaults; beside them, in the same process, the plain model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import mechanome as mn
from benchmarks.circuit_engines.common import Pairs, alphas, start
from benchmarks.engines.common import load
from benchmarks.engines.mechanome import twin
from benchmarks.harness.serve import Work, serve
from mechanome import circuits
from mechanome.circuits.search import acdc


def open_model(settings: Mapping[str, Any]) -> Any:
    start(settings)
    return mn.load(load(settings))


def plain_forward(model: mn.Model, args: Mapping[str, Any]) -> Work:
    """One forward pass of the clean inputs by a plain module with the same weight tensors: SDPA, all logits."""
    plain, pairs = twin(model, 0), Pairs.of(args)

    def work() -> dict[str, Any]:
        with torch.no_grad():
            return {"clean": pairs.metric(plain(input_ids=pairs.clean, use_cache=False).logits[:, -1])}

    return work


def scores(model: mn.Model, args: Mapping[str, Any]) -> Work:
    """`how` goes to `circuits.scores`; `edges` limits exact scores to some edges, `[[source, target]]`."""
    graph, pairs = circuits.Graph.of(model), Pairs.of(args)
    only = circuits.Circuit(graph, _chosen(graph, args["edges"])) if "edges" in args else None
    metric = mn.LogitDiff(pairs.answer, pairs.foil)

    def work() -> Any:
        found = circuits.scores(graph, (pairs.clean, pairs.corrupted), metric, only=only, quiet=True, **args["how"])
        return lambda: {"clean": found.clean, found.level: found.values}

    return work


def mask_gradients(model: mn.Model, args: Mapping[str, Any]) -> Work:
    """The sum, over points, of the metric's gradient by how much of every edge is kept, all edges at that point."""
    graph, pairs = circuits.Graph.of(model), Pairs.of(args)
    metric = mn.LogitDiff(pairs.answer, pairs.foil)

    def work() -> dict[str, Any]:
        ready = circuits.Prepared.of(graph, (pairs.clean, pairs.corrupted), metric)
        total = torch.zeros(graph.shape)
        for part in ready.parts():
            for alpha in alphas(args["steps"]):
                kept = (graph.mask * (1 - alpha))[None].requires_grad_()
                ready.measured(ready.logits(kept, part), part).sum().backward()
                assert kept.grad is not None
                total -= kept.grad[0] * graph.mask / len(pairs.clean)
        return {"edge": total}

    return work


def evaluate(model: mn.Model, args: Mapping[str, Any]) -> Work:
    """Circuits of the largest scores of a file, one for each of `sizes`."""
    graph, pairs = circuits.Graph.of(model), Pairs.of(args)
    metric = mn.LogitDiff(pairs.answer, pairs.foil)
    ranked = np.load(args["ranking"])["edge"]
    order = torch.tensor(np.abs(ranked[graph.mask.numpy()])).argsort(descending=True, stable=True)
    places = graph.mask.nonzero()[order]
    chosen = [circuits.Circuit(graph, _chosen(graph, places[:size].tolist())) for size in args["sizes"]]

    def work() -> Any:
        data = pairs.clean, pairs.corrupted
        found = circuits.execute(chosen, data, metric, method=args["method"], quiet=True)
        return lambda: {"circuit": found.values, "clean": found.clean, "note": _methods(found.methods)}

    return work


def search(model: mn.Model, args: Mapping[str, Any]) -> Work:
    """ACDC by the divergence from the model; the circuit as 1 and 0."""
    graph, pairs = circuits.Graph.of(model), Pairs.of(args)
    metric, settings = mn.LogitDiff(pairs.answer, pairs.foil), {"speculate": args["speculate"], "prune": False}

    def work() -> Any:
        data = pairs.clean, pairs.corrupted
        found = acdc(graph, data, metric, threshold=args["threshold"], quiet=True, **settings)
        return lambda: {"kept": found.circuit.edges.float(), "note": repr(found.history)}

    return work


def _methods(methods: tuple[str, ...]) -> str:
    """How circuits were run, in words."""
    return ", ".join(f"{methods.count(name)} {name}" for name in dict.fromkeys(methods))


def _chosen(graph: circuits.Graph, edges: list[list[int]]) -> torch.Tensor:
    chosen = torch.zeros_like(graph.mask)
    chosen[tuple(torch.tensor(edges).T)] = True
    return chosen


if __name__ == "__main__":
    tasks = {
        "plain_forward": plain_forward,
        "scores": scores,
        "mask_gradients": mask_gradients,
        "evaluate": evaluate,
        "search": search,
    }
    serve(open_model, tasks, "mechanome")
