"""Every basis against explicit linear algebra, alone and inside edits."""

from __future__ import annotations

import pytest
import torch
from opened_models import apart, opened, rows_of
from torch import Tensor

import mechanome as mn
from mechanome.core.errors import BadInput, NotFinite, ShapeMismatch
from mechanome.engine import parse

G = torch.Generator().manual_seed(3)
D, K = 32, 5
V = torch.randn(K, D, generator=G)
X = torch.randn(2, 7, D, generator=G)
ORTHONORMAL = torch.linalg.qr(V.T).Q.T  # rows span V
W = torch.randn(D, 20, generator=G)


def test_directions_are_oblique_coordinates() -> None:
    basis = mn.Directions(V)
    exact = torch.linalg.solve(V.double() @ V.T.double(), V.double() @ X.double().flatten(0, 1).T).T.reshape(2, 7, K)
    assert torch.allclose(basis.encode(X).double(), exact, atol=1e-4)
    assert torch.allclose(basis.decode(basis.encode(X)), X @ ORTHONORMAL.T @ ORTHONORMAL, atol=1e-4)
    one = basis.encode(V[2])
    assert torch.allclose(one, torch.eye(K)[2], atol=1e-5), "a direction has its own coordinate only"
    assert torch.allclose(mn.Directions(V[0]).encode(X)[..., 0], X @ V[0] / V[0].dot(V[0]), atol=1e-5)


def test_a_subspace_is_its_projection_whatever_spans_it() -> None:
    mixed = torch.cat([torch.randn(K, K, generator=G) @ V, V[:2]])  # dependent vectors
    for basis in (mn.Subspace(V), mn.Subspace(mixed)):
        assert basis.encode(X).shape[-1] == K
        assert torch.allclose(basis.decode(basis.encode(X)), X @ ORTHONORMAL.T @ ORTHONORMAL, atol=1e-4)
        assert torch.allclose(basis.encode(basis.decode(torch.eye(K))), torch.eye(K), atol=1e-5)


def test_neurons_are_their_columns() -> None:
    basis = mn.Neurons([3, 0, 31], D)
    assert torch.equal(basis.encode(X), X[..., [3, 0, 31]])
    expected = torch.zeros(2, 7, D)
    expected[..., [3, 0, 31]] = basis.encode(X)
    assert torch.equal(basis.decode(basis.encode(X)), expected)


@pytest.mark.parametrize("writes", [False, True])
def test_singular_vectors_are_the_ones_on_the_side_of_the_activations(writes: bool) -> None:
    weight = W.T if writes else W
    basis = mn.SingularVectors(weight, k=4, writes=writes)
    left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
    side = right[:4] if writes else left.T[:4]
    assert torch.allclose(basis.decode(basis.encode(X)).double(), X.double() @ side.T @ side, atol=1e-4)
    assert basis.encode(X).shape[-1] == 4
    assert mn.SingularVectors(weight, writes=writes).encode(X).shape[-1] == 20
    if not writes:  # the kept directions are what the matrix reads most
        through = (basis.decode(basis.encode(X)) @ W).double()
        best = (X.double() @ left[:, :4]) @ (values[:4, None] * right[:4])
        assert torch.allclose(through, best, atol=1e-3)


class Dictionary:
    """A sparse code with an error: what a sparse autoencoder is to the engine."""

    def __init__(self) -> None:
        self.enc, self.dec = torch.randn(D, 64, generator=G) / 6, torch.randn(64, D, generator=G) / 8

    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.enc)

    def decode(self, c: Tensor) -> Tensor:
        return c @ self.dec


IDS = rows_of("gpt2", 2, 7)


def after(edit: mn.Edit) -> Tensor:
    return opened("gpt2").run(IDS, capture="resid_post.1", edits=edit)["resid_post.1"]


def plain() -> Tensor:
    return opened("gpt2").run(IDS, capture="resid_post.1")["resid_post.1"]


BASES = [mn.Directions(V), mn.Subspace(V), mn.Neurons([3, 0, 31], D), mn.SingularVectors(W, k=4), Dictionary()]


@pytest.mark.parametrize("basis", BASES, ids=lambda b: type(b).__name__)
def test_edits_in_a_basis_change_its_coordinates_and_keep_the_rest(basis: mn.Basis) -> None:
    x = plain()
    c = basis.encode(x)
    ramp = torch.arange(c.shape[-1]) / 4
    for op, value, new in (
        ("set", 0.0, c * 0), ("ablate", torch.ones(c.shape[-1]), torch.ones_like(c)), ("scale", -2.0, c * -2),
        ("add", ramp, c + ramp), ("clamp", (-0.2, 0.1), c.clamp(-0.2, 0.1)),
    ):  # fmt: skip
        found = after(mn.Edit("resid_post.1", op, value, basis=basis))
        assert apart(found, x + basis.decode(new) - basis.decode(c)) < 1e-4, op
        if not isinstance(basis, Dictionary):  # a linear basis: what was written is what is read
            assert apart(basis.encode(found), new) < 1e-4 or new.abs().max() == 0
            rest = found - basis.decode(basis.encode(found)), x - basis.decode(c)
            assert apart(*rest) < 1e-4


def test_patching_coordinates_takes_the_donors() -> None:
    donor = opened("gpt2").run(rows_of("gpt2", 2, 7, seed=4), capture="resid_post.1")
    x, y = plain(), donor["resid_post.1"]
    p = ORTHONORMAL.T @ ORTHONORMAL
    assert apart(after(mn.Patch("resid_post.1", donor, basis=mn.Subspace(V))), x - x @ p + y @ p) < 1e-4
    one = x.clone()
    one[:, 3] = x[:, 3] - x[:, 3] @ p + y[:, 5] @ p
    edit = mn.Patch("resid_post.1", donor, pos=3, from_pos=5, basis=mn.Subspace(V))
    assert apart(after(edit), one) < 1e-4


def test_a_splice_changes_nothing_with_its_error_and_everything_without() -> None:
    sae, x = Dictionary(), plain()
    assert apart(after(mn.Splice("resid_post.1", sae)), x) < 1e-6
    assert apart(after(mn.Splice("resid_post.1", sae, keep_error=False)), sae.decode(sae.encode(x))) < 1e-6
    latents = mn.Edit("resid_post.1", "scale", 0.0, mn.Where(pos=2), sae)
    one = x.clone()
    one[:, 2] -= sae.decode(sae.encode(x[:, 2]))
    assert apart(after(latents), one) < 1e-5


def test_heads_have_bases_of_their_own_width() -> None:
    direction = torch.randn(8, generator=G)
    z = opened("gpt2").run(IDS, capture="z.1")["z.1"]
    run = opened("gpt2").run(IDS, capture="z.1", edits=mn.ProjectOut("z.1.h2", direction))
    expected = z.clone()
    unit = direction / direction.norm()
    expected[:, :, 2] -= (z[:, :, 2] @ unit)[..., None] * unit
    assert apart(run["z.1"], expected) < 1e-5
    assert parse("z.1.h2") in run


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mn.Directions(torch.stack([V[0], 2 * V[0]])), BadInput),
        (lambda: mn.Directions(torch.zeros(D)), BadInput),
        (lambda: mn.Directions(torch.zeros(2, 3, 4)), ShapeMismatch),
        (lambda: mn.Directions(torch.full((D,), float("nan"))), NotFinite),
        (lambda: mn.Subspace(torch.zeros(2, D)), BadInput),
        (lambda: mn.Neurons([1, 1], D), BadInput),
        (lambda: mn.Neurons([D], D), BadInput),
        (lambda: mn.Neurons([], D), BadInput),
        (lambda: mn.SingularVectors(W, k=21), BadInput),
        (lambda: mn.SingularVectors(W, k=0), BadInput),
    ],
)
def test_refusals(make: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()  # type: ignore[operator]
