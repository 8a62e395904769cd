"""Paper 42's study: planted interactions against a dictionary that is the truth, its statistics, and a smoke run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechanome.core import silence
from mechanome.dictionaries import PolynomialAutoencoder, PolySAE, SparseCodes
from mechanome.dictionaries.metrics import match
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.polysae import ARMS, Settings, measuring
from mechanome.studies.papers.polysae.planted import HELD_OUT, InteractingFeatures, compounds, pairs
from mechanome.studies.papers.polysae.topics import FRAMES, TOPICS, sentences
from registry_models import need

N = 8


@pytest.fixture
def stream() -> InteractingFeatures:
    return InteractingFeatures(
        N, N, rank=2, share=0.5, active=2, exact=True, values="folded", features="orthogonal", batch=64, seed=3
    )


@pytest.fixture
def truth(stream: InteractingFeatures) -> PolynomialAutoencoder:
    """A dictionary whose decoder is what was planted."""
    torch.manual_seed(0)
    dictionary = PolySAE(N, k=2, order=2, ranks=(N, 2)).build(N)
    assert isinstance(dictionary, PolynomialAutoencoder)
    rest = torch.linalg.qr(torch.cat([stream.mixing, torch.randn(N, N - 2)], 1))[0][:, 2:]
    with torch.no_grad():
        dictionary.decoder.U.copy_(torch.cat([stream.mixing, rest], 1))
        dictionary.decoder.C[0].copy_(stream.features.T @ dictionary.decoder.U)
        dictionary.decoder.C[1].copy_(stream.outs)
        dictionary.decoder.strengths.fill_(stream.gain)
        dictionary.b_dec.fill_(0.3)
    return dictionary


def test_planted_pairs_add_what_they_are_said_to_add(stream: InteractingFeatures) -> None:
    x, codes = stream.batch(5)
    assert torch.allclose(x, codes @ stream.features + stream.interactions(codes), atol=1e-5)
    _, codes = stream.batch(HELD_OUT)
    share = stream.interactions(codes).norm(dim=1).mean() / (codes @ stream.features).norm(dim=1).mean()
    assert float(share) == pytest.approx(0.5, abs=1e-4)
    one = torch.eye(N)
    both = stream.interactions(one[1:2] + one[4:5]) - stream.interactions(one[1:2]) - stream.interactions(one[4:5])
    assert float(stream.pair_lengths(torch.tensor([[1, 4]]))) == pytest.approx(float(both.norm()), rel=1e-4)
    assert torch.allclose(stream.mixing.T @ stream.mixing, torch.eye(2), atol=1e-6)


def test_the_stream_goes_back_and_knows_its_interactions(stream: InteractingFeatures) -> None:
    iterator = iter(stream)
    next(iterator)
    here, second = stream.state(), next(iterator)
    stream.seek(here)
    assert torch.equal(next(iter(stream)).x, second.x)
    other = InteractingFeatures(
        N, N, rank=2, share=0.4, active=2, exact=True, values="folded", features="orthogonal", batch=64, seed=3
    )
    assert other.fingerprint != stream.fingerprint and len(list(islice(stream, 2))) == 2


def test_the_true_dictionary_has_true_interactions(stream: InteractingFeatures, truth: PolynomialAutoencoder) -> None:
    codes = SparseCodes.of_dense(stream.batch(7)[1])
    matched = match(stream.features, truth.atoms())
    found = pairs(truth, stream, codes, matched.first, matched.second, matched.cosine)
    assert torch.equal(found["first"], found["first_feature"]) and len(found["truth"]) > 10
    at = found["at_first"] * found["at_second"]
    assert torch.allclose(found["strength"], found["truth"] * at, rtol=1e-4)
    z = codes.dense()
    i, j = int(found["first"][0]), int(found["second"][0])
    assert float(found["together"][0]) == float(((z[:, i] > 0) & (z[:, j] > 0)).sum())
    assert float(found["at_first"][0]) == pytest.approx(float(z[z[:, i] > 0, i].mean()), rel=1e-5)
    assert float(found["covariance"][0]) == pytest.approx(abs(float(np.cov(z[:, i], z[:, j])[0, 1])), rel=1e-4)
    assert compounds(truth, stream, {**found, "at_first": at * 0 + 1, "at_second": at * 0 + 1}) == pytest.approx(1)
    few = pairs(truth, stream, codes, matched.first, matched.second, matched.cosine * 0)
    assert not len(few["truth"]) and np.isnan(compounds(truth, stream, few)), "nothing is matched"


def test_sentences_share_frames_and_no_person() -> None:
    found = sentences(20, 0)
    assert found == sentences(20, 0) != sentences(20, 1)
    assert len(found.texts) == len(set(found.texts)) == 20 * len(TOPICS)
    assert [found.classes.count(topic) for topic in range(len(TOPICS))] == [20] * len(TOPICS)
    classes_of: dict[int, set[int]] = {}
    for topic, group in zip(found.classes, found.groups):
        classes_of.setdefault(group, set()).add(topic)
    assert all(len(classes) == 1 for classes in classes_of.values())
    people = [person for those, _ in TOPICS.values() for person in those]
    assert len(people) == len(set(people)) and all("{who}" in f and "{what}" in f for f in FRAMES)


def of_pairs(strength: list[float], covariance: list[float]) -> dict[str, torch.Tensor]:
    rows = {"truth": [1.0, 2.0, 3.0, 4.0], "together": [4.0, 1.0, 3.0, 2.0], "strength": strength}
    return {name: torch.tensor(row).double() for name, row in {**rows, "covariance": covariance}.items()}


def one(fvu: float) -> dict[str, Any]:
    found = of_pairs([2.0, 4.0, 6.0, 8.0], [4.0, 1.0, 3.0, 2.0])
    values = {"sae": 0.1, "wide": 0.09, "linear": 0.2, "poly": fvu}
    rest = {"found": 48, "compounds": 0.9, "share": 0.4, "pairs": found}
    return {arm: {"fvu": value, **rest} for arm, value in values.items()}


def looked(broken: int = 0) -> dict[str, Any]:
    sums = {"error": np.array([1.0, 3.0]), "scatter": np.array([10.0, 10.0]), "cells": np.array([40.0, 40.0])}
    ce = {"tokens": np.full(3, 9.0), "clean": np.ones(3), "zero": np.full(3, 11.0), "mean": np.full(3, 8.0)}
    rest = {"numbers": 100, "dead": 0.1, "alive": torch.tensor([True, True, False])}
    control = torch.full((2, 2), 0.8).double()

    def arm(gain: float) -> dict[str, Any]:
        f1 = torch.tensor([[0.5, 0.8], [0.7, 0.8]]).double() + gain
        return {**sums, **rest, "broken": broken, "f1": f1, "control": control,
                "distance": torch.tensor([0.4, 0.2, 0.1]).double() * (1 + gain), "share": 0.05}  # fmt: skip

    made = {"sae": np.array([2.0, 2.0, 2.0]), "poly": np.array([3.0, 3.0, 3.0])}
    return {"tokens": 50, "ce": {**ce, **made}, "sae": arm(0.0), "poly": arm(0.1)}


def test_claims_follow_from_what_was_stored() -> None:
    stored = measuring.Stored((0, 1), [one(0.05), one(0.07)], [looked()])
    effects = {**measuring._planted(stored, Settings()), **measuring._language(stored)}
    study = STUDIES["polysae"]
    assert set(effects) == set(study.ids)
    found = {id: effect.interval.estimate for id, effect in effects.items() if effect.interval}
    assert found["over-sae"] == pytest.approx(0.6) and found["over-linear"] == pytest.approx(0.3)
    assert found["truth"] == pytest.approx(1) and found["covariance-is"] == pytest.approx(1)
    apart = float(np.corrcoef([1, 2, 3, 4], [4, 1, 3, 2])[0, 1])
    assert found["not-cooccurrence"] == pytest.approx(apart)
    assert found["beyond-covariance"] == pytest.approx(1 - apart) and found["found-sae"] == 0.5
    assert found["ce-sae"] == pytest.approx(0.9) and found["ce-poly"] == pytest.approx(0.8)
    assert found["ce"] == pytest.approx(-0.1) and found["finite"] == 0
    assert found["mse-sae"] == pytest.approx(0.05) and found["lm-fvu-poly"] == pytest.approx(0.2)
    assert found["f1-1-sae"] == pytest.approx(0.6) and found["f1-gain-5"] == pytest.approx(0.1)
    assert found["w1-ratio"] == pytest.approx(1.1) and "fire 0.300" in effects["w1-sae"].note


def test_what_is_not_defined_or_not_finite_is_said() -> None:
    flat = of_pairs([1.0] * 4, [0.0] * 4)
    seeds = [{arm: {**scores, "pairs": flat} for arm, scores in one(0.05).items()}] * 2
    effects = measuring._planted(measuring.Stored((0, 1), seeds, []), Settings())
    assert effects["truth"].interval is None and "nan" in effects["truth"].note
    effects = measuring._language(measuring.Stored((0,), [], [looked(broken=3)]))
    assert effects["finite"].interval.estimate == 6 and effects["finite"].interval.n == 200
    assert effects["mse-sae"].interval is None
    assert measuring._over_seeds([0.4]).interval.n == 1, "one seed has no spread"


@pytest.mark.real_model
def test_the_study_runs_on_a_real_model(tmp_path: Path) -> None:
    study = STUDIES["polysae"]
    need(study.scales["smoke"].models["decoder"])
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert found["finite"].effect == 0 and found["over-sae"].effect is not None and found["ce"].n == 4
    assert done.report.stat().st_size > 10_000 and json.dumps(done.found.record())
    assert set(ARMS) == {"sae", "wide", "linear", "poly"}
