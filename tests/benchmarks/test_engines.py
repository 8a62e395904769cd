"""The workers that run in the project's own environment give the same numbers, whichever way they go."""

import pytest
import torch
from benchmarks.engines import hugging_face, mechanome
from benchmarks.engines.common import Sweep
from benchmarks.harness.pairing import difference
from benchmarks.prompts import PAIRS, halves, rows
from transformers import LlamaConfig, LlamaForCausalLM

import mechanome as mn

REQUEST = {"clean": [1, 5, 9, 4, 3], "corrupted": [1, 5, 7, 4, 2], "answer": 11, "foil": 12}
TASKS = ("residual_sweep", "head_sweep")


class Words:
    """A tokenizer of words: ids by first sight."""

    bos_token_id = 1

    def __init__(self):
        self.seen = {}

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [self.seen.setdefault(w, len(self.seen) + 2) for w in text.split()]}


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
    )
    model = LlamaForCausalLM(config).eval()
    model.config.head_dim = 6
    return model


@pytest.fixture(autouse=True)
def no_autograd():
    with torch.no_grad():
        yield


def arrays(found):
    return {name: value.numpy() for name, value in (found() if callable(found) else found).items()}


def test_a_twin_is_a_plain_module_with_the_same_weight_tensors(plain):
    model = mn.load(plain)
    one, other = mechanome.twin(model, 0), mechanome.twin(model, 1)
    assert one is not other and one is mechanome.twin(model, 0) and one.config._attn_implementation == "sdpa"
    ours = {name: p.data_ptr() for name, p in model.module.named_parameters()}
    assert ours == {name: p.data_ptr() for name, p in one.named_parameters()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in one.modules())
    request = {"ids": [REQUEST["clean"]], "capture": False, "stride": 1}
    found = [arrays(task(model, {**request, "copy": 0})()) for task in (mechanome.forward, mechanome.plain_forward)]
    assert difference(*found) < 1e-6


@pytest.mark.parametrize("task", TASKS)
def test_rows_cells_and_ours_agree(plain, task):
    cells, by_rows = (arrays(getattr(hugging_face, task)(plain, {**REQUEST, "way": w})()) for w in ("cells", "rows"))
    ours = arrays(getattr(mechanome, task)(mn.load(plain), REQUEST)())
    assert difference(cells, by_rows) < 1e-5
    assert difference(ours, cells) < 1e-5
    grid = cells["metric"]
    assert grid.shape == (3, 5 if task == "residual_sweep" else 4)
    assert grid.std() > 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_a_part_of_the_grid_is_that_part(plain, task):
    part = {"layers": [0, 2], "positions": [2, 3]}
    whole = arrays(getattr(hugging_face, task)(plain, {**REQUEST, "way": "rows"})())["metric"]
    for way in ("rows", "cells"):
        some = arrays(getattr(hugging_face, task)(plain, {**REQUEST, "way": way, **part})())["metric"]
        assert torch.isfinite(torch.tensor(some)).sum() == 4
        assert difference({"x": some}, {"x": whole}) < 1e-5
    ours = arrays(getattr(mechanome, task)(mn.load(plain), {**REQUEST, **part})())["metric"]
    assert torch.isfinite(torch.tensor(ours)).sum() == 4
    assert difference({"x": ours}, {"x": whole}) < 1e-5


def test_forward_and_generate_agree(plain):
    args = {"ids": [[1, 5, 9]], "capture": False, "stride": 1}
    theirs = arrays(hugging_face.forward(plain, args)())
    vector = [50.0, -50.0] + [0.0] * 22
    steered = {"ids": [1, 5, 9], "tokens": 6, "layer": 1, "vector": vector}
    hooked = arrays(hugging_face.generate(plain, steered)())
    unsteered = arrays(hugging_face.generate(plain, {**steered, "vector": None})())
    model = mn.load(plain)
    assert difference(arrays(mechanome.forward(model, args)()), theirs) == 0.0
    captured = arrays(mechanome.forward(model, {**args, "capture": True})())
    assert difference(captured, theirs) == 0.0
    assert captured["z"].shape == (3, 1, 3, 24)
    made = arrays(mechanome.generate(model, steered)())
    assert made["ids"].shape == (6,)
    assert difference(made, hooked) == 0.0
    assert difference(made, unsteered) > 0.0


def test_prompts_are_pairs_of_equal_length():
    words = Words()
    for pair in PAIRS.values():
        request = pair.request(words)
        assert len(request["clean"]) == len(request["corrupted"])
        assert request["clean"] != request["corrupted"]
        assert request["clean"][0] == 1
    request = halves(words, 14)
    differs = [i for i, (a, b) in enumerate(zip(request["clean"], request["corrupted"])) if a != b]
    assert differs == [7] and len(request["clean"]) == 14
    made = rows(words, 3, 200)
    assert [len(r) for r in made] == [200, 200, 200] and len({tuple(r) for r in made}) == 3


def test_sweep_request():
    sweep = Sweep.of({**REQUEST, "layers": [1], "positions": [0, 4]}, layers=3)
    assert not sweep.whole and sweep.shape == (3, 5)
    assert Sweep.of(REQUEST, layers=3).whole
    grid = sweep.grid(torch.tensor([7.0, 8.0]))["metric"]
    assert grid[1, 0] == 7 and grid[1, 4] == 8 and torch.isnan(grid).sum() == 13
