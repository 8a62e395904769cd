"""The project's own architectures: what must hold for any weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from mechanome.core.errors import BadInput, ShapeMismatch
from mechanome.engine.registry.modules import EfficientNetLite, ProteinMPNN
from mechanome.engine.registry.modules.efficientnet_lite import InvertedResidual, SameConv2d
from mechanome.engine.registry.modules.protein_mpnn import ALPHABET, encode_sequence


@pytest.fixture
def design() -> ProteinMPNN:
    torch.manual_seed(0)
    model = ProteinMPNN(width=16, layers=2, neighbors=6).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


@pytest.fixture
def backbone() -> torch.Tensor:
    torch.manual_seed(1)
    alpha = 3.8 * functional.normalize(torch.randn(2, 12, 1, 3), dim=-1).cumsum(1)
    return alpha + torch.randn(2, 12, 4, 3)


@pytest.fixture
def letters() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randint(0, 20, (2, 12))


def test_log_probabilities_sum_to_one(design, backbone, letters):
    for output in (design(backbone), design(backbone, letters)):
        assert output.shape == (2, 12, len(ALPHABET))
        assert torch.allclose(output.exp().sum(-1), torch.ones(2, 12), atol=1e-5)


def test_a_residue_sees_only_the_letters_placed_before_it(design, backbone, letters):
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    base = design(backbone, letters, order=order)
    changed = letters.clone()
    changed[:, order[5]] = (letters[:, order[5]] + 1) % 20
    moved = (design(backbone, changed, order=order) - base).abs().amax((0, 2)) > 0
    assert not moved[order[:6]].any(), "neither earlier residues nor the residue itself may move"
    assert moved[order[6:]].any()


def test_the_first_letter_is_predicted_from_the_structure_alone_in_a_neighborhood_of_one(design, backbone, letters):
    """With one neighbor (itself) no letter is ever visible, so the sequence cannot matter."""
    design.features.neighbors = 1
    assert torch.equal(design(backbone, letters), design(backbone))


def test_turning_and_moving_the_protein_changes_nothing(design, backbone, letters):
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(4)))
    turn = turn * torch.linalg.det(turn).sign()
    assert torch.allclose(design(backbone @ turn.T + 5, letters), design(backbone, letters), atol=1e-3)
    mirrored = backbone * torch.tensor([1.0, 1.0, -1.0])
    assert not torch.allclose(design(mirrored, letters), design(backbone, letters), atol=1e-3)


def test_padding_changes_nothing_even_if_it_holds_nan(design, backbone, letters):
    design.features.neighbors = 48
    padded = torch.cat([backbone, torch.full((2, 3, 4, 3), torch.nan)], 1)
    mask = (torch.arange(15) < 12).float()
    got = design(padded, functional.pad(letters, (0, 3)), mask)[:, :12]
    assert torch.allclose(got, design(backbone, letters), atol=1e-5)


def test_a_batch_is_its_rows(design, backbone, letters):
    both = design(backbone, letters)
    for row in range(2):
        assert torch.allclose(design(backbone[row : row + 1], letters[row : row + 1])[0], both[row], atol=1e-6)


def test_chains_and_numbering_matter_and_defaults_are_one_chain_from_zero(design, backbone, letters):
    base = design(backbone, letters)
    named = design(backbone, letters, residue_index=torch.arange(12), chain=torch.full((2, 12), 7))
    assert torch.equal(named, base)
    assert not torch.allclose(design(backbone, letters, chain=torch.arange(12) // 6), base, atol=1e-4)
    assert not torch.allclose(design(backbone, letters, residue_index=torch.arange(12) * 2), base, atol=1e-4)


def test_sequences_become_ids():
    assert encode_sequence("ACYX*b").tolist() == [0, 1, 19, 20, 20, 20]


def test_wrong_shapes_and_orders_are_refused(design, backbone, letters):
    with pytest.raises(ShapeMismatch, match="4 atoms"):
        design(backbone[:, :, :3])
    with pytest.raises(ShapeMismatch, match="sequence"):
        design(backbone, letters[:, :5])
    with pytest.raises(ShapeMismatch, match="mask"):
        design(backbone, letters, mask=torch.ones(2, 11))
    with pytest.raises(BadInput, match="permutation"):
        design(backbone, letters, order=[0] * 12)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(3, 1, 7), (3, 2, 8), (3, 2, 7), (5, 2, 9), (5, 2, 14)])
def test_same_convolution_matches_its_definition(kernel, stride, size):
    """TensorFlow's rule: the output has ceil(size / stride) cells, the odd padding goes right and below."""
    torch.manual_seed(0)
    layer = SameConv2d(1, 1, kernel, stride)
    image = torch.randn(1, 1, size, size)
    cells = -(-size // stride)
    total = max((cells - 1) * stride + kernel - size, 0)
    wide = torch.zeros(size + total, size + total)
    wide[total // 2 : total // 2 + size, total // 2 : total // 2 + size] = image[0, 0]
    expected = torch.stack(
        [
            torch.stack(
                [
                    (
                        wide[r * stride : r * stride + kernel, c * stride : c * stride + kernel] * layer.weight[0, 0]
                    ).sum()
                    for c in range(cells)
                ]
            )
            for r in range(cells)
        ]
    )
    assert torch.allclose(layer(image)[0, 0], expected, atol=1e-5)


def test_only_blocks_that_keep_the_shape_add_their_input():
    torch.manual_seed(0)
    for block, adds in ((InvertedResidual(8, 8, 6, 3, 1), True), (InvertedResidual(8, 8, 6, 3, 2), False)):
        block.eval()
        nn.init.zeros_(block.project.norm.weight)
        image = torch.randn(1, 8, 6, 6)
        output = block(image)
        assert torch.equal(output, image if adds else torch.zeros(1, 8, 3, 3))


def test_efficientnet_lite0_has_its_published_size_and_named_parts():
    with torch.device("meta"):
        model = EfficientNetLite()
        logits = model(torch.empty(2, 3, 224, 224))
    assert logits.shape == (2, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_652_008
    assert [name for name, _ in model.named_children()] == ["stem", "blocks", "head", "pool", "classifier"]
    assert len(model.blocks) == 16
    assert isinstance(model.blocks[0].expand, nn.Identity)
    assert [name for name, _ in model.blocks[1].named_children()] == ["expand", "depthwise", "project"]


def test_other_sizes_of_the_family_are_settings():
    model = EfficientNetLite(stages=((1, 3, 1, 8, 1), (2, 3, 2, 8, 2)), stem_width=4, head_width=12, classes=5).eval()
    assert model(torch.zeros(1, 3, 17, 16)).shape == (1, 5)
