"""Labelled rows, the order without memory, and positions of streams."""

import numpy as np
import pytest
import torch

from mechanome.activations import ROLES, Activations, ActivationStream, ArrayActivations
from mechanome.activations.permutation import Permutation, hashed
from mechanome.core.errors import BadInput, CorruptFile, ShapeMismatch, UnknownName, UnknownSite


def rows_of(n=10, d=3):
    labels = {"seq": torch.arange(n) // 4, "role": (torch.arange(n) % 3).to(torch.int8)}
    return Activations({"a": torch.arange(n * d, dtype=torch.float32).reshape(n, d), "b": torch.ones(n, 2)}, labels)


def test_rows_keep_their_labels():
    rows = rows_of()
    assert rows.rows == len(rows) == 10 and rows.sites == ("a", "b") and rows.widths == {"a": 3, "b": 2}
    taken = rows.take(torch.tensor([7, 1]))
    assert torch.equal(taken["a"], rows["a"][[7, 1]]) and taken.labels["seq"].tolist() == [1, 0]
    assert rows.only("b").sites == ("b",) and torch.equal(rows.only("b").x, rows["b"])
    assert rows.where(seq=1).rows == 4 and rows.where(seq=[0, 1], role="template").labels["role"].tolist() == [1, 1, 1]
    assert (
        rows.to(torch.bfloat16)["a"].dtype == torch.bfloat16
        and rows.to(torch.bfloat16).labels["seq"].dtype == torch.int64
    )
    flagged = Activations({"a": torch.eye(3)}, {"y": torch.tensor([True, False, True])})
    assert flagged.where(y=True).rows == 2 and flagged.where(y=[True, False]).rows == 3
    both = Activations.cat([rows, rows.take(slice(0, 2))])
    assert both.rows == 12 and torch.equal(both["a"][10:], rows["a"][:2]) and ROLES[0] == "text"


@pytest.mark.parametrize(
    ("act", "error", "says"),
    [
        (lambda: rows_of().x, BadInput, "a, b"),
        (lambda: rows_of()["c"], UnknownSite, "valid names are a, b"),
        (lambda: rows_of().where(sequence=1), UnknownName, "seq"),
        (lambda: rows_of().where(role="assistent"), UnknownName, "assistant"),
        (lambda: Activations({}), BadInput, "no site"),
        (lambda: Activations({"a": torch.ones(3)}), ShapeMismatch, r"\[row, d\]"),
        (lambda: Activations({"a": torch.ones(3, 2)}, {"seq": torch.ones(4)}), ShapeMismatch, "others have 3"),
        (lambda: Activations.cat([rows_of(), rows_of().only("a")]), UnknownSite, "equal sites"),
        (lambda: ArrayActivations(torch.ones(0, 3)), BadInput, "no rows"),
        (lambda: ArrayActivations(torch.ones(2, 3), batch=0), BadInput, "batch"),
    ],
    ids=["x", "site", "label", "role", "empty", "axes", "rows", "cat", "no_rows", "batch"],
)
def test_misuse_is_refused(act, error, says):
    with pytest.raises(error, match=says):
        act()


@pytest.mark.parametrize("n", [1, 2, 3, 17, 256, 1000])
def test_a_permutation_is_one_to_one(n):
    assert sorted(Permutation(n, 3, 1)(np.arange(n))) == list(range(n))


def test_permutations_are_random():
    """Over 4000 keys, each of 5 items lands on each of 5 places equally often (chi-squared, 16 degrees of freedom)."""
    counts = np.zeros((5, 5))
    for key in range(4000):
        counts[np.arange(5), Permutation(5, key)(np.arange(5))] += 1
    assert ((counts - 800) ** 2 / 800).sum() < 45  # p = 1e-4
    order = Permutation(100_000, 0)(np.arange(100_000))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 4 / np.sqrt(100_000)
    assert not np.array_equal(hashed(np.arange(9), 0), hashed(np.arange(9), 1))


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in_order"])
def test_an_epoch_visits_every_row_once(shuffle):
    stream = ArrayActivations(torch.arange(23.0)[:, None], batch=5, epochs=2, shuffle=shuffle)
    assert isinstance(stream, ActivationStream) and stream.rows == 23
    batches = list(stream)
    assert [b.rows for b in batches] == [5, 5, 5, 5, 3] * 2
    first, second = (torch.cat([b.x for b in half]).flatten() for half in (batches[:5], batches[5:]))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(23))
    assert torch.equal(first, second) != shuffle
    assert all(torch.equal(b.labels["seq"], b.x.flatten().long()) for b in batches)


def test_a_position_is_found_again():
    def make(rows=20):
        return ArrayActivations(torch.arange(float(rows))[:, None], batch=5, epochs=2, seed=4)

    whole, stream = [b.x for b in make()], make()
    states = [stream.state() for _ in stream]
    for done, state in enumerate(states, 1):
        later = make()
        later.seek(state)
        assert all(torch.equal(a, b.x) for a, b in zip(whole[done:], later, strict=True))
    with pytest.raises(BadInput, match="rows was 20, now 23"):
        make(23).seek(states[0])
    with pytest.raises(CorruptFile):
        make().seek({"epoch": 1})
