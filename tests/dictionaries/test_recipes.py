"""Recipes: every field in its one form, or refused by name; making one costs nothing and draws no random number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechanome.activations import ArrayActivations, PlantedFeatures
from mechanome.core.errors import BadInput
from mechanome.dictionaries import (
    ARCHITECTURES,
    BatchTopK,
    Crosscoder,
    Gated,
    JumpReLU,
    Matryoshka,
    PolySAE,
    ReLU,
    SkipTranscoder,
    TopK,
    Transcoder,
    fit,
)
from mechanome.dictionaries.architectures import AbsTopK


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        pytest.param(ReLU, {"width": 2.5}, "width = 2.5", id="half a latent"),
        pytest.param(ReLU, {"width": True}, "width = True", id="true latents"),
        pytest.param(ReLU, {"width": "64"}, "width = '64'", id="width as text"),
        pytest.param(ReLU, {"width": float("nan")}, "width = nan", id="width nan"),
        pytest.param(ReLU, {"width": 8, "l1": float("nan")}, "l1 = nan", id="l1 nan"),
        pytest.param(ReLU, {"width": 8, "l1": "much"}, "l1 = 'much'", id="l1 as text"),
        pytest.param(Gated, {"width": 8, "l1": float("inf")}, "l1 = inf", id="l1 infinite"),
        pytest.param(TopK, {"width": 8, "k": 2.0}, "k = 2.0", id="k a float"),
        pytest.param(TopK, {"width": 8, "k": None}, "k = None", id="no k"),
        pytest.param(TopK, {"width": 8, "k": 2, "aux_k": 1.5}, "aux_k = 1.5", id="aux_k a float"),
        pytest.param(TopK, {"width": 8, "k": 2, "aux_weight": float("nan")}, "aux_weight = nan", id="aux_weight nan"),
        pytest.param(TopK, {"width": 8, "k": 2, "k_start": 3.5}, "k_start = 3.5", id="k_start a float"),
        pytest.param(TopK, {"width": 8, "k": 2, "dead_after": 1.5}, "dead_after = 1.5", id="dead_after a float"),
        pytest.param(JumpReLU, {"width": 8, "threshold": float("nan")}, "threshold = nan", id="threshold nan"),
        pytest.param(JumpReLU, {"width": 8, "bandwidth": "a"}, "bandwidth = 'a'", id="bandwidth as text"),
        pytest.param(Matryoshka, {"width": 8, "k": 2, "groups": 8}, "groups = 8", id="groups a number"),
        pytest.param(Matryoshka, {"width": 8, "k": 2, "groups": (1.5, 6.5)}, "groups = ", id="halves in groups"),
        pytest.param(Matryoshka, {"width": 8, "k": 2, "groups": "ab"}, "groups = 'ab'", id="groups as text"),
        pytest.param(PolySAE, {"width": 8, "k": 2, "ranks": (4.5, 2, 2)}, "ranks = ", id="halves in ranks"),
        pytest.param(PolySAE, {"width": 8, "k": 2, "ranks": (4, 2, 2), "shared": 1}, "shared = 1", id="a flag as 1"),
        pytest.param(PolySAE, {"width": 8, "k": 2, "ranks": (4, 2, 2), "power_rate": -1}, "power_rate", id="rate"),
        pytest.param(Transcoder, {"inner": "topk"}, "it is no recipe", id="a name inside"),
        pytest.param(SkipTranscoder, {"inner": None}, "it is no recipe", id="nothing inside"),
        pytest.param(Crosscoder, {"inner": TopK}, "it is no recipe", id="a class inside"),
    ],
)
def test_fields_of_another_kind_are_refused_by_name(kind, fields, said):
    with pytest.raises(BadInput, match=said):
        kind(**fields)


def test_fields_come_in_one_form():
    recipe = Matryoshka(np.int64(8), k=np.int32(2), groups=[np.int64(3), 5], aux_weight=0)
    assert recipe == Matryoshka(8, k=2, groups=(3, 5), aux_weight=0.0)
    assert type(recipe.k) is int and type(recipe.width) is int


def test_the_second_number_is_k():
    assert TopK(64, 8) == TopK(64, k=8) and PolySAE(64, 8, ranks=(4, 2, 1)).k == 8
    assert TopK(64, 8).dead_after == TopK(64).dead_after


def test_making_a_recipe_draws_no_random_number():
    before = torch.get_rng_state()
    Matryoshka(64, k=2), PolySAE(64, k=2, ranks=(8, 4, 2)), JumpReLU(64), ARCHITECTURES["groupmax"](64, k=8)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("size", [0, 2.5, "a", None])
def test_sizes_of_activations_are_counts(size):
    with pytest.raises(BadInput, match="d_in"):
        TopK(8, k=2).build(size)


@pytest.mark.parametrize("kind", [BatchTopK, Matryoshka])
@pytest.mark.parametrize("steps", [20, 60])
def test_a_short_fit_leaves_the_threshold_of_its_last_weights(kind, steps):
    fitted = fit(kind(64, k=4), PlantedFeatures(64, 16, batch=512), steps=steps, lr=2e-3, quiet=True)
    x, _ = PlantedFeatures(64, 16, batch=4000).batch(steps + 5)
    assert float(fitted.dictionary.encode(x).l0().float().mean()) == pytest.approx(4, rel=0.15)


def test_negative_values_count_as_active():
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    fitted = fit(AbsTopK(16, k=4, dead_after=200), ArrayActivations(x, batch=50), steps=8, quiet=True)
    assert fitted.report["last_l0"] == 4.0
