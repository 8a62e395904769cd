"""What may be asked of a dictionary wrongly, and what its folder may suffer: refused in one sentence."""

from __future__ import annotations

import json

import pytest
import torch

from mechanome.activations import ArrayActivations
from mechanome.core.errors import BadInput, CorruptFile, MechanomeError, ShapeMismatch
from mechanome.dictionaries import Dictionary, TopK
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.commands.recipes import recipes
from mechanome.dictionaries.metrics import ce_recovered, evaluate
from mechanome.dictionaries.norm import Affine

X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def dictionary():
    torch.manual_seed(0)
    return TopK(12, k=3).build(6)


@pytest.mark.parametrize(
    "x",
    [None, [[1.0] * 6], X.numpy(), torch.tensor(1.0), X.to(torch.complex64), X[:, :3]],
    ids=["nothing", "a list", "an array", "a number", "complex", "narrow"],
)
def test_activations_that_are_none_are_refused(dictionary, x):
    for use in (dictionary.encode, dictionary):
        with pytest.raises(ShapeMismatch, match="activations"):
            use(x)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        pytest.param(lambda d, z: d.decode(z.dense()), ShapeMismatch, id="a dense code"),
        pytest.param(lambda d, z: d.decode(None), ShapeMismatch, id="no code"),
        pytest.param(lambda d, z: z.take([20]), BadInput, id="a row too far"),
        pytest.param(lambda d, z: z.take([-1]), BadInput, id="a row before the first"),
        pytest.param(lambda d, z: z.take([0.5]), BadInput, id="half a row"),
        pytest.param(lambda d, z: z.take(torch.ones(3, dtype=torch.bool)), ShapeMismatch, id="a short mask"),
        pytest.param(lambda d, z: z.matmul(torch.ones(3, 2)), ShapeMismatch, id="a short weight"),
        pytest.param(lambda d, z: z.t_matmul(torch.ones(3, 2)), ShapeMismatch, id="too few rows"),
        pytest.param(
            lambda d, z: SparseCodes(torch.tensor([1]), torch.ones(1), torch.tensor([0, 5]), 4),
            ShapeMismatch,
            id="ends",
        ),
        pytest.param(lambda d, z: Affine.estimate([[1.0]]), ShapeMismatch, id="a list of rows"),
        pytest.param(lambda d, z: evaluate({"a": None}, ArrayActivations(X, epochs=1)), BadInput, id="no dictionary"),
        pytest.param(lambda d, z: ce_recovered(None, 5, []), BadInput, id="a number for a dictionary"),
        pytest.param(lambda d, z: evaluate(d, X), BadInput, id="bare rows"),
        pytest.param(lambda d, z: evaluate(d, ArrayActivations(X, epochs=1), seed=-1), BadInput, id="negative seed"),
        pytest.param(lambda d, z: recipes("topk", 12, [2, 2]), BadInput, id="k twice"),
    ],
)
def test_odd_requests_are_refused(dictionary, act, error):
    with pytest.raises(error):
        act(dictionary, dictionary.encode(X))


def test_weights_that_were_changed_are_found(dictionary, tmp_path):
    dictionary.save(tmp_path / "d")
    file = tmp_path / "d" / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-40] ^= 0x01
    file.write_bytes(bytes(content))
    with pytest.raises(CorruptFile, match="SHA-256"):
        Dictionary.load(tmp_path / "d")


def test_a_description_with_parts_of_another_kind_is_refused(dictionary, tmp_path):
    dictionary.save(tmp_path / "d")
    file = tmp_path / "d" / "mechanome.json"
    content = json.loads(file.read_text())
    changes = [("version", v) for v in (None, "zz", [1])] + [("spec", v) for v in (None, "zz", -1)]
    for name in ("architecture", "settings", "sites_in", "site_widths", "width"):
        changes += [("spec", {**content["spec"], name: v}) for v in (None, -1, 1.5)]
    for name, value in changes:
        file.write_text(json.dumps({**content, name: value}))
        with pytest.raises(MechanomeError):
            Dictionary.load(tmp_path / "d")
