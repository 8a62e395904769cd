import pytest
import torch

from mechanome.core.errors import NotFinite, TooFewRows, UnknownName
from mechanome.dictionaries import Affine


def rows(n=500, d=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator)
    return torch.randn(n, d, generator=generator) @ mix + torch.arange(d)


@pytest.mark.parametrize("kind", ["none", "scale", "center", "whiten"])
def test_there_and_back(kind):
    x = rows()
    norm = Affine.estimate(x, kind)
    torch.testing.assert_close(norm.invert(norm(x)), x, rtol=1e-4, atol=1e-4)
    # Directions carry no shift: the difference of two rows goes back to the difference.
    y = norm(x)
    torch.testing.assert_close(norm.directions(y[:1] - y[1:2]), x[:1] - x[1:2], rtol=1e-4, atol=1e-4)


def test_what_each_kind_makes_of_the_rows():
    x = rows()
    assert torch.equal(Affine.estimate(x, "none")(x), x)
    assert Affine.estimate(x, "scale")(x).norm(dim=1).mean().item() == pytest.approx(6**0.5, rel=1e-5)
    centered = Affine.estimate(x, "center")(x)
    assert centered.mean(0).abs().max() < 1e-5
    assert centered.norm(dim=1).mean().item() == pytest.approx(6**0.5, rel=1e-5)
    torch.testing.assert_close(torch.cov(Affine.estimate(x, "whiten")(x).T), torch.eye(6), rtol=1e-3, atol=1e-3)


def test_sites_side_by_side():
    x, y = rows(), rows(d=4, seed=1) * 100
    both = torch.cat([x, y], dim=1)
    for kind in ("scale", "whiten"):
        parts = [Affine.estimate(part, kind) for part in (x, y)]
        joined = Affine.cat(parts)
        torch.testing.assert_close(joined(both), torch.cat([parts[0](x), parts[1](y)], dim=1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(joined.invert(joined(both)), both, rtol=1e-4, atol=1e-2)


def test_directions_that_do_not_vary_stay():
    x = torch.cat([rows(), torch.ones(500, 1)], dim=1)
    norm = Affine.estimate(x, "whiten")
    assert torch.isfinite(norm(x)).all()
    torch.testing.assert_close(norm.invert(norm(x)), x, rtol=1e-3, atol=1e-3)


def test_refusals():
    with pytest.raises(UnknownName, match="'scale'"):
        Affine.estimate(rows(), "scales")
    with pytest.raises(TooFewRows):
        Affine.estimate(rows(6), "whiten")
    with pytest.raises(TooFewRows):
        Affine.estimate(rows(0), "scale")
    bad = rows()
    bad[3, 2] = float("nan")
    with pytest.raises(NotFinite):
        Affine.estimate(bad)
