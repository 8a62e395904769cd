"""Every architecture finds the features that its data were made of; an untrained one does not."""

import pytest
import torch
from planted_streams import WIDTH, D, planted, polynomial, recovery, two_sites

from mechanome.dictionaries import (
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

DEAD = {"dead_after": 5000}
FOUND, NOT_FOUND = 0.9, 0.6
FITTING = {"steps": 500, "lr": 5e-3, "quiet": True}

AUTOENCODERS = {
    "relu": ReLU(WIDTH, l1=2.0),
    "topk": TopK(WIDTH, k=2, **DEAD),
    "batchtopk": BatchTopK(WIDTH, k=2, **DEAD),
    "jumprelu": JumpReLU(WIDTH, sparsity=0.5),
    "gated": Gated(WIDTH, l1=4.0),
    "matryoshka": Matryoshka(WIDTH, k=2, groups=(16, 16), **DEAD),
    "poly": PolySAE(WIDTH, k=2, ranks=(20, 8, 4), **DEAD),
}
SPARSITY = {"relu": (1, 4), "jumprelu": (1, 3), "gated": (1, 3)}
"""Where it is not set: close to the two features that each row has."""


@pytest.mark.parametrize("name", AUTOENCODERS)
def test_autoencoders(name):
    recipe, stream = AUTOENCODERS[name], planted()
    torch.manual_seed(0)
    assert recovery(stream.features, recipe.build(D).atoms()) < NOT_FOUND
    fitted = fit(recipe, stream, **FITTING)
    assert recovery(stream.features, fitted.dictionary.atoms()) > FOUND
    least, most = SPARSITY.get(name, (1.5, 2.01))
    assert least <= fitted.history[-1]["l0"] <= most
    x = stream.batch(10_000)[0]
    missed = (x - fitted.dictionary(x)).square().sum() / (x - x.mean(0)).square().sum()
    assert missed < 0.25


def test_transcoders():
    stream, _, features = two_sites()
    torch.manual_seed(0)
    recipe = Transcoder(TopK(WIDTH, k=2, **DEAD))
    assert recovery(features, recipe.build(D, D + 4).atoms()) < NOT_FOUND
    fitted = fit(recipe, stream, site_in="a", site_out="b", **FITTING)
    assert recovery(features, fitted.dictionary.atoms()) > FOUND


def test_skip_transcoders_find_what_a_linear_map_leaves():
    found = {}
    for kind in (Transcoder, SkipTranscoder):
        stream, _, features = two_sites(skip=0.3)
        recipe = kind(TopK(WIDTH, k=1, **DEAD))
        fitted = fit(recipe, stream, site_in="a", site_out="b", **{**FITTING, "steps": 700})
        found[kind] = recovery(features, fitted.dictionary.atoms())
    assert found[Transcoder] < NOT_FOUND
    assert found[SkipTranscoder] > found[Transcoder] + 0.15


def test_crosscoders():
    stream, *features = two_sites()
    fitted = fit(Crosscoder(TopK(WIDTH, k=2, **DEAD)), stream, **FITTING)
    for site, planted_there in zip("ab", features):
        assert recovery(planted_there, fitted.dictionary.atoms(site)) > FOUND


def test_a_polynomial_decoder_explains_interactions():
    missed = {}
    for order in (1, 2):
        stream, features = polynomial()
        recipe = PolySAE(24, k=3, order=order, ranks=(20, 20)[:order], power_rate=5.0, **DEAD)
        fitted = fit(recipe, stream, steps=1000, lr=3e-3, quiet=True)
        assert recovery(features, fitted.dictionary.atoms()) > 0.8
        missed[order] = sum(record["fvu"] for record in fitted.history[-10:])
    assert missed[2] < 0.92 * missed[1]
