"""Tiny models that the tests of circuits share, and pairs of prompts for them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import mechanome as mn
from custom_modules import VOCAB
from families import FAMILIES, build
from mechanome.circuits import Circuit, Graph

METRIC = mn.LogitDiff(5, 7)


@cache
def opened(name: str) -> mn.Model:
    """A family's model with frozen weights, shared by all tests, none of which may change it."""
    module = build(name).requires_grad_(False)
    settings: dict[str, Any] = {}
    if FAMILIES[name].kind == "custom":
        settings = {"layout": mn.Layout("blocks", feature_map=True, additive=False, unembed="fc"),
                    "example": FAMILIES[name].inputs(module, 9)}  # fmt: skip
    return mn.load(module, **settings)


def pair(rows: int = 2, length: int = 6, where: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two batches of ids that differ from position `where` on, `[row, pos]`."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(4, min(VOCAB, 90), (rows, length), generator=generator)
    other = clean.clone()
    other[:, where] = (clean[:, where] + 11) % 80 + 6
    return clean, other


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest value of `b`."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))


def images() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Two batches of two images."""
    generator = torch.Generator().manual_seed(0)
    return tuple({"pixel_values": torch.randn(2, 3, 12, 12, generator=generator)} for _ in range(2))  # type: ignore


def random_circuits(graph: Graph, *densities: float, seed: int = 0) -> list[Circuit]:
    """One of each density."""
    generator = torch.Generator().manual_seed(seed)
    return [Circuit(graph, graph.mask & (torch.rand(graph.shape, generator=generator) < d)) for d in densities]
