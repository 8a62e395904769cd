"""Files that are whole or absent: nothing half-written is ever seen under its final name.

A file or folder is built under a temporary name beside its destination, flushed to the disk and renamed, which a
POSIX file system does at one instant. A crash, a full disk or ``kill -9`` leaves the old content (or none) and at
worst a ``.name.*.tmp`` beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from mechanome.core.errors import BadInput

_CHUNK = 2**20


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path that becomes ``path`` when the block ends, for writers that want a name, not a handle.

    Args:
        path: the destination; missing parent folders are made, an existing file is replaced, and a symbolic link is
            followed.

    Yields:
        the temporary path in the same folder; the block must create a file there.

    Raises:
        BadInput: the path is a folder or a device, or lies under a file.
    """
    final = Path(os.path.realpath(path))
    if final.exists() and not final.is_file():
        kind = "folder" if final.is_dir() else "device"  # which a file would replace for every program
        raise BadInput(str(path), f"it is a {kind}", "give the name of a file")
    folder(final.parent)
    staged = _sibling(final)
    try:
        yield staged
        _sync(staged)
        staged.replace(final)
        _sync(final.parent)
    finally:
        staged.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """Write a file whole or not at all.

    Args:
        path: the destination, as in :func:`atomic_path`.
        mode: ``"wb"`` for bytes or ``"w"`` for UTF-8 text with newlines as given.

    Yields:
        the open handle. If the block raises, ``path`` is untouched and nothing is left behind.
    """
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with atomic_path(path) as staged, staged.open(mode, **text) as handle:  # type: ignore[call-overload]
        yield handle


@contextlib.contextmanager
def atomic_dir(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Build a folder whole or not at all.

    If the folder exists by the time the block ends (another process built the same thing first) that one stays and
    this one is dropped: either way ``path`` is a complete folder afterwards, and readers never see it change.

    Args:
        path: the destination; missing parents are made.

    Yields:
        an empty temporary folder beside it, to be filled.

    Raises:
        BadInput: a file is in the way.
    """
    final = Path(os.path.realpath(path))
    if final.is_file():
        raise BadInput(str(path), "a file is where the folder should go", "move the file or name another folder")
    folder(final.parent)
    staged = _sibling(final)
    staged.mkdir()
    try:
        yield staged
        for item in sorted(staged.rglob("*"), reverse=True):
            _sync(item)
        _sync(staged)
        try:
            staged.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        _sync(final.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


@contextlib.contextmanager
def lock(path: str | os.PathLike[str], timeout: float | None = None) -> Iterator[None]:
    """Hold an advisory lock on a file, among processes and among threads.

    The system releases it when the holder ends, however it ends. The (empty) file stays: removing it would let a
    waiting process and a new one both believe they hold the lock.

    Args:
        path: the lock file, made if missing.
        timeout: seconds to wait for another holder; None waits for ever, 0 does not wait.

    Raises:
        BadInput: the time is over and another process still holds it.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = None if timeout is None else time.monotonic() + timeout
    with file.open("ab") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise BadInput(str(path), "another process holds this lock", "wait for it to end") from None
                time.sleep(0.02)
        yield


def sha256(path: str | os.PathLike[str], on_progress: Callable[[int, int], None] | None = None) -> str:
    """The SHA-256 of a file, as 64 hex digits.

    Args:
        path: the file.
        on_progress: called with (bytes done, bytes in all) after each mebibyte.

    Raises:
        BadInput: no such file.
    """
    file = existing(path)
    total, done, digest = file.stat().st_size, 0, hashlib.sha256()
    with file.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if on_progress is not None:
                on_progress(done, total)
    return digest.hexdigest()


def existing(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there.

    Raises:
        BadInput: it is not there, or it is a folder.
    """
    file = Path(path)
    if not file.is_file():
        why = "it is a folder" if file.is_dir() else "no such file"
        raise BadInput(str(path), why, "check the path")
    return file


def folder(path: str | os.PathLike[str]) -> Path:
    """A folder, made with its parents if missing.

    Raises:
        BadInput: a file is in its way, or no folder can have that name.
    """
    wanted = Path(path)
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(str(path), "a file is where a folder must be", "choose another folder, or move it") from error
    except (FileNotFoundError, ValueError) as error:  # a file system that takes no folders, a null byte
        raise BadInput(str(path), f"no folder can be made there ({error})", "choose another folder") from error
    return wanted


def _sibling(final: Path) -> Path:
    return final.with_name(f".{final.name}.{secrets.token_hex(6)}.tmp")


def _sync(path: Path) -> None:
    """Force a file's content or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
