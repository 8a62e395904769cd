"""Reader of CTranslate2's ``model.bin`` (format 6): a flat list of named arrays, then a list of aliases.

All numbers are little-endian; a string is its length (final zero byte included) and its bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from mechanome.core.errors import CorruptFile, NotServed

_FORMAT = 6
_DTYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)  # by the file's type number


@dataclass(frozen=True)
class CTranslate2Model:
    """Contents of one file.

    Attributes:
        spec: name of the model type, for example ``WhisperSpec``.
        arrays: every array by its slash-separated name; scalars have shape ``()``.
        aliases: names that stand for another array.
    """

    spec: str
    arrays: dict[str, np.ndarray]
    aliases: dict[str, str]


def read_ctranslate2(data: bytes, name: str) -> CTranslate2Model:
    """Parse `data`; `name` is what errors call it.

    Raises:
        CorruptFile: the data ends early or holds something else after its end.
        NotServed: another format version.
    """
    cursor = _Cursor(data)
    try:
        version = cursor.integer("I")
        if version != _FORMAT:
            raise NotServed(f"{name} in CTranslate2 format {version}", f"format {_FORMAT} is read")
        spec = cursor.text()
        cursor.integer("I")  # revision of the model type; the set of names says the same
        arrays = dict(cursor.array() for _ in range(cursor.integer("I")))
        aliases = {cursor.text(): cursor.text() for _ in range(cursor.integer("I"))}
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptFile(name, f"ends early or is no CTranslate2 file ({error})") from error
    if cursor.offset != len(data):
        raise CorruptFile(name, f"{len(data) - cursor.offset} bytes follow the end of the model")
    return CTranslate2Model(spec, arrays, aliases)


class _Cursor:
    """A position in the data and the primitive reads."""

    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 0

    def integer(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += struct.calcsize(code)
        return int(value)

    def text(self) -> str:
        length = self.integer("H")
        raw = self.data[self.offset : self.offset + length]
        if len(raw) < length:
            raise ValueError("a name is cut short")
        self.offset += length
        return raw[:-1].decode()

    def array(self) -> tuple[str, np.ndarray]:
        name = self.text()
        shape = [self.integer("I") for _ in range(self.integer("B"))]
        dtype = np.dtype(_DTYPES[self.integer("B")])
        size = self.integer("I")
        values = np.frombuffer(self.data, dtype, size // dtype.itemsize, self.offset).reshape(shape)
        self.offset += size
        return name, values
