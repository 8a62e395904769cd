"""Certificates in files: what was counted, as JSON, from which every bound follows again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.certification.bounds import Level
from mechanome.circuits.certification.certificate import Certificate
from mechanome.circuits.effects import Components
from mechanome.circuits.graph import Graph
from mechanome.circuits.layers import Layer
from mechanome.core import BadInput, CorruptFile, read_json, write_json
from mechanome.core.errors import MechanomeError

FORMAT, VERSION = "certificate", 1


def save_certificate(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Write a certificate as JSON."""
    write_json(path, {"format": FORMAT, "version": VERSION, **record(certificate)})


def record(certificate: Certificate) -> dict[str, Any]:
    """A certificate as plain data; as there may be many components, booleans and counts are one text each."""
    components = certificate.components
    graph = components.graph
    return {
        "model": None if graph is None or graph.model is None else graph.model.name,
        "tower": None if graph is None else graph.tower,
        "layers": None if graph is None else [[x.heads, x.kv, x.mlp, x.style] for x in graph.layers],
        "shape": list(components.where.shape),
        "where": _text(components.where.flatten()),
        "names": list(components.names) if graph is None else [],
        "level": asdict(certificate.level),
        "examples": certificate.examples,
        "how": certificate.how,
        "notes": list(certificate.notes),
        "found": _text(certificate.found),
        "guess": _text(certificate.guess),
        "agree": " ".join(map(str, certificate.agree.tolist())),
    }


def load_certificate(path: str | os.PathLike[str], graph: Graph | None = None) -> Certificate:
    """Read what `save_certificate` wrote.

    Args:
        path: the file.
        graph: what it must belong to; None takes the graph from the file, without a model.

    Raises:
        BadInput: no such file, or a certificate of another graph. CorruptFile: damaged, or of another format.
    """
    read = read_json(path)
    if not isinstance(read, Mapping) or read.get("format") != FORMAT:
        raise CorruptFile(f"{path}", "it is no certificate", "write one with save_certificate")
    if read.get("version") != VERSION:
        raise CorruptFile(f"{path}", f"it is of version {read.get('version')}", f"this program reads {VERSION}")
    try:
        found = _restored(read)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, MechanomeError) as error:
        raise CorruptFile(f"{path}", f"its content does not fit together ({error})", "write it again") from error
    if graph is None:
        return found
    if graph != found.components.graph:
        raise BadInput(f"{path}", "it is a certificate of another graph", f"give one of {graph!r}")
    return replace(found, components=replace(found.components, graph=graph))


def _restored(read: Mapping[str, Any]) -> Certificate:
    layers = read["layers"]
    graph = None if layers is None else Graph(tuple(Layer(*row) for row in layers), read["tower"])
    where = _booleans(read["where"]).reshape(read["shape"])
    components = Components(where, graph, tuple(read["names"]))
    if graph is not None and tuple(where.shape) not in (graph.shape, graph.shape[:1]):
        raise ValueError("the graph has other components")
    if graph is not None and components.edges and bool((where & ~graph.mask).any()):
        raise ValueError("the graph has no such edges")
    found, guess = _booleans(read["found"]), _booleans(read["guess"])
    agree, level = torch.tensor([int(n) for n in read["agree"].split()]), Level(**read["level"])
    if not len(components) == len(found) == len(guess) == len(agree):
        raise ValueError("its lists have different lengths")
    if components.names and len(components.names) != len(components):
        raise ValueError("it has not one name for each component")
    if not bool(((agree >= 0) & (agree <= level.n)).all()):
        raise ValueError("there are more votes than masks")
    return Certificate(components, level, read["examples"], found, guess, agree, read["how"], tuple(read["notes"]))


def _text(flags: Tensor) -> str:
    return "".join("1" if flag else "0" for flag in flags.tolist())


def _booleans(text: str) -> Tensor:
    if set(text) - {"0", "1"}:
        raise ValueError("flags are neither 0 nor 1")
    return torch.tensor([flag == "1" for flag in text], dtype=torch.bool)
