"""Models whose MLPs are cut into units, and the same cut by hand into the reference of `masked_forward`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from circuit_models import opened
from masked_forward import FAMILIES, Parts
from torch import Tensor, nn

from mechanome.circuits import Graph
from mechanome.engine import Basis, Neurons, SingularVectors


class Latents(nn.Module):
    """A small sparse autoencoder: rectified, with biases on both sides, far from reconstructing anything."""

    def __init__(self, width: int, latents: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        into, out = torch.randn(2, width, latents, generator=generator) / width**0.5
        self.into, self.out = nn.Parameter(into, requires_grad=False), nn.Parameter(out.T, requires_grad=False)
        self.before = nn.Parameter(0.2 * torch.randn(width, generator=generator), requires_grad=False)
        self.bias = nn.Parameter(0.2 * torch.randn(latents, generator=generator), requires_grad=False)

    def encode(self, x: Tensor) -> Tensor:
        return ((x - self.before) @ self.into + self.bias).relu()

    def decode(self, c: Tensor) -> Tensor:
        return c @ self.out + self.before


@dataclass(frozen=True)
class MLP:
    """An MLP's pieces: from its input to its neurons, and its output weights `[neuron, d_model]` and bias."""

    acts: Callable[[Tensor], Tensor]
    out: Tensor
    bias: Tensor


def constant_factor(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An activation function as its input times a constant."""
    return lambda x: x * (act(x) / x).detach()


def halved(a: Tensor, b: Tensor) -> Tensor:
    """A product that passes half of its gradient to each factor."""
    return (a * b).detach() + 0.5 * (a * b - (a * b).detach())


def mlps(name: str, linear: bool = False) -> list[MLP]:
    """The MLPs of a model, as they are or as RelP has them."""
    module: Any = opened(name).module
    act = constant_factor if linear else lambda function: function
    product = halved if linear else torch.mul
    if name == "gpt2":
        return [MLP(lambda x, m=h.mlp: act(m.act)(m.c_fc(x)), h.mlp.c_proj.weight, h.mlp.c_proj.bias)
                for h in module.transformer.h]  # fmt: skip
    if name == "llama":
        return [MLP(lambda x, m=h.mlp: product(act(m.act_fn)(m.gate_proj(x)), m.up_proj(x)), h.mlp.down_proj.weight.T,
                    h.mlp.down_proj.bias) for h in module.model.layers]  # fmt: skip
    if name == "gpt_neox":
        return [MLP(lambda x, m=h.mlp: act(m.act)(m.dense_h_to_4h(x)), h.mlp.dense_4h_to_h.weight.T,
                    h.mlp.dense_4h_to_h.bias) for h in module.gpt_neox.layers]  # fmt: skip
    return [MLP(h.intermediate, h.output.dense.weight.T, h.output.dense.bias) for h in module.bert.encoder.layer]


@cache
def bases(name: str) -> dict[str, Basis]:
    """A few neurons of the first MLP, latents of what the second writes, four singular units of the third."""
    outs = [m.out for m in mlps(name)]
    return {
        "mlp_act.0": Neurons([3, 8, 20], len(outs[0])),
        "mlp_out.1": Latents(outs[1].shape[1], 5),
        "mlp_act.2": SingularVectors(outs[2], k=4),
    }


@cache
def graph_of(name: str) -> Graph:
    return Graph.of(opened(name), units=bases(name))


@cache
def whole_graph_of(name: str) -> Graph:
    return Graph.of(opened(name))


@cache
def neurons_of(name: str, units: str = "neurons") -> Graph:
    return Graph.of(opened(name), units=units)


def scaled(norm: Any) -> Callable[[Tensor], Tensor]:
    """A norm with a constant scale."""
    centered = isinstance(norm, nn.LayerNorm)
    eps = norm.eps if centered else norm.variance_epsilon

    def linear(x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if centered else x
        y = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt().detach() * norm.weight
        return y + norm.bias if centered else y

    return linear


def linear_parts_of(name: str) -> Parts:
    """The same network as RelP has it: linear but for the products in its MLPs."""
    module: Any = opened(name).module
    last, head = {
        "gpt2": lambda: (module.transformer.ln_f, module.lm_head),
        "llama": lambda: (module.model.norm, module.lm_head),
        "gpt_neox": lambda: (module.gpt_neox.final_layer_norm, module.lm_head),
    }[name]()
    parts = parts_of(name, True)
    blocks = [replace(b, norm1=scaled(b.norm1), norm2=scaled(b.norm2)) for b in parts.blocks]
    return replace(parts, blocks=blocks, unembed=lambda x: head(scaled(last)(x)), frozen=True)


@cache
def parts_of(name: str, linear: bool = False) -> Parts:
    """The reference with its MLPs cut as `bases` says, without the library's help."""
    parts, (first, second, third) = FAMILIES[name](opened(name).module), mlps(name, linear)

    def neurons(x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        h = first.acts(x)
        found = {f"mlp_act.0.n{i}": h[..., i : i + 1] * first.out[i] for i in (3, 8, 20)}
        others = [i for i in range(h.shape[-1]) if i not in (3, 8, 20)]
        return found | {"mlp_act.0.rest": h[..., others] @ first.out[others]}, first.bias

    def latents(x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        y, basis = second.acts(x) @ second.out + second.bias, bases(name)["mlp_out.1"]
        assert isinstance(basis, Latents)
        c = ((y - basis.before) @ basis.into + basis.bias).clamp(min=0)
        found = {f"mlp_out.1.u{i}": c[..., i : i + 1] * basis.out[i] for i in range(5)}
        return found | {"mlp_out.1.rest": y - sum(found.values()) - basis.before}, basis.before

    def singular(x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        h = third.acts(x)
        left, values, right = torch.linalg.svd(third.out, full_matrices=False)
        found = {f"mlp_act.2.u{i}": (h @ left[:, i : i + 1]) * values[i] * right[i] for i in range(4)}
        return found | {"mlp_act.2.rest": h @ third.out - sum(found.values())}, third.bias

    blocks = [replace(block, pieces=cut) for block, cut in zip(parts.blocks, (neurons, latents, singular))]
    return replace(parts, blocks=blocks)
