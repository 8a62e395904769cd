"""The store: what is in it, in which order, how it is found again, and what damages it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import small, some_texts, tokenizer

import mechanome as mn
from families import build
from mechanome.activations import Activations, ActivationStore, ActivationStream, ArrayActivations, Drop, harvest
from mechanome.activations.reader import Reader
from mechanome.activations.sequences import sequences
from mechanome.activations.writing import Writer
from mechanome.core import lock
from mechanome.core.errors import BadInput, BudgetTooSmall, CorruptFile, NotFinite, UnknownSite

HARVEST = import_module("mechanome.activations.harvest")
SITES = ("resid_post.0", "z.1")
TEXTS = some_texts(60)
SMALL = {"packing": "sequence", "shard_rows": 100, "quiet": True, "compute": "model"}


def store_in(folder, **settings):
    return harvest(small(), TEXTS, SITES, folder, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_in(tmp_path_factory.mktemp("acts"), dtype="fp32", drop=Drop(sinks=False))


@pytest.fixture(scope="module")
def expected():
    """All rows, straight from the reader."""
    data = sequences(TEXTS, tokenizer(), packing="sequence")
    return Reader(small(), SITES, data, compute="model").read(np.arange(len(data)))


def in_order(rows):
    order = np.lexsort((rows.labels["pos"], rows.labels["seq"]))
    return rows.take(torch.from_numpy(order))


def content(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(Path(folder).rglob("*")) if f.is_file()}


def test_every_row_is_there_once_with_its_labels(store, expected):
    rows = in_order(Activations.cat(store.stream(batch=64, epochs=1)))
    wanted = expected.take(expected.labels["pos"] > 0)  # the first tokens are dropped
    assert store.rows == rows.rows == wanted.rows and store.dropped == 60 and len(store.shards) == 7
    for site in SITES:
        assert torch.equal(rows[site], wanted[site])
    assert all(torch.equal(rows.labels[name], wanted.labels[name]) for name in ("seq", "pos", "token", "doc", "role"))
    assert [shard.rows for shard in store.shards[:-1]] == [100] * 6 and 0 < store.shards[-1].rows <= 100
    assert not list(store.path.glob("unsorted")) and not (store.path / "progress.json").exists()


def test_a_store_opens_from_its_path_and_says_what_it_is(store):
    again = ActivationStore.open(store.path)
    assert (
        again.complete and again.recipe == store.recipe and again.widths == store.widths == {SITES[0]: 32, SITES[1]: 32}
    )
    assert again.path.name == again.recipe["id"][:16] and "shuffled" in repr(again)
    again.verify()
    assert again.sequences.tokens == again.rows + again.dropped
    with pytest.raises(BadInput, match=again.path.name):
        ActivationStore.open(store.path.parent)


def test_the_same_recipe_is_used_again(tmp_path, monkeypatch):
    first = store_in(tmp_path)
    before = content(tmp_path)
    monkeypatch.setattr(Reader, "read", lambda *a: pytest.fail("the model ran again"))
    assert store_in(tmp_path).path == first.path and content(tmp_path) == before
    monkeypatch.undo()
    others = [{"seed": 1}, {"order": "sequence"}, {"dtype": "fp16"}, {"drop": Drop.nothing()}, {"tokens": 50},
              {"packing": "isolated"}, {"compute": "bf16"}, {"context": 10}, {"bos": "none"}]  # fmt: skip
    paths = {store_in(tmp_path, **other).path for other in others}
    assert len(paths | {first.path}) == len(others) + 1


def test_low_precision_is_stored_as_such(tmp_path, expected):
    for dtype, kind, error in (("bf16", torch.bfloat16, 8e-3), ("fp16", torch.float16, 1e-3)):
        store = store_in(tmp_path, dtype=dtype, drop=Drop.nothing())
        raw = in_order(store.rows_of(range(store.rows)))
        assert raw["z.1"].dtype == kind
        assert torch.equal(raw["z.1"], expected["z.1"].to(kind))
        assert float((raw["z.1"].float() - expected["z.1"]).abs().max() / expected["z.1"].abs().max()) < error
    assert next(iter(store.stream(batch=8)))["z.1"].dtype == torch.float32


def test_sequence_order_is_that_of_the_text(tmp_path, expected):
    store = store_in(tmp_path, order="sequence", dtype="fp32", drop=Drop.nothing())
    rows = Activations.cat(store.stream(batch=33, epochs=1, shuffle=False))
    assert torch.equal(rows["z.1"], expected["z.1"]) and torch.equal(rows.labels["seq"], expected.labels["seq"])
    mixed = Activations.cat(store.stream(batch=33, epochs=1))
    assert not torch.equal(mixed["z.1"], rows["z.1"]) and torch.equal(in_order(mixed)["z.1"], rows["z.1"])


def test_rows_are_found_by_number(store):
    every = Activations.cat(store.stream(batch=50, epochs=1, shuffle=False))
    wanted = torch.tensor([650, 3, 3, 120, 0])
    found = store.rows_of(wanted, ["z.1"])
    assert found.sites == ("z.1",) and torch.equal(found.x, every["z.1"][wanted])
    assert torch.equal(found.labels["token"], every.labels["token"][wanted]) and store.rows_of([]).rows == 0
    with pytest.raises(BadInput, match="there are"):
        store.rows_of([store.rows])


def test_statistics_are_those_of_the_rows(store):
    x = store.rows_of(range(store.rows))["z.1"].double()
    stats = store.stats("z.1")
    assert stats.count == len(x)
    assert torch.allclose(stats.mean, x.mean(0), rtol=1e-12) and torch.allclose(stats.second, x.T @ x / len(x))
    assert torch.allclose(stats.covariance, torch.cov(x.T, correction=0)) and np.isclose(
        stats.norm, x.norm(dim=1).mean()
    )
    assert np.isclose(stats.variance, (x - x.mean(0)).square().sum(1).mean())
    norms = x.norm(dim=1).sort().values
    assert stats.quantiles[0.0] == norms[0] and stats.quantiles[1.0] == norms[-1]
    assert stats.quantiles[0.5] == norms[round(0.5 * (len(x) - 1))]
    with pytest.raises(BadInput, match="several"):
        store.stats()
    with pytest.raises(UnknownSite, match=r"z\.1"):
        store.stats("z.2")


def test_sinks_are_dropped_and_said(tmp_path):
    model = mn.load(build("llama"), tokenizer=tokenizer(), check="off")
    odd = tokenizer()("w7")["input_ids"][-1]
    with torch.no_grad():
        model.module.get_input_embeddings().weight[odd] *= 1000
    store = harvest(model, TEXTS, "resid_pre.0", tmp_path, **SMALL)
    tokens = store.rows_of(range(store.rows)).labels["token"]
    sinks = int((store.sequences.ids == odd).sum())
    assert sinks > 0 and not (tokens == odd).any() and store.dropped == 60 + sinks
    assert store.stats().quantiles[1.0] <= 10 * store.medians["resid_pre.0"]


def test_batches_mix_sequences(tmp_path):
    """Reading on from anywhere is a random sample: sources per batch and the order of positions are as by chance."""
    texts = some_texts(400, longest=40)
    store = harvest(small(), texts, "resid_post.0", tmp_path, **{**SMALL, "shard_rows": 2000})
    lengths, batch = store.sequences.lengths - 1, 500
    missed = ((1 - lengths / store.rows) ** batch).sum()  # an upper bound: drawing with replacement
    for shuffle in (False, True):
        rows = Activations.cat(store.stream(batch=batch, epochs=1, shuffle=shuffle))
        seq, pos = rows.labels["seq"], rows.labels["pos"].double()
        counts = [len(seq[i : i + batch].unique()) for i in range(0, store.rows - batch, batch)]
        spread = 3 * np.sqrt(len(lengths)) / 2 / np.sqrt(len(counts))
        assert np.mean(counts) > len(lengths) - missed - spread
        for column in (seq.double(), pos):
            x = column - column.mean()
            for lag in (1, 2, 7):
                assert abs(float((x[:-lag] * x[lag:]).mean() / x.square().mean())) < 4 / np.sqrt(store.rows)


def test_positions_of_a_stream_are_exact(store, tmp_path):
    assert isinstance(store.stream(), ActivationStream)
    plain = store_in(tmp_path, order="sequence", drop=Drop.nothing())
    for source, shuffle in ((store, True), (store, False), (plain, True)):

        def make(source=source, shuffle=shuffle):
            return source.stream(batch=90, seed=3, epochs=2, shuffle=shuffle)

        whole, stream = [b["z.1"] for b in make()], make()
        states = [stream.state() for _ in stream]
        assert sum(map(len, whole)) == 2 * source.rows
        half = len(whole) // 2
        assert torch.equal(torch.cat(whole[:half]), torch.cat(whole[half:])) != shuffle
        for done in (1, 5, half, half + 2, len(whole)):
            later = make()
            later.seek(json.loads(json.dumps(states[done - 1])))
            assert all(torch.equal(a, b["z.1"]) for a, b in zip(whole[done:], later, strict=True))
    with pytest.raises(BadInput, match="store was"):
        plain.stream(batch=90, seed=3).seek(store.stream(batch=90, seed=3).state())


def test_damage_is_found_where_it_is(tmp_path):
    store = store_in(tmp_path)
    file = store.shards[2].file(store.path, "z.1")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[: len(whole) // 2], None):
        file.unlink(missing_ok=True)
        if damaged is not None:
            file.write_bytes(damaged)
        for act in (lambda s: s.verify(), lambda s: list(s.stream(epochs=1)), lambda s: s.rows_of([250])):
            store = ActivationStore.open(store.path)
            with pytest.raises(CorruptFile, match=r"00002\.safetensors.*resume=False"):
                act(store)
        assert store.rows_of([5, 105]).rows == 2  # the others are as good as before
    file.write_bytes(whole)
    ActivationStore.open(store.path).verify()
    assert store_in(tmp_path, resume=False).verify() is None
    (store.path / "store.json").write_text('{"format": "activation-store"}')
    with pytest.raises(CorruptFile, match="misses parts"):
        ActivationStore.open(store.path)


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """The disk fills up in every place in turn; what was stored stays, and the harvest ends in the same bytes."""
    monkeypatch.setattr(HARVEST, "_CHUNK", 1)
    monkeypatch.setattr(HARVEST, "_LEAST", 200)
    whole = content(store_in(tmp_path / "whole").path)
    sync, calls = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(sync(descriptor)))
    store_in(tmp_path / "counted")
    assert len(calls) > 60
    for k in range(0, len(calls), 9):
        left = [k]

        def full(descriptor, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(BadInput, match=r"disk is full.*goes on where it stopped"):
            store_in(tmp_path / str(k))
        monkeypatch.setattr(os, "fsync", sync)
        assert content(store_in(tmp_path / str(k)).path) == whole, k


def test_too_little_room_is_said_before_it_starts(tmp_path, monkeypatch):
    with pytest.raises(BudgetTooSmall, match="one sequence needs"):
        store_in(tmp_path, budget="150KB")
    with pytest.raises(BudgetTooSmall, match=r"give shard_rows=[1-9]"):
        store_in(tmp_path, budget="10KB")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(BadInput, match=r"takes about .* more, 1.0 KB are free"):
        store_in(tmp_path)
    assert not list(tmp_path.glob("*/store.json"))


def test_large_harvests_say_what_they_take(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(HARVEST, "_LARGE", 10)
    store_in(tmp_path / "a", quiet=False)
    said = capsys.readouterr().err
    assert re.search(r"about [\d.]+ KB on disk and [\d.]+ .B of memory", said)
    store_in(tmp_path / "b")
    assert not capsys.readouterr().err


def test_two_harvests_of_one_recipe_do_not_meet(tmp_path):
    path = store_in(tmp_path).path
    with lock(path.with_name(f".{path.name}.lock")), pytest.raises(BadInput, match="another process"):
        store_in(tmp_path)


def test_the_model_is_not_changed_and_passes_follow_the_budget(tmp_path):
    model = small()
    before = {name: x.clone() for name, x in model.module.state_dict().items()}
    one = store_in(tmp_path / "a", compute="bf16")
    two = store_in(tmp_path / "b", compute="bf16", budget="1MB")
    assert two.at_once < one.at_once and two.recipe == one.recipe
    assert all(torch.equal(x, before[name]) for name, x in model.module.state_dict().items())


def test_rows_that_are_no_numbers_end_a_harvest_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(HARVEST, "_CHUNK", 1)
    monkeypatch.setattr(HARVEST, "_LEAST", 200)
    monkeypatch.setattr("mechanome.activations.policy.CALIBRATION", 100)
    whole = content(store_in(tmp_path / "whole").path)
    read = Reader.read

    def broken(self, wanted):
        if 40 in wanted:
            raise NotFinite("'z.1' of sequence 40", "NaN")
        return read(self, wanted)

    monkeypatch.setattr(Reader, "read", broken)
    with pytest.raises(NotFinite):
        store_in(tmp_path / "part")
    part = next((tmp_path / "part").glob("*/store.json")).parent
    assert json.loads((part / "progress.json").read_text())["chunks"] > 0
    with pytest.raises(BadInput, match="goes on where it stopped"):
        ActivationStore.open(part).stream()
    monkeypatch.setattr(Reader, "read", read)
    shutil.copytree(tmp_path / "part", tmp_path / "lost")
    assert content(store_in(tmp_path / "part").path) == whole
    bucket = max((tmp_path / "lost").glob("*/unsorted/*.rows"), key=lambda file: file.stat().st_size)
    os.truncate(bucket, bucket.stat().st_size - 1)
    with pytest.raises(CorruptFile, match=r"were written.*resume=False"):
        store_in(tmp_path / "lost")
    assert content(store_in(tmp_path / "lost", resume=False).path) == whole


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"order": "random"}, "order"),
        ({"dtype": "int4"}, "dtype"),
        ({"tokens": 10**6}, "the texts hold only"),
        ({"shard_rows": 0}, "shard_rows"),
        ({"drop": Drop(positions=range(300))}, "left out all"),
        ({"context": 65, "bos": "none"}, None),
    ],
    ids=["order", "dtype", "tokens", "shard_rows", "everything_dropped", "long_context_of_short_texts"],
)
def test_misuse_of_a_harvest_is_refused(tmp_path, settings, says):
    if says is None:
        assert store_in(tmp_path, **settings).complete
        return
    with pytest.raises(BadInput, match=says):
        store_in(tmp_path, **settings)


def test_rows_of_ones_own_become_a_store(tmp_path):
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    labels = {"seq": torch.arange(500) // 7, "y": torch.arange(500) % 3 == 0}
    rows = Activations({"a/b:c": x}, labels)
    store = ActivationStore.create(tmp_path / "own", rows, dtype="fp32", shard_rows=64, recipe={"model": "mine"})
    found = Activations.cat(ActivationStore.open(tmp_path / "own").stream(epochs=1))
    assert found.rows == 500 and store.recipe["model"] == "mine" and store.stats().count == 500
    back = {tuple(r.tolist()): (int(s), bool(y)) for r, s, y in zip(found.x, found.labels["seq"], found.labels["y"])}
    assert all(back[tuple(r.tolist())] == (int(s), bool(y)) for r, s, y in zip(x, labels["seq"], labels["y"]))
    kept = ActivationStore.create(tmp_path / "kept", ArrayActivations(x, epochs=1, shuffle=False), order="sequence")
    assert torch.equal(kept.rows_of(range(500)).x, x.bfloat16())
    with pytest.raises(BadInput, match="there already"):
        ActivationStore.create(tmp_path / "own", rows)
    with pytest.raises(BadInput, match="never ends"):
        ActivationStore.create(tmp_path / "new", ArrayActivations(x))
    with pytest.raises(NotFinite, match="row 3"):
        ActivationStore.create(tmp_path / "new", Activations({"a": torch.tensor([[1.0]] * 3 + [[float("nan")]])}))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["kept", "own"]


def test_buckets_are_of_about_equal_size_so_that_memory_is_bounded(tmp_path):
    rows = Activations(
        {"a": torch.arange(10_000.0)[:, None]}, {"seq": torch.arange(10_000), "pos": torch.zeros(10_000)}
    )
    for order, spread in (("shuffled", 5 * np.sqrt(1000)), ("sequence", 0)):
        writer = Writer(tmp_path / order, {"a": 1}, "fp32", order, 10_000, 1000, 0)
        for start in range(0, 10_000, 700):
            part = rows.take(slice(start, start + 700))
            writer.add(part, np.arange(start, start + part.rows), 0)
        assert len(writer.progress.lengths) == 10
        assert max(abs(length - 1000) for length in writer.progress.lengths) <= spread
        assert [shard.rows for shard in writer.finish()] == [1000] * 10


def test_every_epoch_has_its_own_order_within_a_shard(tmp_path):
    store = ActivationStore.create(tmp_path / "one", Activations({"a": torch.arange(200.0)[:, None]}), dtype="fp32")
    first, second = store.stream(batch=200, epochs=2)
    assert len(store.shards) == 1 and not torch.equal(first.x, second.x)
    assert not torch.equal(first.x, next(iter(store.stream(batch=200, seed=1))).x)
