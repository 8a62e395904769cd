"""Edits survive a file: the same tensors, the same outputs, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mechanome as mn
from families import build
from mechanome.core import CorruptFile, NotServed
from mechanome.engine.edit_files import load_edits, save_edits


@pytest.fixture(scope="module")
def model() -> mn.Model:
    return mn.load(build("llama"), check="off")


IDS = torch.tensor([[11, 12, 13, 14, 15, 16], [21, 22, 23, 24, 25, 26]])


def edits_of_every_kind(model: mn.Model) -> dict[str, list[mn.Edit]]:
    generator = torch.Generator().manual_seed(3)
    vector = torch.randn(32, generator=generator)
    donor = model.run(IDS.flip(0), capture=["z.*", "resid_post.1"])
    return {
        "add": [mn.Add("resid_post.1", vector, scale=3.0, pos=slice(1, None, 2))],
        "rows": [mn.Patch("mlp_out.0", mn.FromRows([1, 0]), pos="last")],
        "run": [mn.Patch("z.1.h2", donor, pos=[3], from_pos=[2])],
        "resample": [mn.Ablate("attn_out.1", "resample", seed=5)],
        "clamp": [mn.Clamp("mlp_act.1", lo=0.0)],
        "project": [mn.ProjectOut("resid_pre.2", vector, rows=[1])],
        "neurons": [mn.Scale("mlp_act.0", 0.0, basis=mn.Neurons([1, 5], 48))],
        "svd": [mn.Scale("resid_post.0", 0.5, basis=mn.SingularVectors(torch.randn(32, 8, generator=generator), 2))],
        "knockout": mn.AttentionKnockout([0, 1], src=0, dst="3:", heads=[1]),
    }


KINDS = ["add", "rows", "run", "resample", "clamp", "project", "neurons", "svd", "knockout"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_does_what_the_edit_does(model: mn.Model, kind: str, tmp_path: Path) -> None:
    edits = edits_of_every_kind(model)[kind]
    save_edits(tmp_path / "edits.safetensors", edits)
    before = model.run(IDS, edits=edits).logits
    after = model.run(IDS, edits=load_edits(tmp_path / "edits.safetensors")).logits
    plain = model.run(IDS).logits
    assert before is not None and after is not None and plain is not None
    assert torch.equal(before, after)
    assert not torch.equal(before, plain)


def test_what_has_no_file_form_is_refused_and_writes_nothing(model: mn.Model, tmp_path: Path) -> None:
    class Mine:
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return x

        def decode(self, c: torch.Tensor) -> torch.Tensor:
            return c

    for edit in (mn.Custom("z.0", lambda x: x), mn.Scale("resid_post.0", 2.0, basis=Mine())):
        with pytest.raises(NotServed, match="no file form"):
            save_edits(tmp_path / "edits.safetensors", [edit])
    assert list(tmp_path.iterdir()) == []


def test_damage_is_noticed(model: mn.Model, tmp_path: Path) -> None:
    path = tmp_path / "edits.safetensors"
    save_edits(path, edits_of_every_kind(model)["run"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFile):
        load_edits(path)
    path.write_bytes(whole.replace(b"z.1.h2", b"q_q.h2"))
    with pytest.raises(CorruptFile, match="not valid"):
        load_edits(path)
