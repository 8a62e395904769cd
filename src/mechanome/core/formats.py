"""The forms in which Mechanome keeps data as text: JSON and JSON lines. Tensors are in `tensor_files`.

Reading trusts nothing: damage and missing parts are refused by name. Numbers are finite: JSON has no NaN, so writing
one is refused with its place rather than stored as something else; a quantity that is undefined is written as null.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechanome.core.errors import BadInput, CorruptFile, NotFinite
from mechanome.core.files import atomic_write, existing, folder


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
    folder(file.parent)
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
