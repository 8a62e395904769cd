"""Fits that are tasks of a cluster end in the bits of fits of their own, and can be gone on from."""

from __future__ import annotations

import json

import pytest
import torch
from planted_streams import planted

from local_ray import local_ray  # noqa: F401
from mechanome.activations import Activations, ActivationStore
from mechanome.core.errors import BadInput
from mechanome.dictionaries import TopK, fit
from mechanome.dictionaries.commands import fitting
from mechanome.dictionaries.formats import read

OPTIONS = {"batch": 32, "epochs": 3, "lr": 0.01, "every": 4, "revive_every": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rows, _ = planted().batch(0)
    return ActivationStore.create(tmp_path_factory.mktemp("acts") / "store", Activations({"resid_post.1": rows})).path


def same(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_each_is_as_if_fitted_alone(store, tmp_path, monkeypatch, local_ray):  # noqa: F811
    def run(**options):
        return fitting.run("topk", store, width=24, k=(2, 4), seeds=(0, 1), out=tmp_path, quiet=True,
                           cluster=local_ray, **OPTIONS, **options)  # fmt: skip

    write, written = fitting.write, []

    def stopping(dictionary, path):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        write(dictionary, path)

    with monkeypatch.context() as stop, pytest.raises(KeyboardInterrupt) as stopped:
        stop.setattr(fitting, "write", stopping)
        run()
    assert "mechanome fit --resume" in stopped.value.__notes__[0]
    (folder,) = tmp_path.iterdir()
    assert {each.name for each in (folder / "dictionaries").iterdir()} == {*written}
    outcome = fitting.resume(folder, quiet=True)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for k in (2, 4):
            for seed in (0, 1):
                stream = ActivationStore.open(store).stream(batch=32, seed=0, epochs=3)
                alone = fit(TopK(24, k=k), stream, seed=seed, lr=0.01, revive_every=3, quiet=True)
                name = alone.report["name"]
                assert same(alone.dictionary, outcome.found.fits[name].dictionary), name
                assert same(alone.dictionary, read(folder / "dictionaries" / name)), name
    finally:
        torch.set_num_threads(threads)
    assert [*outcome.found.fits] == [f"topk-24-k{k}-s{seed}" for k in (2, 4) for seed in (0, 1)]
    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = max(record["step"] for record in logged)
    ends = [name for record in logged if record["step"] == last for name in record if name.endswith("/fvu")]
    assert sorted(ends) == sorted(f"{name}/fvu" for name in outcome.found.fits)


def test_the_same_twice_is_refused(store, tmp_path):
    with pytest.raises(BadInput, match="each fits once"):
        fitting.run("topk", store, width=24, k=(2, 2), out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()
