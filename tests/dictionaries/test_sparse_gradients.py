"""The sparse step against dense autograd: every selector with every decoder, and the auxiliary loss."""

import dense_reference as dense
import pytest
import torch

from mechanome.dictionaries import JumpReLU, ReLU, SparseAutoencoder, sparse_products
from mechanome.dictionaries.architectures import Gated
from mechanome.dictionaries.dead_latents import auxiliary_loss
from mechanome.dictionaries.decoders import LinearDecoder, PolynomialDecoder
from mechanome.dictionaries.scores import Scorer
from mechanome.dictionaries.selectors import (
    BatchTopKSelector,
    GateSelector,
    JumpSelector,
    ReluSelector,
    TopKSelector,
)
from mechanome.dictionaries.spec import DictionarySpec
from mechanome.dictionaries.trace import Trace

D, F, ROWS = 12, 60, 40
GROUPS = (7, 20, 33)
WEIGHT = 0.7

SELECTORS = {
    "relu": ReluSelector,
    "topk": lambda: TopKSelector(5, F),
    "batchtopk": lambda: BatchTopKSelector(5, F),
    "jumprelu-tanh": lambda: JumpSelector(F, 1.0, 0.6),
    "jumprelu-l0": lambda: JumpSelector(F, 1.0, 0.6),
    "gate": lambda: GateSelector(F),
}
PENALTIES = {
    "relu": ReLU(F, l1=WEIGHT),
    "jumprelu-tanh": JumpReLU(F, sparsity=WEIGHT),
    "jumprelu-l0": JumpReLU(F, sparsity=WEIGHT, penalty="l0"),
}
DECODERS = {
    "linear": lambda: LinearDecoder(F, D),
    "prefixes": lambda: LinearDecoder(F, D, GROUPS, unit=False),
    "quadratic": lambda: PolynomialDecoder(F, D, (9, 6)),
    "cubic": lambda: PolynomialDecoder(F, D, (9, 6, 4)),
    "cubic-apart": lambda: PolynomialDecoder(F, D, (9, 6, 4), shared=False),
    "cubic-prefixes": lambda: PolynomialDecoder(F, D, (9, 6, 4), GROUPS),
}


def model_of(selector, decoder, seed=0):
    torch.manual_seed(seed)
    spec = DictionarySpec("test", D, D, F)
    model = SparseAutoencoder(spec, SELECTORS[selector](), DECODERS[decoder]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        if selector.startswith("jumprelu"):
            model.selector.threshold.copy_(0.5 + torch.rand(F))
    return model


def rows(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, D, generator=generator) + 0.5


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def agree(found, expected, tolerance=1e-5, silent=()):
    """Each gradient to 1e-5 of its own largest value; none is zero but those said to be."""
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        largest = float(grad.abs().max())
        assert (largest == 0) == (name in silent), name
        assert float((found[name] - grad).abs().max()) <= tolerance * (largest or 1.0), name


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_every_pair_has_the_gradients_of_dense_autograd(monkeypatch, selector, decoder, way):
    monkeypatch.setattr(sparse_products, "DENSE_ABOVE", 2.0 if way == "sparse" else -1.0)
    model, x = model_of(selector, decoder), rows()
    trace = Trace.of(model, x, x, Scorer())
    recipe = PENALTIES.get(selector)
    terms = [trace.reconstruction_loss(), *(recipe.penalties(trace).values() if recipe else ())]
    loss = torch.stack(terms).sum()
    expected = dense.loss(model, selector, x, WEIGHT)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    # The bias of a gate only decides; what it decides has no gradient without the gate's own loss.
    agree(gradients(model, loss), gradients(model, expected), silent=["encoder.b_enc"] if selector == "gate" else [])


@pytest.mark.parametrize("penalty", ["tanh", "l0"])
def test_aiming_at_a_number_of_latents(penalty):
    model, x = model_of(f"jumprelu-{penalty}", "linear"), rows()
    trace = Trace.of(model, x, x, Scorer())
    terms = JumpReLU(F, sparsity=WEIGHT, penalty=penalty, l0=3.0).penalties(trace)
    loss = trace.reconstruction_loss() + terms["sparsity"]
    agree(gradients(model, loss), gradients(model, dense.loss(model, f"jumprelu-{penalty}", x, WEIGHT, 3.0)))


def test_all_terms_of_a_gated_autoencoder():
    model, x = model_of("gate", "linear"), rows()
    trace = Trace.of(model, x, x, Scorer())
    terms = Gated(F, l1=WEIGHT).penalties(trace)
    loss = trace.reconstruction_loss() + terms["l1"] + terms["gate"]
    expected = dense.loss(model, "gate", x, 0.0) + dense.gate_terms(model, x, WEIGHT)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    agree(gradients(model, loss), gradients(model, expected))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("k", [4, 30])
def test_the_auxiliary_loss_reaches_the_encoder_of_dead_latents(decoder, k):
    model, x = model_of("topk", decoder), rows()
    dead = torch.arange(0, F, 3)
    trace = Trace.of(model, x, x, Scorer())
    found = gradients(model, auxiliary_loss(trace, dead, k))
    expected = gradients(model, dense.auxiliary(model, x, trace.error, dead, k))
    # What it must not move: the bias (its error is fixed), and latents that are alive.
    assert not expected.pop("decoder.b_dec").abs().max() > 1e-6
    assert "decoder.b_dec" not in found or not found.pop("decoder.b_dec").abs().max() > 1e-6
    agree(found, expected)
    alive = torch.ones(F, dtype=torch.bool).index_fill(0, dead, False)
    assert (found["encoder.W_enc"][dead].abs().sum(1) > 0).float().mean() > 0.9
    assert found["encoder.W_enc"][alive].abs().max() == 0


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("selector", ["relu", "topk", "batchtopk", "jumprelu-tanh", "gate"])
def test_cheap_selection_has_exact_values_and_gradients(monkeypatch, selector, precision):
    monkeypatch.setattr(sparse_products, "DENSE_ABOVE", 2.0)
    model, x = model_of(selector, "linear"), rows()
    trace = Trace.of(model, x, x, Scorer(precision))
    found = gradients(model, trace.reconstruction_loss())
    mask = torch.zeros(ROWS, F).flatten().index_fill(0, trace.codes.pattern.flat, 1.0).view(ROWS, F)
    pre = (x - model.b_dec) @ model.W_enc.T + model.b_enc
    name = "relu" if selector in ("topk", "batchtopk") else selector
    z = dense.values(model, name, pre) * mask
    assert (trace.codes.dense() - z).abs().max() < 1e-5
    expected = gradients(model, (x - dense.expand(model.decoder, z)).square().sum(1).mean())
    agree(found, expected, silent=["encoder.b_enc"] if selector == "gate" else [])


def test_encoding_is_differentiable_in_the_activations():
    model, x = model_of("topk", "linear").eval(), rows().requires_grad_()
    weights = torch.randn(ROWS, F)
    (model.encode(x).dense() * weights).sum().backward()
    found, x.grad = x.grad.clone(), None
    pre = (x - model.b_dec) @ model.W_enc.T + model.b_enc
    (dense.values(model, "topk", pre) * weights).sum().backward()
    assert (found - x.grad).abs().max() < 1e-5 * x.grad.abs().max()
