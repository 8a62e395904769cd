"""TransformerLens 4: attribution patching, exact direct paths and faithfulness from its own tools.

Its attribution takes gradients at what it calls the corrupted input, so it gets the two inputs the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformer_lens import patching
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    Node,
    attribution_patch,
    faithfulness,
)

from benchmarks.circuit_engines.common import Layout, Pairs
from benchmarks.engines.transformer_lens import open_model
from benchmarks.harness.serve import Work, serve

_READERS = {"q_input": "q", "k_input": "k", "v_input": "v", "mlp_in": "mlp", "logits": "logits"}
_KINDS = {ours: theirs for theirs, ours in _READERS.items()}


def attribution(bridge: Any, args: Mapping[str, Any]) -> Work:
    """`attribution_patch`; `level` is "edge" or "node"."""
    pairs, layout = Pairs.of(args), Layout(bridge.cfg.n_layers, bridge.cfg.n_heads)
    config = EdgeAttributionConfig(granularity=args["level"])

    def arranged(found: Any) -> dict[str, Tensor]:
        edges, nodes = torch.zeros(layout.shape), torch.zeros(layout.shape[0])
        for (writer, reader), score in found.edge_scores.items():
            edges[_source(layout, writer), _target(layout, reader)] += score
        for node, score in found.node_scores.items():
            nodes[_source(layout, node)] += score
        return {args["level"]: edges if args["level"] == "edge" else nodes}

    def work() -> Any:
        # Their "clean" is what is patched in, their "corrupt" where gradients are taken.
        found = attribution_patch(bridge, pairs.corrupted, pairs.clean, _last(pairs), config)
        return lambda: arranged(found)

    return work


def exact(bridge: Any, args: Mapping[str, Any]) -> Work:
    """`get_act_patch_direct_path`: from one head into one input of all heads of later layers."""
    pairs, layout = Pairs.of(args), Layout(bridge.cfg.n_layers, bridge.cfg.n_heads)
    layer, head, component = args["layer"], args["head"], args["component"]

    def work() -> dict[str, Any]:
        name = f"blocks.{layer}.attn.hook_z"
        with torch.no_grad():
            logits, base = bridge.run_with_cache(pairs.clean, names_filter=[name])
            _, other = bridge.run_with_cache(pairs.corrupted, names_filter=[name])
            patched = patching.get_act_patch_direct_path(
                bridge,
                pairs.clean,
                other,
                base,
                lambda logits: pairs.metric(logits[:, -1]).mean(),
                src_layer=layer,
                src_head=head,
                component=component,
                verbose=False,
            )
        found = layout.matrix()
        for later in range(layer + 1, layout.layers):
            for reader in range(layout.heads):
                place = layout.source(layer, head), layout.target(component, later, reader)
                found[place] = patched[later, reader] - pairs.metric(logits[:, -1]).mean()
        return {"edge": found}

    return work


def evaluate(bridge: Any, args: Mapping[str, Any]) -> Work:
    """`faithfulness` of the circuits of the largest scores of a file; it takes one pair."""
    pairs, layout = Pairs.of(args), Layout(bridge.cfg.n_layers, bridge.cfg.n_heads)
    edges = layout.edges()
    ranked = np.abs(np.load(args["ranking"])["edge"][tuple(edges.T)])
    order = np.argsort(-ranked, kind="stable")
    chosen = [_circuit(layout, edges[order[:size]], pairs.clean.shape[1]) for size in args["sizes"]]

    def work() -> Any:
        found = [faithfulness(bridge, pairs.clean, pairs.corrupted, _last(pairs), circuit) for circuit in chosen]
        values = [[f.corrupt_metric + f.recovered * (f.full_metric - f.corrupt_metric)] for f in found]
        return {"circuit": torch.tensor(values)}

    return work


def _last(pairs: Pairs) -> Any:
    return lambda logits: pairs.metric(logits[0, -1])


def _source(layout: Layout, node: Any) -> int:
    return layout.source(node.layer, node.head)


def _target(layout: Layout, node: Any) -> int:
    return layout.target(_READERS[node.kind], node.layer or 0, node.head or 0)  # type: ignore[arg-type]


def _circuit(layout: Layout, edges: np.ndarray, width: int) -> list[tuple[Node, Node]]:
    """Edges at every position, as pairs of their nodes."""
    writers = [("embed", None, None)]
    for layer in range(layout.layers):
        writers += [*(("attn_head_out", layer, head) for head in range(layout.heads)), ("mlp_out", layer, None)]
    readers = [
        (_KINDS[kind], layer, head if kind in ("q", "k", "v") else None) for kind, layer, head in layout.targets()
    ]

    def node(parts: tuple[str, int | None, int | None], position: int) -> Node:
        kind, layer, head = parts
        return Node(kind=kind, position=position, layer=layer, head=head)  # type: ignore[arg-type]

    return [(node(writers[s], p), node(readers[t], p)) for s, t in edges.tolist() for p in range(width)]


if __name__ == "__main__":
    serve(open_model, {"attribution": attribution, "exact": exact, "evaluate": evaluate}, "transformer-lens")
