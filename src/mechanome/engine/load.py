"""`load`: open a model from the registry, a hub id, a folder, or any module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mechanome.core.errors import BadInput, NotServed, UnknownModel
from mechanome.core.progress import notice
from mechanome.engine.families import Layout
from mechanome.engine.inputs import Bos
from mechanome.engine.model import Model
from mechanome.engine.registry import open_folder
from mechanome.engine.selftest import self_test


def load(
    x: str | Path | nn.Module | Model,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    *,
    tokenizer: Any = None,
    layout: Layout | None = None,
    bos: Bos = "auto",
    axes: Mapping[str, Sequence[str]] | None = None,
    check: Literal["full", "light", "off"] = "full",
    example: Any = None,
) -> Model:
    """Open a model, unmodified, and test what it serves.

    Args:
        x: a registry id (see `mechanome models`), a local folder with safetensors, a hub id, or any `nn.Module`.
        device: where to put it; None leaves a module where it is and uses the CPU for files.
        dtype: floating-point type, such as "bfloat16"; None keeps the file's.
        device_map: spread over devices with accelerate ("auto", or module -> device).
        tokenizer: for modules that come without one.
        layout: your own description of a module (see `Layout`).
        bos: what to do about the first token: "auto", "none" or an id.
        axes: axis names of `path:` sites, such as `{"path:layers.0": ("batch", "pos", "feature")}`.
        check: self-test "full", "light" for very large models, or "off".
        example: inputs for the self-test of modules whose inputs cannot be guessed.

    Returns:
        the opened model, in eval mode.

    Raises:
        UnknownModel, BadInput, CorruptFile, DownloadFailed, NotServed: each with its fix.
    """
    if isinstance(x, Model):
        return x
    source = None
    if isinstance(x, nn.Module):
        module = _usable(x)
    elif isinstance(x, (str, Path)):
        module, found, source = open_folder(x)
        tokenizer = tokenizer if tokenizer is not None else found
        module.eval()
    else:
        raise UnknownModel(
            f"a model of type {type(x).__name__}", "it cannot be opened", "pass an id, a folder or a module"
        )
    if module.training:
        module.eval()
        notice(f"{type(module).__name__} was in train mode and is now in eval mode, so that dropout changes no number")
    if dtype is not None:
        module = module.to(_dtype(dtype))
    if device_map is not None:
        module = _spread(module, device_map)
    elif device is not None:
        module = _moved(module, device)
    model = Model(module, tokenizer, layout=layout, source=source, bos=bos, axes=axes)
    if check not in ("full", "light", "off"):
        raise BadInput(f"check '{check}'", "there is no such self-test", "use 'full', 'light' or 'off'")
    if check != "off":
        model.adopt(self_test(model, check, example))
    return model


def _usable(module: nn.Module) -> nn.Module:
    """The module to work with: a compiled one is opened as the eager module inside it, which has the same numbers.

    Raises:
        NotServed: a tensor-parallel model, whose heads and neurons are spread over processes.
    """
    inner = getattr(module, "_orig_mod", module)
    if getattr(inner, "_tp_size", None):
        raise NotServed(
            f"tensor-parallel {type(inner).__name__}",
            "each process holds only some heads and neurons",
            "load it with device_map='auto', which spreads whole layers",
        )
    return inner


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise BadInput(f"dtype '{dtype}'", "it is not a floating-point type", "use 'float32', 'bfloat16' or 'float16'")
    return found


def _moved(module: nn.Module, device: str | torch.device) -> nn.Module:
    try:
        return module.to(torch.device(device))
    except (RuntimeError, AssertionError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise BadInput(f"device '{device}'", why, "use 'cpu', or a device that torch sees here") from error


def _spread(module: nn.Module, device_map: str | Mapping[str, Any]) -> nn.Module:
    from accelerate import dispatch_model, infer_auto_device_map

    plan: Any = device_map
    if isinstance(device_map, str):
        plan = infer_auto_device_map(module, no_split_module_classes=getattr(module, "_no_split_modules", None))
    return dispatch_model(module, device_map=dict(plan))
