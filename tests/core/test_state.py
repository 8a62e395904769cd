import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanome.core import BadInput, CorruptFile, flatten, seeded, unflatten
from mechanome.core.state import rng_state, set_rng_state

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.integers(0, 9).map(lambda n: torch.arange(float(n)))
    | st.integers(0, 9).map(np.arange)
)
KEYS = st.text(max_size=4) | st.integers() | st.sampled_from(["$tensor", "$tuple", "a/b", "a"])
NESTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=10,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@given(NESTS)
@settings(max_examples=150, deadline=None)
def test_flatten_is_invertible_through_json(tree):
    tensors, skeleton = flatten(tree)
    assert same(unflatten(tensors, json.loads(json.dumps(skeleton, allow_nan=False))), tree)


def test_names_say_where_a_tensor_belongs():
    tensors, _ = flatten({"model": {"0.weight": torch.ones(1)}, "optimizer": {"state": {0: {"step": torch.ones(())}}}})
    assert list(tensors) == ["state/model/0.weight", "state/optimizer/state/0/step"]


def test_tensors_whose_names_collide_are_kept_apart():
    tree = {"a/b": torch.tensor(1.0), "a": {"b": torch.tensor(2.0)}, 0: torch.tensor(3.0), "0": torch.tensor(4.0)}
    tensors, skeleton = flatten(tree)
    assert len(tensors) == 4
    assert same(unflatten(tensors, skeleton), tree)


def test_what_cannot_be_kept_is_named():
    with pytest.raises(BadInput, match="state/schedule/rule: a function"):
        flatten({"schedule": {"rule": lambda step: step}})


def test_damage_is_refused():
    with pytest.raises(CorruptFile, match="missing"):
        unflatten({}, {"a": {"$tensor": "state/a"}})
    with pytest.raises(CorruptFile, match="unknown mark"):
        unflatten({}, {"$pickle": "x"})


def draw():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random(), np.random.normal(), random.gauss(0, 1)


def test_generators_go_back_through_a_file():
    draw()
    tensors, skeleton = flatten(rng_state())
    first = draw()
    draw()
    set_rng_state(unflatten(tensors, json.loads(json.dumps(skeleton))))
    assert draw() == first


def test_seeded_repeats_and_leaves_the_caller_alone():
    before = rng_state()
    with seeded(3):
        first = draw()
    assert same(rng_state(), before)
    with pytest.raises(KeyError), seeded(3):
        assert draw() == first
        raise KeyError
    assert same(rng_state(), before)
    with seeded(4):
        assert draw() != first
