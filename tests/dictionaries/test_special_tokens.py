"""Steering at special tokens: positions as an edit counts them, and an edit that acts there and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mechanome.core import BadInput
from mechanome.dictionaries import Latent, TopK
from mechanome.dictionaries.features import special_positions
from mechanome.engine import load
from registry_models import need

SITE = "resid_post.3"


@pytest.fixture(scope="module")
def model() -> Any:
    need("smollm2-135m-instruct")
    return load("smollm2-135m-instruct")


@pytest.mark.real_model
def test_positions_are_those_of_the_template_whatever_is_padded(model: Any) -> None:
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    batch = model.encode([text, f"some words before {text}"], bos="none")
    found = special_positions(model, batch)
    for row, (start, length) in enumerate(zip(batch.frame.starts, batch.frame.lengths)):
        words = [model.tokenizer.decode(i) for i in batch.input_ids[row, start : start + length]]
        assert [words[pos] for pos in found[row]] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    ends = special_positions(model, batch, ["<|im_end|>"])
    assert [len(row) for row in ends] == [1, 1] and set(ends[0]) <= set(found[0])
    with pytest.raises(BadInput, match="hold none"):
        special_positions(model, model.encode(["plain words"], bos="none"))


@pytest.mark.real_model
def test_a_latent_set_there_moves_nothing_else_at_the_site(model: Any) -> None:
    torch.manual_seed(0)
    dictionary = TopK(8, k=2).build(model.run("Hi", [SITE], logits=False)[SITE].shape[-1], sites_in=(SITE,))
    batch = model.encode(["<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>user\nHow are you?<|im_end|>\n"])
    where = special_positions(model, batch)
    edit = Latent(dictionary, 3).set(50.0, unit="value", pos=where)
    before, after = (model.run(batch, [SITE], edits=e, logits=False)[SITE] for e in ((), edit))
    moved = (after - before).norm(dim=-1) > 1e-2
    for row, (start, length) in enumerate(zip(batch.frame.starts, batch.frame.lengths)):
        assert moved[row, start : start + length].nonzero().flatten().tolist() == list(where[row])
