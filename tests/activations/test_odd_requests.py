"""What may be asked of activations wrongly: refused in one sentence, and shapes at the edge served."""

from __future__ import annotations

import errno
import json
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import small, some_texts

from mechanome.activations import (
    Activations,
    ActivationStore,
    ArrayActivations,
    Drop,
    ModelActivations,
    PlantedFeatures,
    harvest,
)
from mechanome.core.errors import BadInput, BudgetTooSmall, CorruptFile, NotServed, ShapeMismatch

X = torch.arange(12.0).view(4, 3)
Q = {"quiet": True, "context": 24}


@pytest.mark.parametrize("total", [5, 8, 9])
@pytest.mark.parametrize("shard_rows", [1, 4])
def test_shards_of_a_single_row(tmp_path, total, shard_rows):
    x = torch.randn(total, 3)
    rows = Activations({"a": x}, {"seq": torch.arange(total), "y": torch.arange(total, dtype=torch.int8)})
    store = ActivationStore.create(tmp_path / "s", rows, dtype="fp32", shard_rows=shard_rows, order="sequence")
    found = store.rows_of(np.arange(total))
    assert torch.equal(found.x, x) and torch.equal(found.labels["y"], rows.labels["y"])


def test_a_harvest_may_end_in_a_shard_of_one_row(tmp_path):
    whole = harvest(small(), some_texts(6), "resid_post.0", tmp_path, drop=Drop.nothing(), **Q)
    cut = harvest(small(), some_texts(6), "resid_post.0", tmp_path, drop=Drop.nothing(), shard_rows=whole.rows - 1, **Q)
    assert [shard.rows for shard in cut.shards] == [whole.rows - 1, 1]
    assert cut.rows_of([whole.rows - 1]).rows == 1


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        pytest.param({"sites": []}, BadInput, "sites: there are none", id="no site"),
        pytest.param({"sites": "logits"}, NotServed, "before the head", id="logits"),
        pytest.param({"budget": "1KB"}, BudgetTooSmall, "shards of", id="no room for a shard"),
        pytest.param({"drop": 5}, BadInput, "drop=5", id="drop a number"),
        pytest.param({"bos": "zz"}, BadInput, "bos='zz'", id="bos a word"),
        pytest.param({"bos": None}, BadInput, "bos=None", id="bos nothing"),
        pytest.param({"texts": None}, BadInput, "texts=None", id="no texts"),
        pytest.param({"texts": 5}, BadInput, "texts=5", id="texts a number"),
        pytest.param({"texts": torch.tensor([1, 2])}, BadInput, "token ids", id="one row of ids"),
        pytest.param({"texts": torch.tensor([[1.5]])}, BadInput, "token ids", id="ids that are no whole numbers"),
        pytest.param({"to": "/proc/acts"}, BadInput, "no folder can be made", id="a folder nobody can make"),
        pytest.param({"to": "a\0b"}, BadInput, "no folder can be made", id="a name no file has"),
    ],
)
def test_a_harvest_refuses(tmp_path, options, error, said):
    asked = {"texts": some_texts(3), "sites": "resid_post.0", "to": tmp_path, **options}
    with pytest.raises(error, match=said):
        harvest(small(), **asked, **Q)
    assert not [item for item in tmp_path.rglob("*") if item.is_dir()]


def test_a_budget_is_checked_even_where_nothing_runs(tmp_path):
    harvest(small(), some_texts(3), "resid_post.0", tmp_path, **Q)
    with pytest.raises(BadInput, match="budget"):
        harvest(small(), some_texts(3), "resid_post.0", tmp_path, budget="much", **Q)


def test_a_folder_that_may_not_be_written_is_said(tmp_path, monkeypatch):
    def refused(path, *rest, **more):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(import_module("mechanome.activations.writing"), "write_shard", refused)
    with pytest.raises(BadInput, match="Permission denied"):
        harvest(small(), some_texts(3), "resid_post.0", tmp_path, **Q)
    monkeypatch.undo()
    assert harvest(small(), some_texts(3), "resid_post.0", tmp_path, **Q).complete


LIMITED = """
import sys; sys.path[:0] = [{tests!r}, {here!r}]
import resource
from small_models import small, some_texts
from mechanome.activations import harvest
from mechanome.core.errors import BadInput
model = small()
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
try:
    harvest(model, some_texts(40), "resid_post.0", {to!r}, quiet=True, context=24)
except BadInput as error:
    print("refused:", error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs limits on the size of files")
def test_a_limit_on_the_size_of_files_loses_nothing(tmp_path):
    here = Path(__file__).parent
    code = LIMITED.format(tests=str(here.parent), here=str(here), to=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "refused:" in done.stdout and "File too large" in done.stdout, done.stdout + done.stderr
    store = harvest(small(), some_texts(40), "resid_post.0", tmp_path, **Q)
    alone = harvest(small(), some_texts(40), "resid_post.0", tmp_path / "alone", **Q)
    assert [shard.sha256 for shard in store.shards] == [shard.sha256 for shard in alone.shards]


@pytest.mark.parametrize(
    ("act", "error", "said"),
    [
        pytest.param(lambda: Activations(X), BadInput, "no names", id="a bare tensor"),
        pytest.param(lambda: ArrayActivations([[1.0]]), BadInput, "no names", id="a list"),
        pytest.param(lambda: ArrayActivations(np.ones((2, 3))), BadInput, "no names", id="an array"),
        pytest.param(lambda: Activations({"x": X}).take(torch.tensor([9])), BadInput, "rows to take", id="no such row"),
        pytest.param(
            lambda: Activations({"x": X}).take(torch.tensor([0.5])), BadInput, "rows to take", id="half a row"
        ),
        pytest.param(
            lambda: Activations({"x": X}).take(torch.ones(2, dtype=torch.bool)), BadInput, "rows to take", id="a mask"
        ),
        pytest.param(
            lambda: Activations.cat([Activations({"x": X}), Activations({"x": X[:, :2]})]),
            ShapeMismatch,
            "widths",
            id="parts of different widths",
        ),
        pytest.param(
            lambda: Activations({"x": X}, {"seq": torch.arange(4)}).where(seq="a"), BadInput, "label 'seq'", id="a word"
        ),
        pytest.param(lambda: Drop(max_norm_multiple="a"), BadInput, "max_norm_multiple", id="a multiple as text"),
        pytest.param(lambda: Drop(max_norm_multiple=float("inf")), BadInput, "sinks=False", id="infinite multiple"),
        pytest.param(lambda: Drop(positions=(0.5,)), BadInput, "positions", id="half a position"),
        pytest.param(lambda: Drop(positions="ab"), BadInput, "positions", id="positions as text"),
        pytest.param(
            lambda: ModelActivations(small(), some_texts(3), "resid_post.0", context=24, dtype="fp32"),
            BadInput,
            "dtype='fp32'",
            id="a dtype as text",
        ),
        pytest.param(lambda: PlantedFeatures(2.5, 4), BadInput, "n_features=2.5", id="half a feature"),
        pytest.param(lambda: PlantedFeatures(4, 4, noise=float("nan")), BadInput, "noise", id="noise nan"),
        pytest.param(lambda: PlantedFeatures(4, 4, hierarchy=[1]), BadInput, "hierarchy", id="hierarchy a list"),
    ],
)
def test_odd_requests_are_refused(act, error, said):
    with pytest.raises(error, match=said):
        act()


@pytest.mark.parametrize(
    "change",
    [None, {"row": -5}, {"segment": 1.5}, {"epoch": "a"}, {"row": True}],
    ids=["none", "-5", "1.5", "a", "flag"],
)
def test_positions_that_are_none_are_refused(change):
    stream = ArrayActivations(X, batch=2)
    with pytest.raises(CorruptFile, match="stream position"):
        stream.seek(None if change is None else {**stream.state(), **change})
    assert stream.state()["row"] == 0


def test_statistics_that_were_changed_are_found(tmp_path):
    store = ActivationStore.create(tmp_path / "s", Activations({"a": torch.randn(50, 3)}))
    file = tmp_path / "s" / "stats.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x40
    file.write_bytes(bytes(content))
    for use in (lambda s: s.stats("a"), lambda s: s.verify(quiet=True)):
        with pytest.raises(CorruptFile, match="SHA-256"):
            use(ActivationStore.open(store.path))


@pytest.mark.parametrize(
    "change",
    [{"version": "1"}, {"recipe": None}, {"recipe": {}}, {"widths": 3}, {"shards": None}],
    ids=["version", "recipe", "no id", "widths", "shards"],
)
def test_a_description_with_parts_of_another_kind_is_refused(tmp_path, change):
    store = ActivationStore.create(tmp_path / "s", Activations({"a": torch.randn(5, 3)}))
    record = json.loads((store.path / "store.json").read_text())
    (store.path / "store.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(CorruptFile):
        ActivationStore.open(store.path)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda s: s.rows_of([0.5]), id="half a row"),
        pytest.param(lambda s: s.rows_of("a"), id="a word for rows"),
        pytest.param(lambda s: s.rows_of([True]), id="a flag for rows"),
        pytest.param(lambda s: s.stream(sites=[]), id="no site"),
        pytest.param(lambda s: s.stream(dtype="fp32"), id="a word for a dtype"),
        pytest.param(lambda s: s.stream(dtype=torch.int8), id="whole numbers"),
        pytest.param(lambda s: ActivationStore.create(s.path.with_name("t"), X), id="a tensor stored"),
    ],
)
def test_a_store_refuses(tmp_path, act):
    store = ActivationStore.create(tmp_path / "s", Activations({"a": torch.randn(5, 3)}))
    with pytest.raises(BadInput):
        act(store)


def test_values_without_width_are_refused():
    with pytest.raises(ShapeMismatch, match="no width"):
        Activations({"a": torch.zeros(3, 0)})
