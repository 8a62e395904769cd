"""The forms in which Mechanome keeps data: JSON, JSON lines, and named tensors with a versioned header.

Reading trusts nothing: damage, missing parts, a foreign or newer format are each refused by name. Numbers are
finite: JSON has no NaN, so writing one is refused with its place rather than stored as something else; a quantity that
is undefined is written as null.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mechanome.core.errors import BadInput, CorruptFile, NotFinite, ShapeMismatch
from mechanome.core.files import atomic_path, atomic_write, existing

_HEADER = "mechanome"


def plain(value: Any, place: str = "value") -> Any:
    """A value as JSON keeps it: numpy scalars become numbers, tuples lists; everything else is checked.

    Raises:
        NotFinite: NaN or infinity; the message names the place.
        BadInput: something JSON cannot hold, or a key that is not text.
    """
    if value is None or isinstance(value, str | bool | int):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, np.generic):
        return plain(value.item(), place)
    if isinstance(value, float):
        if not np.isfinite(value):
            raise NotFinite(place, f"{value} has no place in JSON", "write null where a number is undefined")
        return value
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise BadInput(place, f"key {wrong[0]!r} is not text", "use text keys")
        return {str(key): plain(item, f"{place}.{key}") for key, item in value.items()}
    raise BadInput(place, f"a {type(value).__name__} has no JSON form", "convert it to numbers, text or lists")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write JSON, indented, atomically. Reading gives :func:`plain` of the value back, floats exact.

    Raises:
        NotFinite, BadInput: as :func:`plain`; nothing is written.
    """
    text = json.dumps(plain(value), indent=2, ensure_ascii=False)
    with atomic_write(path) as handle:
        handle.write(_encoded(text, path) + b"\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read JSON.

    Raises:
        BadInput: no such file.
        CorruptFile: truncated, not UTF-8, not JSON, or holding NaN.
    """
    return _parsed(existing(path).read_bytes(), str(path))


def append_jsonl(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Append one record as a line, handed to the system at once: a killed process loses none that were appended.

    The unfinished line of a writer that was killed is cut off first. Writers in several processes take turns.

    Raises:
        NotFinite, BadInput: as :func:`plain`; nothing is appended.
    """
    line = _encoded(json.dumps(plain(record, "record"), ensure_ascii=False), path) + b"\n"
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b", buffering=0) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        end = handle.seek(0, os.SEEK_END)
        if end and os.pread(handle.fileno(), 1, end - 1) != b"\n":
            handle.truncate(file.read_bytes().rfind(b"\n") + 1)
        handle.write(line)


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of a JSON lines file, in order; an unfinished last line (its writer was killed) is left out.

    Raises:
        BadInput: no such file.
        CorruptFile: any complete line is not a JSON object.
    """
    with existing(path).open("rb") as handle:
        for number, line in enumerate(handle, 1):
            if not line.endswith(b"\n"):
                return
            record = _parsed(line, f"{path}, line {number}")
            if not isinstance(record, dict):
                raise CorruptFile(f"{path}, line {number}", "not a JSON object", "restore the file from its source")
            yield record


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


def _encoded(text: str, path: str | os.PathLike[str]) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(str(path), f"text that is not Unicode ({error})", "decode with errors='replace'") from error


def _parsed(data: bytes, place: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number")

    try:
        return json.loads(data.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(place, f"not whole JSON ({error})", "restore it from its source or make it again") from error
