"""A harvest whose model runs in workers leaves the bytes of one that ran here, also when it was stopped between."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from small_models import small, some_texts

from local_ray import local_ray  # noqa: F401
from mechanome.activations import harvest
from mechanome.activations.writing import Writer
from mechanome.core.errors import NotServed

HARVEST = import_module("mechanome.activations.harvest")
SETTINGS = {"packing": "sequence", "shard_rows": 100, "quiet": True, "compute": "model"}


def stored(folder, cluster=None):
    return harvest(small(), some_texts(60), ("resid_post.0", "z.1"), folder, cluster=cluster, **SETTINGS)


def content(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(Path(folder).rglob("*")) if f.is_file()}


@pytest.fixture(autouse=True)
def one_thread():
    """As many as each worker has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_store_is_the_same_to_the_byte(tmp_path, monkeypatch, local_ray):  # noqa: F811
    monkeypatch.setattr(HARVEST, "_CHUNK", 1)
    monkeypatch.setattr(HARVEST, "_LEAST", 50)
    here = stored(tmp_path / "here")
    add = Writer.add

    def stopping(self, *args):
        if self.progress.chunks == 3:
            raise KeyboardInterrupt
        add(self, *args)

    with monkeypatch.context() as stop, pytest.raises(KeyboardInterrupt):
        stop.setattr(Writer, "add", stopping)
        stored(tmp_path / "there", local_ray)
    there = stored(tmp_path / "there", local_ray)
    assert there.complete and here.rows == there.rows > 300
    assert content(tmp_path / "here") == content(tmp_path / "there")


def test_a_model_elsewhere_than_on_the_processor_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(type(small()), "device", torch.device("cuda"))
    with pytest.raises(NotServed, match="load the model on the CPU"):
        stored(tmp_path / "acts", "local")
    assert not list(tmp_path.iterdir())
