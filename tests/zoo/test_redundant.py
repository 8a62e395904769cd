"""The redundant transformer: what its documents say, which tokens the loss is taken on, and that a seed is a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechanome.core import BadInput
from mechanome.zoo import RedundantRecipe, object_prompts, train_redundant
from mechanome.zoo.redundant import LENGTH, TOKENS, VOCAB, _known, documents

TINY = RedundantRecipe(layers=1, heads=2, width=16, mlp=16, steps=3, batch=9)


def kinds(row: torch.Tensor) -> list[str]:
    return [next(name for name, span in TOKENS.items() if int(token) in span) for token in row]


def test_documents_are_of_three_tasks() -> None:
    ids = documents(30, torch.Generator().manual_seed(0))
    assert ids.shape == (30, LENGTH) and VOCAB == 160 and not ids[:, 0].any()
    for row in ids[:10]:
        assert len({*row[[1, 3]].tolist()}) == 2 and row[6] in row[[1, 3]]
        assert {int(row[6]), int(row[10])} == {*row[[1, 3]].tolist()}, "who receives is the one who does not give"
    for row in ids[10:20]:
        said = kinds(row)
        assert said[6] == f"verb {said[2]}" and said[5] in ("singular", "plural")
    assert {tuple(kinds(row)[2:6:3]) for row in documents(300, torch.Generator())[100:200]} == {
        (a, b) for a in ("singular", "plural") for b in ("singular", "plural")
    }
    for row in ids[20:]:
        assert torch.equal(row[1:6], row[6:]) and len({*row[1:6].tolist()}) == 5


def test_the_loss_is_on_what_can_be_known() -> None:
    known = _known(9)
    assert known.sum(1).tolist() == [1, 1, 1, 1, 1, 1, 5, 5, 5]
    assert known[0].nonzero().tolist() == [[9]] and known[3].nonzero().tolist() == [[5]]
    assert known[6].nonzero()[:, 0].tolist() == [5, 6, 7, 8, 9]


def test_prompts_end_before_the_name() -> None:
    found = object_prompts(200, seed=3)
    assert found.ids.shape == (200, LENGTH - 1) and len(found[:5]) == 5
    assert bool((found.ids[:, 6] == found.bad).all()) and bool((found.good != found.bad).all())
    assert int((found.ids[:, 1] == found.good).sum()) == 100, "half have the good name first"
    assert torch.equal(found.ids, object_prompts(200, seed=3).ids)
    assert not torch.equal(found.ids, object_prompts(200, seed=4).ids)


def test_a_seed_is_a_model_and_training_drops_and_stops_dropping() -> None:
    models = [train_redundant(seed, TINY, quiet=True) for seed in (0, 0, 1)]
    models.append(train_redundant(0, replace(TINY, dropped=0.0), quiet=True))
    ids = object_prompts(4).ids
    with torch.no_grad():
        first, again, other, dry = (model(input_ids=ids).logits for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other) and not torch.equal(first, dry)
    models[0].train()
    with torch.no_grad():
        assert torch.equal(models[0](input_ids=ids).logits, first), "no hook is left"


def test_bad_recipes() -> None:
    for wrong in ({"layers": 0}, {"dropped": 1.0}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            RedundantRecipe(**wrong)
