"""Tiny models opened once for all tests of heads; none may be changed."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

import mechanome as mn
from families import build

IDS = torch.tensor([[11, 45, 23, 67, 31, 52, 71, 24]])
CAUSAL = ["gpt2", "llama", "mistral", "qwen3", "gemma2", "gpt_neox", "opt", "phi3", "gpt_oss", "deepseek_v3", "jamba"]
BOTH_WAYS = ["bert", "distilbert", "modernbert", "esm"]


@cache
def opened(name: str) -> mn.Model:
    return mn.load(build(name), check="off")


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference relative to the largest value of `b`."""
    if a.shape != b.shape:
        return float("inf")
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
