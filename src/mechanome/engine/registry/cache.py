"""Where models live on this machine: one folder for finished models, one for wheels, one for work in progress.

``MECHANOME_CACHE`` moves the cache, ``MECHANOME_OFFLINE=1`` forbids the network. Work in progress belongs to
whoever holds the cache's lock, so what a killed process left there is swept by the next one.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from mechanome.core.errors import BadInput, DownloadFailed, MechanomeError


@dataclass(frozen=True)
class Cache:
    """The folders under one root.

    Attributes:
        root: the cache folder.
    """

    root: Path

    @classmethod
    def current(cls) -> Cache:
        """The cache the environment names: ``MECHANOME_CACHE`` or the user's cache folder."""
        named = os.environ.get("MECHANOME_CACHE")
        return cls(Path(named).expanduser().absolute() if named else Path(platformdirs.user_cache_dir("mechanome")))

    @property
    def lock_file(self) -> Path:
        """Held while anything is downloaded or converted: one model in memory at a time."""
        return self.root / "lock"

    @property
    def models(self) -> Path:
        """Finished model folders, by id."""
        return self.root / "models"

    @property
    def wheels(self) -> Path:
        """Checked wheels; users without a network put wheels here."""
        return self.root / "wheels"

    @property
    def work(self) -> Path:
        """Downloads and unpacked files in progress."""
        return self.root / "work"

    def sweep(self) -> None:
        """Remove what unfinished work left behind; the caller holds the lock."""
        shutil.rmtree(self.work, ignore_errors=True)
        for leftover in self.models.glob(".*.tmp"):
            shutil.rmtree(leftover, ignore_errors=True)

    def discard(self, folder: Path) -> None:
        """Remove a finished folder in one step, so that no reader sees half of it.

        The caller holds the lock and made `work`.
        """
        if folder.is_dir():
            shutil.rmtree(folder.rename(self.work / folder.name))

    def require_space(self, size_bytes: int, what: str) -> None:
        """Refuse work that the disk cannot hold.

        Raises:
            DownloadFailed: fewer than `size_bytes` are free.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if free < size_bytes:
            why = f"needs {size_bytes / 1e6:.0f} MB for a moment and {self.root} has {free / 1e6:.0f} MB free"
            raise DownloadFailed(what, why, LARGER_DISK)


LARGER_DISK = "free some space, or set MECHANOME_CACHE to a folder on a larger disk"


def offline() -> bool:
    """Whether ``MECHANOME_OFFLINE`` forbids the network (any value but empty and 0)."""
    return os.environ.get("MECHANOME_OFFLINE", "") not in ("", "0")


def disk_refusal(error: Exception, what: str, root: Path) -> MechanomeError | None:
    """The refusal that a failed write deserves, or None if the disk was not the reason.

    Libraries in other languages report the disk's error as text only, so the text is looked at, too.
    """
    number = error.errno if isinstance(error, OSError) else None
    text = str(error)
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in text or "Disk quota exceeded" in text:
        return DownloadFailed(what, f"the disk that holds {root} is full", LARGER_DISK)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
        return BadInput(f"cache folder {root}", f"cannot be written ({text})", "set MECHANOME_CACHE to another folder")
    return None
