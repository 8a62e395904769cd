"""The polynomial decoder's algebra: atoms of pairs and triples, retraction, prefixes."""

import pytest
import torch

from mechanome.core.errors import BadInput
from mechanome.dictionaries import PolySAE, SparseCodes
from mechanome.dictionaries.decoders.stiefel import retract

D, F = 7, 20


def built(shared=True, order=3, seed=0):
    torch.manual_seed(seed)
    model = PolySAE(F, k=4, order=order, ranks=(6, 5, 4)[:order], shared=shared).build(D).eval()
    with torch.no_grad():
        model.decoder.U.mul_(3)  # so that interactions are not tiny
        model.decoder.strengths.mul_(1.7)
    return model


def made(model, *latents):
    """What is written when these latents are 1."""
    z = torch.zeros(1, F)
    for latent in latents:
        z[0, latent] += 1
    return model.decode(SparseCodes.of_dense(z))[0] - model.decode(SparseCodes.of_dense(torch.zeros(1, F)))[0]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_pair_atoms_are_mixed_differences(shared):
    """Of a quadratic decoder exactly: f(i + j) - f(i) - f(j) is what only the pair adds."""
    model = built(shared, order=2)
    pairs = torch.tensor([[0, 1], [4, 9], [9, 4]])
    expected = torch.stack([made(model, i, j) - made(model, i) - made(model, j) for i, j in pairs.tolist()])
    torch.testing.assert_close(model.pair_atoms(pairs), expected, rtol=1e-4, atol=1e-5)
    # A latent with itself: f(2i) - 2 f(i) is twice the coefficient of its square.
    alone = (made(model, 3, 3) - 2 * made(model, 3)) / 2
    torch.testing.assert_close(model.pair_atoms(torch.tensor([[3, 3]]))[0], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
def test_triple_atoms_are_mixed_differences(shared):
    model, (i, j, k) = built(shared), (2, 5, 11)
    alone = sum(made(model, a) for a in (i, j, k))
    pairs = made(model, i, j) + made(model, i, k) + made(model, j, k)
    expected = made(model, i, j, k) - pairs + alone
    torch.testing.assert_close(model.triple_atoms(torch.tensor([[i, j, k]]))[0], expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(BadInput, match="different"):
        model.triple_atoms(torch.tensor([[1, 1, 2]]))


def test_interaction_strength_on_data_weighs_by_how_often_both_are_active():
    model, pairs = built(), torch.tensor([[0, 1], [2, 3]])
    z = torch.zeros(4, F)
    z[0, :2], z[1, :2], z[2, 2] = 2.0, 1.0, 1.0
    length = model.pair_atoms(pairs).norm(dim=1)
    torch.testing.assert_close(model.interaction_strength(pairs), length)
    weighed = model.interaction_strength(pairs, SparseCodes.of_dense(z))
    torch.testing.assert_close(weighed, length * torch.tensor([(4 + 1) / 4, 0.0]))


def test_the_first_order_is_linear_and_has_no_pairs():
    model = built(order=1)
    torch.testing.assert_close(made(model, 1, 2), made(model, 1) + made(model, 2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made(model, 1), model.atoms()[1], rtol=1e-4, atol=1e-5)
    assert model.pair_atoms(torch.tensor([[0, 1]])).abs().max() == 0
    assert model.interaction_share(SparseCodes.of_dense(torch.ones(1, F))) == 0


def test_retraction():
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(12, 4, generator=generator)
    q = retract(block)
    torch.testing.assert_close(q.T @ q, torch.eye(4), rtol=0, atol=1e-5)
    assert (q.T @ block).diagonal().min() > 0  # the positive diagonal
    torch.testing.assert_close(retract(q), q, rtol=0, atol=1e-5)  # where it already is, it stays
    beside = retract(torch.randn(12, 3, generator=generator), q)
    torch.testing.assert_close(q.T @ beside, torch.zeros(4, 3), rtol=0, atol=1e-5)
    assert torch.equal(retract(block * 1e-9), block * 1e-9)  # vanished: left alone
    faint = retract(torch.zeros(12, 4).index_fill(1, torch.tensor([0]), 1e-5))  # rank one: mended by the jitter
    torch.testing.assert_close(faint.T @ faint, torch.eye(4), rtol=0, atol=1e-4)


def test_retraction_may_wait():
    recipe = PolySAE(F, k=4, ranks=(6, 5, 4), retract_every=3)
    decoder = recipe.build(D).decoder
    off = []
    for _ in range(3):
        with torch.no_grad():
            decoder.U.add_(0.1)
        decoder.after_step()
        off.append((decoder.U.T @ decoder.U - torch.eye(6)).abs().max().item() > 1e-4)
    assert off == [True, True, False]


def test_ranks_that_nobody_gave_are_in_the_papers_proportions():
    assert [tuple(out.shape) for out in PolySAE(1024, k=4).build(48).decoder.C] == [(48, 48), (48, 4), (48, 4)]
    assert [tuple(out.shape) for out in PolySAE(30, k=4, order=2).build(48).decoder.C] == [(48, 30), (48, 2)]
