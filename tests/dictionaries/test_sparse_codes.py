import pytest
import torch

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.dictionaries import SparseCodes, sparse_products
from mechanome.dictionaries.pattern import Pattern


def matrix(rows=9, width=14, density=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(rows, width, generator=generator)
    z = z * (torch.rand(rows, width, generator=generator) < density)
    z[2] = 0  # a row without any
    z[:, 5] = 0  # a latent without any
    return z


def test_dense_and_back():
    z = matrix()
    codes = SparseCodes.of_dense(z)
    assert torch.equal(codes.dense(), z)
    assert (codes.rows, codes.width) == (9, 14)
    assert torch.equal(codes.counts(), (z != 0).sum(0))
    assert torch.equal(codes.l0(), (z != 0).sum(1))


def test_products_are_those_of_the_dense_matrix():
    z = matrix()
    codes, generator = SparseCodes.of_dense(z), torch.Generator().manual_seed(1)
    weight, x = torch.randn(14, 4, generator=generator), torch.randn(9, 4, generator=generator)
    torch.testing.assert_close(codes.matmul(weight), z @ weight)
    torch.testing.assert_close(codes.t_matmul(x), z.T @ x)


@pytest.mark.parametrize("way", ["sparse", "dense"])
def test_each_way_of_a_product_gives_the_same(monkeypatch, way):
    monkeypatch.setattr(sparse_products, "DENSE_ABOVE", 2.0 if way == "sparse" else -1.0)
    z = matrix()
    pattern, generator = Pattern.of_mask(z != 0), torch.Generator().manual_seed(1)
    values = z.flatten()[pattern.flat]
    weight, x = torch.randn(14, 4, generator=generator), torch.randn(9, 4, generator=generator)
    places = (x @ weight.T).flatten()[pattern.flat]
    torch.testing.assert_close(sparse_products.product(pattern, values, weight), z @ weight)
    torch.testing.assert_close(sparse_products.transposed_product(pattern, values, x), z.T @ x)
    torch.testing.assert_close(sparse_products.sampled_product(pattern, x, weight), places)


def test_the_fallback_of_the_kernel_gives_the_same(monkeypatch):
    monkeypatch.setattr(sparse_products, "CHUNK", 12)  # pieces of three places
    pattern, generator = Pattern.of_mask(matrix() != 0), torch.Generator().manual_seed(1)
    weight, x = torch.randn(14, 4, generator=generator), torch.randn(9, 4, generator=generator)
    expected = (x @ weight.T).flatten()[pattern.flat]
    torch.testing.assert_close(sparse_products.gathered_product(pattern, x, weight), expected)


def test_no_places_at_all():
    codes = SparseCodes.of_dense(torch.zeros(3, 5))
    assert torch.equal(codes.matmul(torch.ones(5, 2)), torch.zeros(3, 2))
    assert torch.equal(codes.t_matmul(torch.ones(3, 2)), torch.zeros(5, 2))
    assert torch.equal(codes.pick([1]), torch.zeros(3, 1))


def test_taking_rows_and_latents():
    z = matrix()
    codes = SparseCodes.of_dense(z)
    assert torch.equal(codes.take([4, 2, 4]).dense(), z[[4, 2, 4]])
    mask = torch.arange(9) % 2 == 0
    assert torch.equal(codes.take(mask).dense(), z[mask])
    assert torch.equal(codes.pick([7, 5, 7, 0]), z[:, [7, 5, 7, 0]])
    assert torch.equal(SparseCodes.cat([codes, codes.take([0])]).dense(), torch.cat([z, z[:1]]))
    with pytest.raises(BadInput, match="latents \\[14\\]: there are 14"):
        codes.pick([14])
    with pytest.raises(BadInput, match="different widths"):
        SparseCodes.cat([codes, SparseCodes.of_dense(torch.ones(1, 3))])


def test_topk_lists_leave_zeros_out():
    codes = SparseCodes.of_topk(torch.tensor([[3, 1], [0, 2]]), torch.tensor([[1.0, 0.0], [2.0, 3.0]]), 4)
    assert codes.dense().tolist() == [[0, 0, 0, 1], [2, 0, 3, 0]]
    assert codes.indices.tolist() == [3, 0, 2]
    with pytest.raises(ShapeMismatch):
        SparseCodes.of_topk(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 3), 4)
    with pytest.raises(ShapeMismatch, match="one value for each index"):
        SparseCodes(torch.zeros(2, dtype=torch.int64), torch.zeros(3), torch.tensor([0, 2]), 4)


def test_values_may_change_dtype_while_places_stay():
    codes = SparseCodes.of_dense(matrix()).to(torch.float64)
    assert (codes.values.dtype, codes.indices.dtype) == (torch.float64, torch.int64)
