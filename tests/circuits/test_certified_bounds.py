"""What votes prove: exact bounds against scipy, corrections against their definitions and by simulation, radii."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from mechanome.circuits.certification.bounds import Level, clopper_pearson, fewest_masks, judged, radius
from mechanome.core import BadInput, binomial


def test_lower_ends_are_those_of_scipy() -> None:
    counts = torch.arange(51)
    for alpha in (0.05, 1e-3, 1e-7):
        expected = [
            binomtest(k, 50, alternative="greater").proportion_ci(1 - alpha, method="exact").low for k in range(51)
        ]
        assert torch.allclose(
            clopper_pearson(counts, 50, alpha), torch.tensor(expected, dtype=torch.float64), atol=1e-9
        )
    two_sided = binomial(45, 50, 0.9)
    assert float(clopper_pearson(torch.tensor([45]), 50, 0.05)[0]) == pytest.approx(two_sided.lo)


def test_bonferroni_divides_by_the_number_of_components_and_none_does_not() -> None:
    agree = torch.tensor([200, 199, 190, 120, 0])
    assert torch.equal(judged(agree, 200, 0.9, 0.01, "none").lower, clopper_pearson(agree, 200, 0.01))
    found = judged(agree, 200, 0.9, 0.01, "bonferroni")
    assert torch.equal(found.lower, clopper_pearson(agree, 200, 0.002))
    assert found.certified.tolist() == [True, True, False, False, False]


def test_holm_steps_down_and_certifies_what_bonferroni_does_and_more() -> None:
    # With 12 components 99 of 100 is enough at alpha / 2, but not at alpha / 12.
    n, tau, alpha = 100, 0.94, 0.04
    agree = torch.tensor([100] * 10 + [99, 80])
    p = np.array([binomtest(int(k), n, tau, alternative="greater").pvalue for k in agree])
    expected, left = np.zeros(12, dtype=bool), 12
    for i in np.argsort(p, kind="stable"):
        if p[i] >= alpha / left:
            break
        expected[i], left = True, left - 1
    holm, bonferroni = (judged(agree, n, tau, alpha, kind) for kind in ("holm", "bonferroni"))
    assert holm.certified.tolist() == expected.tolist() == [True] * 11 + [False]
    assert bonferroni.certified.tolist() == [True] * 10 + [False] * 2
    assert holm.lower[:11].tolist() == [tau] * 11, "of certified components Holm says that they are above tau, no more"
    assert float(holm.lower[11]) == pytest.approx(float(clopper_pearson(agree, n, alpha)[11]))


def test_holm_keeps_the_bounds_where_every_component_is_certified() -> None:
    agree = torch.tensor([500, 500, 497])
    found = judged(agree, 500, 0.9, 0.01, "holm")
    assert bool(found.certified.all())
    assert torch.allclose(found.lower, clopper_pearson(agree, 500, 0.01 / 3))


@pytest.mark.parametrize("correction", ["bonferroni", "holm", "none"])
def test_false_certificates_are_as_rare_as_promised(correction: str) -> None:
    """Components whose share is exactly tau are the worst case: certifying any of them is false."""
    tau, alpha, n, repeats = 0.9, 0.2, 300, 600
    draws = np.random.default_rng(0).binomial(n, tau, size=(repeats, 10))
    wrong = sum(bool(judged(torch.from_numpy(row), n, tau, alpha, correction).certified.any()) for row in draws)
    if correction == "none":
        assert wrong / repeats > 0.6, "ten components without a correction: mostly one is wrong"
    else:
        assert binomial(wrong, repeats, 0.999).lo <= alpha


def test_the_radius_is_the_largest_that_the_theorem_gives() -> None:
    shares = torch.linspace(0.501, 0.9999, 400, dtype=torch.float64)
    for p_del in (0.55, 0.6, 0.8, 0.95):
        for share, edits in zip(shares.tolist(), radius(shares, p_del).tolist()):
            assert edits == 0 or p_del**edits >= 1.5 - share - 1e-9
            assert p_del ** (edits + 1) < 1.5 - share + 1e-9
    assert radius(torch.tensor([0.0, 0.3, 0.5], dtype=torch.float64), 0.6).tolist() == [0, 0, 0]


def test_the_papers_defaults_promise_one_edit() -> None:
    assert Level().promised == 1 and Level(p_del=0.8).promised == 2
    assert Level(p_del=0.55).promised == 1, "0.55 is 1.5 - 0.95: a whole edit is not lost to rounding"


@pytest.mark.parametrize("correction", ["bonferroni", "none"])
def test_with_the_fewest_masks_full_agreement_is_just_enough(correction: str) -> None:
    least = fewest_masks(0.95, 0.001, 40, correction)
    expected = math.log(0.001 / (40 if correction == "bonferroni" else 1)) / math.log(0.95)
    assert least - 1 <= expected < least
    for n, certified in ((least, True), (least - 1, False)):
        agree = torch.full((40,), n)
        assert bool(judged(agree, n, 0.95, 0.001, correction).certified.all()) == certified


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p_del": 0.0}, "no share from 0 to 1"),
        ({"p_del": 1.0}, "no share from 0 to 1"),
        ({"p_del": True}, "no share from 0 to 1"),
        ({"tau": 0.4}, "no share from 0.5 to 1"),
        ({"tau": 1}, "no share from 0.5 to 1"),
        ({"alpha": 0}, "no share from 0 to 1"),
        ({"alpha": "small"}, "no share from 0 to 1"),
        ({"n": 0}, "positive whole number"),
        ({"n0": 2.5}, "positive whole number"),
        ({"seed": -1}, "not a whole number"),
        ({"correction": "holms"}, "holm"),
        ({"p_del": 0.5}, "radius of 0, which is no certificate"),
        ({"tau": 0.8}, "use p_del of at least 0.7, or tau of at least 0.9"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "-".join(value),
)
def test_settings_that_cannot_prove_anything_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Level(**settings)


def test_too_few_masks_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(BadInput, match="use n of at least 276"):
        Level(n=275).enough_for(1400)
    Level(n=276).enough_for(1400)
