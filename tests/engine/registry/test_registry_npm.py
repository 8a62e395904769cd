from hashlib import sha256

import pytest

from mechanome.core.errors import CorruptFile, DownloadFailed
from mechanome.engine.registry.npm import Tarball, fetch_tarball, registry


@pytest.fixture
def tarball(tmp_path, monkeypatch, cache):
    """A package on a registry that is a folder."""
    folder = tmp_path / "registry" / "@scope" / "data" / "-"
    folder.mkdir(parents=True)
    (folder / "data-2.1.0.tgz").write_bytes(b"content")
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", (tmp_path / "registry").as_uri() + "/")
    return Tarball("@scope/data", "2.1.0", sha256(b"content").hexdigest(), 7)


def test_a_tarball_is_fetched_checked_and_kept(tarball, cache, tmp_path, monkeypatch):
    found = fetch_tarball(tarball, cache, quiet=True)
    assert found == cache.wheels / "data-2.1.0.tgz" and found.read_bytes() == b"content"
    assert not list(cache.work.iterdir())
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    assert fetch_tarball(tarball, cache) == found
    found.write_bytes(b"changed")
    with pytest.raises(CorruptFile, match="delete"):
        fetch_tarball(tarball, cache)


def test_another_file_than_the_pinned_one_never_reaches_the_cache(tarball, cache):
    wrong = Tarball(tarball.package, tarball.version, "0" * 64, 7)
    with pytest.raises(CorruptFile, match=r"package data-2\.1\.0\.tgz"):
        fetch_tarball(wrong, cache, quiet=True)
    assert not (cache.wheels / "data-2.1.0.tgz").exists() and not list(cache.work.iterdir())


def test_what_the_registry_does_not_have_is_said_with_the_way_by_hand(tarball, cache):
    missing = Tarball("@scope/data", "3.0.0", "0" * 64, 7)
    with pytest.raises(DownloadFailed, match=r"npm pack @scope/data@3\.0\.0"):
        fetch_tarball(missing, cache, quiet=True)


def test_offline_nothing_is_asked(tarball, cache, monkeypatch):
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    with pytest.raises(DownloadFailed, match="unset MECHANOME_OFFLINE"):
        fetch_tarball(tarball, cache)


def test_the_registry_is_the_one_npm_would_ask(tmp_path, monkeypatch):
    for name in ("NPM_CONFIG_REGISTRY", "npm_config_registry"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert registry() == "https://registry.npmjs.org"
    (tmp_path / ".npmrc").write_text("fund=false\nregistry = https://mirror.example/npm/\n")
    assert registry() == "https://mirror.example/npm"
    monkeypatch.setenv("npm_config_registry", "https://other.example")
    assert registry() == "https://other.example"
