"""Signal to noise of gradients, and their alignment, where both can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mechanome.activations import ArrayActivations
from mechanome.core import BadInput, NotFinite, ShapeMismatch, TooFewRows
from mechanome.dictionaries import ReLU, SparseAutoencoder, TopK
from mechanome.dictionaries.metrics import GradientSignal, gsnr

D, WIDTH, ROWS = 3, 5, 4


def stream(values: Tensor, batch: int = ROWS) -> ArrayActivations:
    return ArrayActivations(values, batch=batch, shuffle=False)


def of_means(means: Tensor) -> ArrayActivations:
    """Batches that have these means `[batch, d]`; within a batch rows differ."""
    g = torch.Generator().manual_seed(1)
    noise = torch.randn(len(means), ROWS, D, generator=g, dtype=torch.float64)
    rows = means[:, None].double() + noise - noise.mean(1, keepdim=True)
    return stream(rows.flatten(0, 1).float())


def only_bias() -> SparseAutoencoder:
    """A dictionary of which no latent is ever active: it says its bias, and nothing else has a gradient."""
    dictionary = TopK(WIDTH, k=2).build(D)
    with torch.no_grad():
        dictionary.W_enc.zero_()
        dictionary.b_enc.fill_(-1.0)
        dictionary.b_dec.copy_(torch.tensor([1.0, 0.0, -1.0]))
    return dictionary


def test_of_a_bias_it_is_that_of_the_batches_means() -> None:
    dictionary, g = only_bias(), torch.Generator().manual_seed(0)
    means = torch.randn(6, D, generator=g)
    found = gsnr(dictionary, of_means(means), 6)
    apart = means.double() - dictionary.b_dec.detach()
    expected = apart.mean(0).square() / means.double().var(0)
    assert found.silent == 2 * WIDTH * D + WIDTH and found.batches == 6 and found.rows == ROWS
    assert torch.allclose(found.ratios, expected, rtol=1e-4), "the gradient is -2 (mean - bias)"
    assert found.median == pytest.approx(float(expected.median()), rel=1e-4)
    assert found.average == pytest.approx(float(expected.mean()), rel=1e-4)
    assert torch.allclose(found.mean[found.variance > 0], -2 * apart.mean(0), rtol=1e-4)


def test_alignment_of_pulls_to_opposite_and_unrelated_sides() -> None:
    dictionary = only_bias()
    bias, jitter = dictionary.b_dec.detach(), torch.tensor([[0.1], [-0.1]])

    def pull(*to: float) -> GradientSignal:
        return gsnr(dictionary, of_means(bias + torch.tensor(to) * (1 + jitter)), 2)

    right = pull(1.0, 0.0, 0.0)
    assert right.alignment(pull(3.0, 0.0, 0.0)) == pytest.approx(1.0)
    assert right.alignment(pull(-2.0, 0.0, 0.0)) == pytest.approx(-1.0)
    assert right.alignment(pull(0.0, 1.0, 0.0)) == pytest.approx(0.0, abs=1e-6)
    assert right.alignment(pull(1.0, 1.0, 0.0)) == pytest.approx(math.sqrt(0.5), rel=1e-5)


def test_equal_batches_have_no_noise_and_no_ratio() -> None:
    found = gsnr(only_bias(), stream(torch.ones(8, D)), 2)
    assert found.silent == len(found.mean) and len(found.ratios) == 0
    assert math.isnan(found.median) and math.isnan(found.average)


def test_gradients_are_those_of_the_dense_loss_with_directions_kept_at_length_one() -> None:
    torch.manual_seed(0)
    dictionary, x = TopK(WIDTH, k=2).build(D), torch.randn(8, D)
    found = gsnr(dictionary, stream(x), 2)
    total = torch.zeros(len(found.mean), dtype=torch.float64)
    for part in x.split(4):
        w = {name: p.detach().clone().requires_grad_() for name, p in dictionary.named_parameters()}
        encoder, decoder = w["encoder.W_enc"], w["decoder.W_dec"]
        pre = (part - w["decoder.b_dec"]) @ encoder.T + w["encoder.b_enc"]
        keep = torch.zeros_like(pre).scatter(1, pre.topk(2).indices, 1.0)
        loss = (part - (pre.relu() * keep) @ decoder - w["decoder.b_dec"]).square().sum(1).mean()
        gradients = dict(zip(w, torch.autograd.grad(loss, list(w.values()))))
        along = gradients["decoder.W_dec"]
        gradients["decoder.W_dec"] = along - (along * decoder).sum(1, keepdim=True) * decoder
        total += torch.cat([gradients[name].flatten() for name in w]).detach().double()
    assert torch.allclose(found.mean, total / 2, atol=1e-5)


def test_the_penalty_of_the_recipe_counts() -> None:
    x, found = torch.randn(8, D, generator=torch.Generator().manual_seed(0)), {}
    for weight in (0.0, 3.0):
        torch.manual_seed(1)
        dictionary = ReLU(WIDTH, l1=weight).build(D)
        found[weight] = gsnr(dictionary, stream(x), 2).mean
    names = [name for name, p in dictionary.named_parameters() for _ in range(p.numel())]
    added = (found[3.0] - found[0.0])[torch.tensor([name == "encoder.b_enc" for name in names])]
    lengths = dictionary.W_dec.detach().norm(dim=1)
    active = (dictionary.encode(x).dense() > 0).float().mean(0)
    assert active.max() > 0 and torch.allclose(added.float(), 3 * active * lengths, atol=1e-5)


def test_nothing_is_changed() -> None:
    dictionary, rows = TopK(WIDTH, k=2).build(D).eval().requires_grad_(False), stream(torch.randn(16, D))
    next(iter(rows))
    place, before = rows.state(), {name: p.clone() for name, p in dictionary.state_dict().items()}
    first = gsnr(dictionary, rows, 2)
    assert rows.state() == place and not dictionary.training
    assert all(torch.equal(p, before[name]) for name, p in dictionary.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in dictionary.parameters()), "fits give frozen ones"
    assert float(first.mean.norm()) > 0
    assert torch.equal(first.mean, gsnr(dictionary, rows, 2).mean)


def test_what_cannot_be_compared_is_refused() -> None:
    dictionary, rows = only_bias(), torch.randn(10, D)
    with pytest.raises(BadInput, match="no variance"):
        gsnr(dictionary, stream(rows), 1)
    with pytest.raises(BadInput, match="2 rows, those before 4"):
        gsnr(dictionary, stream(rows), 3)
    with pytest.raises(TooFewRows, match="after 2 of 3"):
        gsnr(dictionary, ArrayActivations(rows[:8], batch=4, epochs=1), 3)
    found = gsnr(dictionary, stream(rows), 2)
    with pytest.raises(ShapeMismatch):
        found.alignment(gsnr(TopK(WIDTH + 1, k=2).build(D), stream(rows), 2))
    still = GradientSignal(torch.zeros_like(found.mean), found.variance, 2, ROWS)
    with pytest.raises(NotFinite, match="zero"):
        found.alignment(still)
