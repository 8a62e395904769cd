"""Circuits in files: Mechanome's own JSON, and the graph JSON of EAP-IG (Hanna et al. 2024), both ways.

EAP-IG knows one key and one value reader per query head. For a model with grouped heads each of our readers is written
as equal readers, one for every head of the group, its score shared out among them. Reading adds the scores up and takes
an edge where all readers of the group agree; where they do not, no circuit of ours is the same, and `merge` decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.given import given
from mechanome.circuits.graph import Graph
from mechanome.circuits.layers import Layer
from mechanome.circuits.units import Units
from mechanome.core import BadInput, CorruptFile, ShapeMismatch, read_json, write_json
from mechanome.core.errors import MechanomeError
from mechanome.engine.families import Style

FORMAT, VERSION = "circuit", 1
Merge = Literal["refuse", "any", "all"]


def save_circuit(circuit: Circuit, path: str | os.PathLike[str], *, scores: Tensor | None = None) -> None:
    """Write a circuit as JSON: the shape of its graph, fingerprints of the bases of units, and the names of its edges.

    Args:
        circuit: what is written.
        path: where to.
        scores: `[source, target]`; those of the circuit's edges are written beside them.

    Raises:
        ShapeMismatch: scores of another shape. NotFinite: an edge without a score.
    """
    graph = circuit.graph
    if scores is not None:
        _check_shape(scores, graph)
    pairs = circuit.edges.nonzero().tolist()
    write_json(
        path,
        {
            "format": FORMAT,
            "version": VERSION,
            "model": None if graph.model is None else graph.model.name,
            "tower": graph.tower,
            "layers": [_row(layer) for layer in graph.layers],
            "edges": [graph.name(i, j) for i, j in pairs],
            "scores": None if scores is None else [float(scores[i, j]) for i, j in pairs],
        },
    )


def load_circuit(path: str | os.PathLike[str], graph: Graph | None = None) -> Circuit:
    """Read what `save_circuit` wrote.

    Args:
        path: the file.
        graph: what it must belong to; None takes the graph from the file, without a model.

    Raises:
        BadInput: no such file, or a circuit of another graph.
        CorruptFile: damaged, of another format, or with edges its graph does not have.
    """
    found = read_json(path)
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        raise CorruptFile(f"{path}", "it is no circuit file", "load_eap_ig reads EAP-IG's graphs")
    if found.get("version") != VERSION:
        raise CorruptFile(f"{path}", f"it is of version {found.get('version')}", f"this program reads {VERSION}")
    try:
        own = Graph(tuple(_layer(row) for row in found["layers"]), found["tower"])
        circuit = Circuit.of(own, found["edges"])
        if not isinstance(found["edges"], list) or len(circuit) != len(found["edges"]):
            raise ValueError("its edges are no list of different names")
    except (KeyError, TypeError, AttributeError, ValueError, MechanomeError) as error:
        why = f"{error.what}: {error.why}" if isinstance(error, MechanomeError) else error
        raise CorruptFile(f"{path}", f"its content does not fit together ({why})", "write it again") from error
    if graph is None:
        return circuit
    if graph != own:
        raise BadInput(f"{path}", f"it is a circuit of another graph, {own!r}", f"give one of {graph!r}")
    return Circuit(graph, circuit.edges)


def _check_shape(scores: Tensor, graph: Graph) -> None:
    given("scores=", scores, Tensor)
    if tuple(scores.shape) != graph.shape:
        raise ShapeMismatch(f"scores of shape {list(scores.shape)}", f"the graph is {list(graph.shape)}", "transpose?")


def _row(layer: Layer) -> list[Any]:
    """A layer as plain data, with what its MLP is cut into at the end where it is."""
    row: list[Any] = [layer.heads, layer.kv, layer.mlp, layer.style]
    return row if layer.units is None else [*row, layer.units.record()]


def _layer(row: list[Any]) -> Layer:
    heads, kv, mlp, style, *cut = row
    if style not in get_args(Style) or not isinstance(mlp, bool):
        raise ValueError(f"no layer is {row[:4]}")
    units = [Units.read(record) for record in cut]
    if len(units) > 1:
        raise ValueError("a layer with more parts than there are")
    return Layer(heads, kv, mlp, style, units[0] if units else None)


def save_eap_ig(
    circuit: Circuit, path: str | os.PathLike[str], *, scores: Tensor | None = None, d_model: int | None = None
) -> None:
    """Write the graph JSON of EAP-IG (`eap.graph.Graph.from_json` reads it).

    Args:
        circuit: what is in the graph.
        path: where to.
        scores: `[source, target]` of all edges; without them every score is 0.
        d_model: width of the stream, which the file states; taken from the model where the graph has one.

    Raises:
        BadInput: layers that differ, which the format cannot say; no `d_model`.
    """
    graph = circuit.graph
    first, config = _uniform(graph), graph.model.config if graph.model is not None else None
    d_model = d_model or getattr(config, "hidden_size", None) or getattr(config, "n_embd", None)
    if d_model is None:
        raise BadInput("a graph without a model", "the file states the width of the stream", "give d_model=")
    values = torch.zeros(graph.shape) if scores is None else scores
    _check_shape(values, graph)
    edges: dict[str, Any] = {}
    for j, names in enumerate(_targets(graph)):
        for i in graph.mask[:, j].nonzero()[:, 0].tolist():
            value = {"score": float(values[i, j]) / len(names), "in_graph": bool(circuit.edges[i, j])}
            edges |= {f"{_source(graph, i)}->{name}": value for name in names}
    used = circuit.used.tolist()
    nodes = {_source(graph, i): {"in_graph": used[i]} for i in range(len(used))}
    settings = {
        "n_layers": len(graph.layers),
        "n_heads": first.heads,
        "parallel_attn_mlp": first.style == "parallel",
        "d_model": int(d_model),
    }
    write_json(path, {"cfg": settings, "nodes": nodes | {"logits": {"in_graph": True}}, "edges": edges})


def load_eap_ig(path: str | os.PathLike[str], graph: Graph, *, merge: Merge = "refuse") -> tuple[Circuit, Tensor]:
    """Read the graph JSON of EAP-IG.

    Args:
        path: the file.
        graph: the graph of the same model.
        merge: what becomes of an edge into a key or value reader that the file has for some heads of a group only:
            "refuse", or it is in the circuit if "any" or "all" of them are.

    Returns:
        the circuit and the scores `[source, target]`, 0 where there is no edge.

    Raises:
        BadInput: no such file, a graph of another shape, or heads of a group that disagree.
        CorruptFile: damaged, or an edge is missing.
    """
    if merge not in ("refuse", "any", "all"):
        raise BadInput(f"merge={merge!r}", "there is no such choice", "use 'refuse', 'any' or 'all'")
    first, found = _uniform(graph), read_json(path)
    try:
        shape = found["cfg"]["n_layers"], found["cfg"]["n_heads"], bool(found["cfg"]["parallel_attn_mlp"])
        listed = found["edges"]
        known = {name: (_yes(e["in_graph"]), float(e["score"])) for name, e in listed.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptFile(f"{path}", f"it is no graph of EAP-IG ({error})", "write it again") from error
    if shape != (len(graph.layers), first.heads, first.style == "parallel"):
        raise BadInput(f"{path}", f"it has {shape[0]} layers of {shape[1]} heads", f"it does not fit {graph!r}")
    edges, scores = torch.zeros_like(graph.mask), torch.zeros(graph.shape)
    for j, names in enumerate(_targets(graph)):
        for i in graph.mask[:, j].nonzero()[:, 0].tolist():
            asked = [f"{_source(graph, i)}->{name}" for name in names]
            if lost := [name for name in asked if name not in known]:
                raise CorruptFile(f"{path}", f"edge {lost[0]} is missing", "write it again")
            inside = [known[name][0] for name in asked]
            if merge == "refuse" and len(set(inside)) > 1:
                raise BadInput(
                    f"edge {graph.name(i, j)}",
                    f"the file has it for {sum(inside)} of the {len(inside)} heads that share this reader",
                    "give merge='any' or merge='all'",
                )
            edges[i, j] = all(inside) if merge == "all" else any(inside)
            scores[i, j] = sum(known[name][1] for name in asked)
    return Circuit(graph, edges), scores


def _yes(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"in_graph is {value!r}")
    return bool(value)


def _uniform(graph: Graph) -> Layer:
    """The shape of all layers.

    Raises:
        BadInput: they differ, lack attention or an MLP, or have an MLP cut into units.
    """
    first = graph.layers[0]
    if any(layer.units is not None for layer in graph.layers):
        raise BadInput("this graph in EAP-IG's format", "its MLPs are cut into units", "use save_circuit")
    if any(layer != first for layer in graph.layers) or not first.heads or not first.mlp:
        raise BadInput("this graph in EAP-IG's format", "its layers differ or lack a part", "use save_circuit")
    return first


def _source(graph: Graph, index: int) -> str:
    group = next(g for g in graph.writers if g.first <= index < g.first + g.count)
    return {"embedding": "input", "mlp": f"m{group.layer}"}.get(group.kind, f"a{group.layer}.h{index - group.first}")


def _targets(graph: Graph) -> Iterator[list[str]]:
    """Per target, the names that EAP-IG gives it: one for each head that shares it."""
    for group in graph.readers:
        for i in range(group.count):
            if group.kind == "logits":
                yield ["logits"]
            elif group.kind == "mlp_in":
                yield [f"m{group.layer}"]
            else:
                assert group.layer is not None
                shared = graph.layers[group.layer].heads // group.count
                yield [f"a{group.layer}.h{h}<{group.kind}>" for h in range(i * shared, (i + 1) * shared)]
