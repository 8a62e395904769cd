"""Reading files that others wrote: tensors by name, and settings by name, each checked when it is taken.

Nothing is trusted: pickles are opened by the engine's one guarded function, which builds tensors and plain containers
only; NumPy archives without objects. A tensor that is missing, of another shape, or not finite is refused by name.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechanome.core.errors import BadInput, CorruptFile, NotFinite, ShapeMismatch, nearest
from mechanome.core.files import existing
from mechanome.core.formats import read_json
from mechanome.engine.registry.torch_files import load_pinned

_RESTORE = "download or write it again"


@dataclass(frozen=True)
class Tensors:
    """Tensors of a file, by name.

    Args:
        path: the file, for errors.
        content: as stored.
    """

    path: Path
    content: Mapping[str, Tensor]

    def __contains__(self, name: str) -> bool:
        return name in self.content

    def take(self, name: str, *shape: int | None) -> Tensor:
        """A tensor as float32.

        Args:
            name: its key.
            shape: the size of each axis; None where any will do. Nothing where the shape is free.

        Raises:
            CorruptFile: no such key. ShapeMismatch: another shape. NotFinite: NaN or infinity.
        """
        if name not in self.content:
            raise CorruptFile(str(self.path), f"misses '{name}'", nearest(name, self.content))
        tensor = self.content[name]
        fits = len(shape) == tensor.dim() and all(n in (None, m) for n, m in zip(shape, tensor.shape))
        if shape and not fits:
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            why = f"'{name}' has shape {list(tensor.shape)}, not [{wanted}]"
            raise ShapeMismatch(str(self.path), why, _RESTORE)
        value = tensor.detach().float().contiguous()
        if not bool(torch.isfinite(value).all()):
            raise NotFinite(str(self.path), f"NaN or infinity in '{name}'", _RESTORE)
        return value

    def number(self, name: str) -> float:
        """A tensor of one number."""
        value = self.take(name)
        if value.numel() != 1:
            raise ShapeMismatch(str(self.path), f"'{name}' has shape {list(value.shape)}, not one number", _RESTORE)
        return float(value)


@dataclass(frozen=True)
class Settings:
    """Settings of a file, by name.

    Args:
        path: the file, for errors.
        content: as stored.
    """

    path: Path
    content: Mapping[str, Any]

    def take(self, name: str, kind: type | tuple[type, ...] = object) -> Any:
        """A setting that must be there.

        Raises:
            CorruptFile: it is not, or is of another kind.
        """
        if name not in self.content:
            raise CorruptFile(str(self.path), f"misses '{name}'", nearest(name, self.content))
        return self.get(name, None, kind)

    def get(self, name: str, default: Any, kind: type | tuple[type, ...] = object) -> Any:
        """A setting that may be missing or null; then the default of the format."""
        value = self.content.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind in (int, float) and isinstance(value, bool)):
            raise CorruptFile(str(self.path), f"'{name}' is {value!r}", f"{_RESTORE}; it should be another kind")
        return value

    def count(self, name: str) -> int:
        """A whole number of at least 1.

        Raises:
            CorruptFile: it is missing, no number, or below 1.
        """
        value = self.take(name, int)
        if value < 1:
            raise CorruptFile(str(self.path), f"'{name}' is {value}", "it must be at least 1")
        return int(value)

    def part(self, name: str) -> Settings:
        """Settings within settings."""
        return Settings(self.path, self.take(name, dict))

    def choose(self, name: str, table: Mapping[str, Any], what: str, default: str | None = None) -> Any:
        """The entry of a table that a setting names.

        Raises:
            BadInput: an entry that does not exist, with the nearest.
        """
        value = self.take(name, str) if default is None else self.get(name, default, str)
        if value not in table:
            raise BadInput(f"{what} '{value}' in {self.path}", "it is not served", nearest(value, table))
        return table[value]


def safetensors_file(path: Path) -> Tensors:
    """A safetensors file.

    Raises:
        BadInput: no such file. CorruptFile: truncated, or something else.
    """
    try:
        with safe_open(existing(path), framework="pt") as reader:
            return Tensors(path, {name: reader.get_tensor(name) for name in reader.keys()})  # noqa: SIM118
    except SafetensorError as error:
        raise CorruptFile(str(path), f"not a whole safetensors file ({error})", _RESTORE) from error


def torch_file(path: Path) -> Tensors:
    """A torch checkpoint of tensors, opened without running any code in it.

    Raises:
        BadInput: no such file. CorruptFile: damaged, or it holds more than tensors.
    """
    loaded = load_pinned(existing(path).read_bytes(), str(path))
    return Tensors(path, {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)})


def npz_file(path: Path) -> Tensors:
    """A NumPy archive; names are lowercased, as writers differ in case.

    Raises:
        BadInput: no such file. CorruptFile: damaged, or it holds objects.
    """
    try:
        with np.load(existing(path), allow_pickle=False) as archive:
            arrays = {name.lower(): np.asarray(archive[name]) for name in archive.files}
        return Tensors(path, {name: torch.from_numpy(array) for name, array in arrays.items()})
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise CorruptFile(str(path), f"not a whole archive of arrays ({error})", _RESTORE) from error


def json_file(path: Path) -> Settings:
    """A JSON object.

    Raises:
        BadInput: no such file. CorruptFile: damaged, or another kind of JSON.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise CorruptFile(str(path), f"a {type(content).__name__} where settings are expected", _RESTORE)
    return Settings(path, content)


def yaml_file(path: Path) -> Settings:
    """A YAML mapping.

    Raises:
        BadInput: no such file. CorruptFile: damaged, or another kind of YAML.
    """
    try:
        content = yaml.safe_load(existing(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CorruptFile(str(path), f"not whole YAML ({error})", _RESTORE) from error
    if not isinstance(content, dict):
        raise CorruptFile(str(path), f"a {type(content).__name__} where settings are expected", _RESTORE)
    return Settings(path, content)
