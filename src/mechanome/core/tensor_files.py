"""Named tensors in a file (safetensors), with a format name, its version and JSON beside them.

Reading trusts nothing: damage, missing parts, a foreign or newer format are each refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mechanome.core.errors import CorruptFile, NotFinite, ShapeMismatch
from mechanome.core.files import atomic_path, existing
from mechanome.core.formats import plain

_HEADER = "mechanome"


@dataclass(frozen=True)
class TensorFile:
    """What a tensor file holds.

    Args:
        tensors: by name.
        format: what the file is, such as ``"sae"``.
        version: of that format.
        meta: everything else, as JSON.
    """

    tensors: dict[str, torch.Tensor]
    format: str
    version: int
    meta: dict[str, Any]


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, torch.Tensor],
    *,
    format: str,
    version: int = 1,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write named tensors (safetensors) with a format name, version and JSON beside them, atomically.

    Args:
        path: destination.
        tensors: any shapes, dtypes, devices; tensors that share memory are stored apart.
        format: what the file is; the reader asks for it by name.
        version: of the format, raised when its meaning changes.
        meta: JSON to travel along.

    Raises:
        NotFinite, BadInput: ``meta`` has no JSON form; nothing is written.
    """
    header = {"format": format, "version": version, "meta": plain(meta or {}, "meta")}
    # Safetensors refuses views and shared storage: a copy where needed makes any tensor storable.
    owned: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        stored = tensor.detach().cpu().contiguous()
        whole = stored.untyped_storage().nbytes() == stored.numel() * stored.element_size()
        address = stored.untyped_storage().data_ptr()
        owned[name] = stored if whole and address not in seen else stored.clone()
        seen.add(owned[name].untyped_storage().data_ptr())
    with atomic_path(path) as staged:
        save_file(owned, staged, metadata={_HEADER: json.dumps(header)})


def read_tensors(
    path: str | os.PathLike[str],
    *,
    format: str,
    version: int = 1,
    expect: Mapping[str, torch.Tensor] | None = None,
    finite: bool = False,
    device: str | torch.device = "cpu",
) -> TensorFile:
    """Read a file of :func:`write_tensors`.

    Args:
        path: the file.
        format: what it must be.
        version: the newest version the caller understands.
        expect: a skeleton (a state dict, or tensors on ``meta``) whose names, shapes and dtypes must all be met.
        finite: also refuse NaN and infinity.
        device: where the tensors go.

    Raises:
        BadInput: no such file.
        CorruptFile: truncated, not safetensors, another format, a newer version, wrong names or dtypes.
        ShapeMismatch: a tensor of another shape than expected.
        NotFinite: NaN or infinity, where ``finite``.
    """
    file = existing(path)
    try:
        with safe_open(file, framework="pt", device=str(device)) as reader:
            header = json.loads((reader.metadata() or {}).get(_HEADER, "null"))
            tensors = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise CorruptFile(str(path), f"not a whole safetensors file ({error})", "write or download it again") from error
    if not isinstance(header, dict) or header.get("format") != format:
        found = header.get("format") if isinstance(header, dict) else None
        raise CorruptFile(str(path), f"its format is {found!r}, not {format!r}", "pass a file of that format")
    if header["version"] > version:
        why = f"{format} version {header['version']} is newer than {version}, the newest known here"
        raise CorruptFile(str(path), why, "update mechanome")
    if expect is not None:
        _check_skeleton(str(path), tensors, expect)
    if finite:
        broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        if broken:
            raise NotFinite(str(path), f"NaN or infinity in {', '.join(broken)}", "make the file again")
    return TensorFile(tensors, format, header["version"], header["meta"])


def _check_skeleton(path: str, tensors: Mapping[str, torch.Tensor], expect: Mapping[str, torch.Tensor]) -> None:
    missing, extra = sorted(expect.keys() - tensors.keys()), sorted(tensors.keys() - expect.keys())
    if missing or extra:
        parts = [f"misses {', '.join(missing)}"] * bool(missing) + [f"has unexpected {', '.join(extra)}"] * bool(extra)
        raise CorruptFile(path, " and ".join(parts), "pass the file that was made for this")
    for name, wanted in expect.items():
        found = tensors[name]
        if found.shape != wanted.shape:
            why = f"{name} has shape {tuple(found.shape)}, not {tuple(wanted.shape)}"
            raise ShapeMismatch(path, why, "pass the file that was made for this")
        if found.dtype != wanted.dtype:
            raise CorruptFile(path, f"{name} is {found.dtype}, not {wanted.dtype}", "convert it")
