"""One parameter as the forward pass uses it: stored either way round, adapted, quantized, scaled or offset.

A module's matrix may be `[out, in]` (Linear) or `[in, out]` (GPT-2), wear an adapter, or be packed into four
bits; a norm's gain may be `w` or `1 + w`. `Stored` says what to do with the raw tensor so that
`scale * (tensor + offset)` is what the forward pass multiplies by; `Selection` cuts one head, one expert or one
part of a fused projection out of it, always as a view, so that reading, writing and masking are one thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mechanome.core.errors import NotServed
from mechanome.engine.architecture import Part

How = Literal["parameter", "merged", "dequantized", "computed"]


@dataclass(frozen=True)
class Stored:
    """A raw tensor, and how the forward pass uses it: `scale * (tensor + offset)`.

    Args:
        tensor: the tensor the module holds, detached; it shares memory with the parameter.
        name: the parameter's full name in the model.
        transposed: stored as `[..., out, in]`.
        offset: a number (norms that use `1 + w`) or a tensor of the same shape (the low-rank update of an adapter).
        scale: a factor (embeddings that are scaled inside their module).
        how: `parameter`: the tensor itself; `merged`: base plus adapter; `dequantized`: unpacked copy; `computed`: made
            on each access, by a parametrization or by an adapter alone.
    """

    tensor: Tensor
    name: str
    transposed: bool = False
    offset: Tensor | float = 0.0
    scale: float = 1.0
    how: How = "parameter"

    @property
    def writable(self) -> bool:
        """Whether changing `tensor` changes the model."""
        return self.how in ("parameter", "merged")


@dataclass(frozen=True)
class Selection:
    """Which part of a parameter a weight name means, and its axes; applied to any tensor of the parameter's shape.

    Args:
        transposed: swap the last two axes first, so that `x @ W` is the orientation.
        expert: index into the first axis of a stack of experts.
        axis: the axis that `start`, `stop`, `step` and `heads` are about: -1 for outputs, -2 for inputs.
        heads: number of heads along `axis`, 0 for none; they become the first axis.
        interleaved: each head holds its own query, key and value: `start` and `stop` count within a head.
        head: pick one head; the head axis goes away.
    """

    transposed: bool = False
    expert: int | None = None
    axis: int = -1
    start: int = 0
    stop: int | None = None
    step: int = 1
    heads: int = 0
    interleaved: bool = False
    head: int | None = None

    def view(self, raw: Tensor) -> Tensor:
        """The selected part of `raw` as a view, in the name's axes."""
        x = raw if self.expert is None else raw[self.expert]
        x = x.transpose(-1, -2) if self.transposed else x
        axis, part = x.dim() + self.axis, slice(self.start, self.stop, self.step)
        if not self.interleaved:
            x = x[(slice(None),) * axis + (part,)]
        if not self.heads:
            return x
        x = x.unflatten(axis, (self.heads, -1))
        if self.interleaved:
            x = x[(slice(None),) * (axis + 1) + (part,)]
        x = x.movedim(axis, 0)
        return x if self.head is None else x[self.head]


def matrix(part: Part) -> Stored:
    """The matrix of a projection, adapters included.

    Raises:
        NotServed: a kind of module, adapter or packing whose matrix is not known.
    """
    module, path, offset = _unwrapped(part, "weight")
    weight, how = _plain(module, "weight", path)
    if weight.dim() != 2:
        raise NotServed(
            f"the weight of {path}",
            f"{type(module).__name__} holds {weight.dim()} axes, not a matrix",
            "read the parameter with model.module.get_parameter",
        )
    return _stored(weight, f"{path}.weight", how, offset, transposed=not hasattr(module, "nf"))


def bias(part: Part) -> Stored:
    """The bias of a projection or norm.

    Raises:
        NotServed: there is none.
    """
    module, path, offset = _unwrapped(part, "bias")
    if getattr(module, "bias", None) is None:
        if offset is not None:  # only the adapter has one
            return Stored(torch.zeros_like(offset), f"{path}.bias", offset=offset, how="computed")
        raise NotServed(f"the bias of {path}", f"this {type(module).__name__} has none", "treat it as zero")
    value, how = _plain(module, "bias", path)
    return _stored(value, f"{path}.bias", how, offset)


def named(part: Part, attribute: str, transposed: bool = False) -> Stored:
    """A parameter that is an attribute of a module, such as a stack of experts or learned positions.

    Raises:
        NotServed: the module has no such parameter.
    """
    if not isinstance(getattr(part.module, attribute, None), Tensor):
        raise NotServed(
            f"{attribute} of {part.path}", f"{type(part.module).__name__} has no such parameter", "print(model.module)"
        )
    value, how = _plain(part.module, attribute, part.path)
    return _stored(value, f"{part.path}.{attribute}", how, None, transposed)


def embedding(part: Part) -> Stored:
    """The table of an embedding module, as its lookups come out: a scale inside the module is included."""
    stored = matrix(part)
    module = _unwrapped(part, "weight")[0]
    scale = 1.0
    if type(module) is not nn.Embedding:
        row = int(stored.tensor.abs().amax(-1).argmax())
        with torch.no_grad():
            out = type(module).forward(module, torch.tensor([[row]], device=stored.tensor.device))[0, 0]
        column = stored.tensor[row].abs().argmax()
        scale = float(out[column] / stored.tensor[row, column])
    return Stored(stored.tensor, stored.name, False, stored.offset, scale, stored.how)


def gain(part: Part) -> Stored:
    """The effective gain of a norm: what the normalized input is multiplied by.

    Whether that is `w` or `1 + w` is measured: the norm's own forward is called on a normalized vector.

    Raises:
        NotServed: the norm has no gain, or its gain is neither of the two.
    """
    module, path, _ = _unwrapped(part, "weight")
    if getattr(module, "weight", None) is None:
        raise NotServed(f"the gain of {path}", f"this {type(module).__name__} has none", "treat it as one")
    weight, how = _plain(module, "weight", path)
    shift = getattr(module, "bias", None)
    x = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    x = ((x - x.mean()) / x.std(correction=0)).to(weight)
    try:
        with torch.no_grad():
            out = type(module).forward(module, x).double()
    except (TypeError, RuntimeError) as error:
        raise NotServed(
            f"the gain of {path}",
            f"{type(module).__name__} cannot be called on one vector ({error})",
            "read the weight",
        ) from error
    out = out if shift is None else out - shift.detach().double()
    for offset in (0.0, 1.0):
        effective = weight.double() + offset
        if (out - x.double() * effective).abs().max() <= 0.02 * effective.abs().max().clamp(min=1.0):
            return Stored(weight, f"{path}.weight", offset=offset, how=how)
    raise NotServed(
        f"the gain of {path}", f"{type(module).__name__} multiplies by neither w nor 1 + w", "read the parameter"
    )


def effective_gain(norm: nn.Module) -> Tensor:
    """What a norm multiplies normalized input by, `[d]`, whatever its class stores; errors are those of `gain`."""
    stored = gain(Part(type(norm).__name__, norm))
    return stored.tensor.detach() + stored.offset


def epsilon(norm: nn.Module) -> float:
    """The small number a norm adds to the variance; 0 where it has none."""
    return next((float(v) for n in ("variance_epsilon", "eps") if (v := getattr(norm, n, None)) is not None), 0.0)


def _stored(tensor: Tensor, name: str, how: How, offset: Tensor | None, transposed: bool = False) -> Stored:
    if offset is None:
        return Stored(tensor, name, transposed, how=how)
    return Stored(tensor, name, transposed, offset.to(tensor), how="merged" if how == "parameter" else how)


def _unwrapped(part: Part, kind: Literal["weight", "bias"]) -> tuple[nn.Module, str, Tensor | None]:
    """The module inside adapter wrappers, its path, and what the active adapters add to its weight or bias."""
    module: Any = part.module
    path = part.path
    if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
        names = [] if module.disable_adapters else list(module.active_adapters)
        saved = next((n for n in names if n in module.modules_to_save), None)
        inner = "original_module" if saved is None else f"modules_to_save.{saved}"
        return module.get_submodule(inner), f"{path}.{inner}", None
    base = getattr(module, "base_layer", None)
    if not isinstance(base, nn.Module):
        return module, path, None
    if not hasattr(module, "lora_A"):
        raise NotServed(
            f"the {kind} of {path}",
            f"the effect of {type(module).__name__} is not one matrix",
            "merge the adapter first",
        )
    if getattr(module, "disable_adapters", False) or getattr(module, "merged", False):
        return base, f"{path}.base_layer", None
    deltas = [d for a in module.active_adapters if (d := _delta(module, a, kind, path)) is not None]
    total = sum(deltas[1:], deltas[0]).detach() if deltas else None
    return base, f"{path}.base_layer", total


def _delta(module: Any, adapter: str, kind: str, path: str) -> Tensor | None:
    if adapter not in module.lora_A and adapter not in getattr(module, "lora_embedding_A", {}):
        return None
    if getattr(module, "lora_variant", {}).get(adapter) is not None:
        variant = type(module.lora_variant[adapter]).__name__
        raise NotServed(
            f"the {kind} of {path}", f"{variant} is not a sum of base and low-rank update", "merge the adapter first"
        )
    if kind == "weight":
        return module.get_delta_weight(adapter)
    return module.lora_B[adapter].bias * module.scaling[adapter] if module.lora_bias.get(adapter) else None


def _plain(module: nn.Module, attribute: str, path: str) -> tuple[Tensor, How]:
    """The floating-point tensor of a module's attribute, unpacked where it is quantized."""
    value: Any = getattr(module, attribute, None)
    packing = type(value).__name__ if isinstance(value, Tensor) else type(module).__name__
    if isinstance(value, Tensor) and value.is_meta:
        raise NotServed(f"{path}.{attribute}", "it is offloaded, its values are not in memory", "load without offload")
    if type(value) in (Tensor, nn.Parameter) and value.is_floating_point() and not value.is_quantized:
        registered = module._parameters.get(attribute) is value
        return value.detach(), "parameter" if registered else "computed"
    if packing in ("Params4bit", "Int8Params"):  # bitsandbytes
        from transformers.integrations.bitsandbytes import dequantize_bnb_weight

        return dequantize_bnb_weight(value, getattr(module, "state", None)).detach(), "dequantized"
    if isinstance(value, Tensor) and (value.is_quantized or type(value).dequantize is not Tensor.dequantize):
        return value.dequantize().detach(), "dequantized"  # torch, torchao, quanto
    raise NotServed(
        f"{path}.{attribute}", f"how {packing} packs its values is not known", "load the model without quantization"
    )
