"""Streams that run the model: all rows, mixed, and exact positions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from small_models import small, some_texts, tokenizer

from mechanome.activations import (
    Activations,
    ActivationStore,
    ActivationStream,
    Drop,
    GeneratedActivations,
    ModelActivations,
)
from mechanome.activations.reader import Reader
from mechanome.activations.sequences import sequences
from mechanome.core.errors import BadInput, CorruptFile

TEXTS = some_texts(80)
PROMPTS = ["w1 w2 w3", "w4", "w5 w6", "w7 w8", "w9"]
ALONE = {"packing": "sequence", "compute": "model"}


def live(texts=TEXTS, site="resid_post.0", **settings):
    return ModelActivations(small(), texts, site, **{**ALONE, "batch": 100, "mix": 300, "epochs": 1, **settings})


def written(**settings):
    return GeneratedActivations(
        small(), PROMPTS, ["resid_post.1", "z.0"], **{"batch": 7, "max_new_tokens": 5, **settings}
    )


def key(rows):
    return list(zip(rows.labels["seq"].tolist(), rows.labels["pos"].tolist()))


@pytest.mark.parametrize("mix", [0, 300, 10**6])
def test_every_row_comes_once_an_epoch(mix):
    data = sequences(TEXTS, tokenizer(), packing="sequence")
    wanted = Reader(small(), "resid_post.0", data, compute="model").read(np.arange(len(data)))
    stream = live(mix=mix, epochs=2, drop=Drop(sinks=False))
    assert isinstance(stream, ActivationStream) and stream.sites == ("resid_post.0",) and stream.widths == wanted.widths
    batches = list(stream)
    assert stream.rows == wanted.rows - 80 and sum(b.rows for b in batches) == 2 * stream.rows
    half = len(batches) // 2
    first, second = Activations.cat(batches[:half]), Activations.cat(batches[half:])
    place = {where: i for i, where in enumerate(key(wanted))}
    assert len({*key(first)}) == first.rows and {*key(first)} == {*key(second)}
    assert (key(first) != key(second)) == bool(mix)
    begins = [{*stream.piece(epoch, 0).labels["seq"].tolist()} for epoch in (0, 1)]
    assert (begins[0] != begins[1]) == (mix == 300)  # an epoch begins with other sequences; 10**6 holds them all
    assert torch.allclose(first.x, wanted.x[[place[where] for where in key(first)]], atol=1e-5)


def test_the_buffer_is_bounded_and_mixes(monkeypatch):
    """No more than `mix` rows wait or are read at a time, and a batch draws from as many sequences as they are of."""
    texts, held = some_texts(300, longest=30), []
    stream = live(texts, mix=1500, batch=200)
    piece = stream.piece

    def watched(epoch, k):
        rows = piece(epoch, k)
        held.append(rows.rows + (stream._waiting[1].rows if stream._waiting is not None else 0))
        return rows

    monkeypatch.setattr(stream, "piece", watched)
    batches = list(stream)
    assert max(held) <= 1.05 * 1500 and len(held) == stream.pieces(0)
    sources = [len(b.labels["seq"].unique()) for b in batches[2:-8]]
    plain = [len(b.labels["seq"].unique()) for b in live(texts, mix=0, batch=200)]
    assert min(sources) > 3.5 * max(plain)
    for b in batches[3:-8]:
        pos = b.labels["pos"].double() - b.labels["pos"].double().mean()
        assert abs(float((pos[:-1] * pos[1:]).mean() / pos.square().mean())) < 4.5 / np.sqrt(b.rows)


@pytest.mark.parametrize("mix", [0, 300])
def test_positions_of_a_live_stream_are_exact(mix):
    def make():
        return live(mix=mix, epochs=2, seed=5, batch=90)

    whole, stream = [b.x for b in make()], make()
    states = [stream.state() for _ in stream]
    for done in (1, 4, len(whole) // 2, len(whole) - 1, len(whole)):
        later = make()
        later.seek(json.loads(json.dumps(states[done - 1])))
        assert all(torch.equal(a, b.x) for a, b in zip(whole[done:], later, strict=True))
    again = make()
    for done in (len(whole) - 2, 3, len(whole) // 2):  # back and forth in one object
        again.seek(states[done - 1])
        assert torch.equal(next(iter(again)).x, whole[done])
    with pytest.raises(BadInput, match="drop was"):
        live(mix=mix, seed=5, batch=90, drop=Drop.nothing()).seek(states[0])
    with pytest.raises(CorruptFile):
        live().seek({})


def test_misuse_of_a_live_stream_is_refused():
    with pytest.raises(BadInput, match="mix"):
        live(mix=-1)
    with pytest.raises(BadInput, match="the texts hold only"):
        live(tokens=10**6)
    with pytest.raises(BadInput, match="no rows"):
        list(live(drop=Drop(positions=range(50))))
    with pytest.raises(BadInput, match=r"mn\.load"):
        ModelActivations(small().module, TEXTS, "resid_post.0")


def test_token_rows_and_chats_are_read_too():
    ids = torch.randint(7, 80, (4, 6), generator=torch.Generator().manual_seed(0))
    rows = Activations.cat(live(ids, mix=0, bos="none", drop=Drop.nothing()))
    assert torch.equal(rows.labels["token"].reshape(4, 6), ids)
    chat = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    rows = Activations.cat(live([chat] * 3, mix=0))
    assert rows.where(role="assistant").labels["token"].tolist() == [10] * 3


def test_generated_states_are_those_of_the_tokens():
    """A state of step s is that of a plain run over the prompt and the tokens before s + 1."""
    stream = written(mix=0, epochs=1)
    assert isinstance(stream, ActivationStream) and stream.widths == {"resid_post.1": 32, "z.0": 32}
    rows = Activations.cat(stream)
    for i, prompt in enumerate(PROMPTS):
        mine, ids = rows.where(seq=i), small().encode(prompt).input_ids[0].tolist()
        new = mine.labels["next"].tolist()
        assert mine.labels["step"].tolist() == list(range(len(new)))
        assert mine.labels["token"].tolist() == [ids[-1], *new][:-1]
        assert mine.labels["pos"].tolist() == list(range(len(ids) - 1, len(ids) - 1 + len(new)))
        run = small().run([ids + new], capture=["resid_post.1", "z.0"])
        for site in stream.sites:
            expected = run[site][0, len(ids) - 1 : -1].flatten(1)
            assert torch.allclose(mine[site], expected, atol=1e-4)


@pytest.mark.parametrize("mix", [0, 12])
def test_positions_of_generated_streams_are_exact(mix):
    def make(**settings):
        return written(mix=mix, epochs=2, rows_at_once=2, temperature=1.0, **settings)

    whole, stream = [b["z.0"] for b in make()], make()
    states = [stream.state() for _ in stream]
    half = [b.labels["next"] for b in make()]
    assert not torch.equal(torch.cat(half)[:10], torch.cat(half)[-10:])
    for done in (1, 3, len(whole)):
        later = make()
        later.seek(states[done - 1])
        assert all(torch.equal(a, b["z.0"]) for a, b in zip(whole[done:], later, strict=True))
    with pytest.raises(BadInput, match="options"):
        make(top_k=5).seek(states[0])
    with pytest.raises(BadInput, match="capture="):
        written(capture="z.1")


def test_generated_rows_become_a_store(tmp_path):
    store = ActivationStore.create(tmp_path / "store", written(epochs=1), dtype="fp32", order="sequence")
    rows = Activations.cat(written(epochs=1))
    found = store.rows_of(range(store.rows))
    assert torch.equal(found["z.0"], rows["z.0"]) and torch.equal(found.labels["step"], rows.labels["step"])
