import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mechanome.core import BadInput, Batches, CorruptFile, Stream


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 5), st.booleans())
def test_each_epoch_visits_every_row_once(rows, size, seed, shuffle):
    flat = torch.cat(list(Batches(rows, size, seed=seed, epochs=2, shuffle=shuffle)))
    assert sorted(flat[:rows].tolist()) == sorted(flat[rows:].tolist()) == list(range(rows))
    if not shuffle:
        assert flat.tolist() == list(range(rows)) * 2


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 30))
def test_seek_goes_on_exactly(rows, size, taken):
    whole = [batch.tolist() for batch in Batches(rows, size, seed=1, epochs=3)]
    stream = Batches(rows, size, seed=1, epochs=3)
    head = [batch.tolist() for batch, _ in zip(stream, range(min(taken, len(whole))))]
    # zip asks for one batch more than it keeps where the range ends first.
    fresh = Batches(rows, size, seed=1, epochs=3)
    iterator = iter(fresh)
    for _ in head:
        next(iterator)
    other = Batches(rows, size, seed=1, epochs=3)
    other.seek(json.loads(json.dumps(fresh.state())))
    assert head + [batch.tolist() for batch in other] == whole


def test_order_depends_on_seed_and_epoch():
    def first(seed):
        return torch.cat(list(Batches(50, 50, seed=seed, epochs=2))).split(50)

    (a, b), (c, _) = first(0), first(1)
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(a, first(0)[0])


def test_positions_of_other_batches_are_refused():
    stream = Batches(10, 2, seed=0)
    assert isinstance(stream, Stream)
    for other, name in ((Batches(11, 2), "rows"), (Batches(10, 3), "size"), (Batches(10, 2, seed=1), "seed")):
        with pytest.raises(BadInput, match=name):
            stream.seek(other.state())
    with pytest.raises(CorruptFile):
        stream.seek({"epoch": 1})
    with pytest.raises(BadInput):
        Batches(0, 2)
