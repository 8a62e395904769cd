"""Files that cannot be read, dictionaries that cannot be written, activations that do not fit: refused by name."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from restated import RESTATED
from safetensors.torch import load_file, save_file

from mechanome.core.errors import BadInput, CorruptFile, NotFinite, NotServed, ShapeMismatch, UnknownName
from mechanome.dictionaries.architectures import JumpReLU, PolySAE, ReLU, SkipTranscoder, TopK, Transcoder
from mechanome.dictionaries.formats import FORMATS, check, detect, formats_table, read, write
from mechanome.dictionaries.norm import Affine

FIXTURES = Path(__file__).parent / "fixtures"


def copy(name: str, tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / name, tmp_path / Path(name).name)
    return tmp_path / Path(name).name


def change_tensors(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = torch.load(file, weights_only=True) if file.suffix == ".pt" else load_file(file)
    change(tensors)
    torch.save(tensors, file) if file.suffix == ".pt" else save_file(tensors, file)


def change_settings(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


WEIGHTS = {
    "saelens/jumprelu": ("sae_weights.safetensors", "threshold"),
    "saelens/gated": ("sae_weights.safetensors", "r_mag"),
    "saelens/skip_transcoder": ("sae_weights.safetensors", "W_skip"),
    "sparsify/layers.3": ("sae.safetensors", "encoder.bias"),
    "sparsify/layers.3.mlp.skip": ("sae.safetensors", "W_skip"),
    "dictionary_learning/topk": ("ae.pt", "b_dec"),
    "dictionary_learning/gated": ("ae.pt", "mag_bias"),
    "circuit_tracer/clt_relu": ("W_dec_1.safetensors", "W_dec_1"),
    "circuit_tracer/plt": ("layer_2.safetensors", "b_enc"),
    "llamascopium/jumprelu": ("sae_weights.safetensors", "activation_function.log_jumprelu_threshold"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    folder, (file, key) = copy(name, tmp_path), WEIGHTS[name]
    change_tensors(folder / file, lambda t: t.pop(key))
    with pytest.raises(CorruptFile, match=f"misses '{key}'"):
        read(folder)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_tensor_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    folder, (file, key) = copy(name, tmp_path), WEIGHTS[name]
    change_tensors(folder / file, lambda t: t.update({key: t[key][:-1].clone()}))
    with pytest.raises(ShapeMismatch, match=f"'{key}' has shape"):
        read(folder)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_tensor_that_is_not_finite_is_named(name: str, tmp_path: Path) -> None:
    folder, (file, key) = copy(name, tmp_path), WEIGHTS[name]
    change_tensors(folder / file, lambda t: t[key].view(-1)[3:4].fill_(float("nan")))
    with pytest.raises(NotFinite, match=f"'{key}'"):
        read(folder)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_truncated_file_is_refused(name: str, tmp_path: Path) -> None:
    folder, (file, _) = copy(name, tmp_path), WEIGHTS[name]
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFile, match=file):
        read(folder)


@pytest.mark.parametrize(
    ("name", "file", "settings", "error", "message"),
    [
        ("saelens/standard", "cfg.json", {"architecture": "standart"}, BadInput, "did you mean 'standard'"),
        ("saelens/standard", "cfg.json", {"architecture": "temporal"}, BadInput, "'temporal'.*not served"),
        ("saelens/standard", "cfg.json", {"normalize_activations": "expected_average_only_in"}, BadInput, "not beside"),
        ("saelens/topk", "cfg.json", {"k": 0}, CorruptFile, "'k' is 0"),
        ("saelens/topk", "cfg.json", {"k": 49}, BadInput, "k = 49"),
        ("saelens/topk", "cfg.json", {"d_sae": 47}, ShapeMismatch, "'W_dec' has shape"),
        ("saelens/topk", "cfg.json", {"d_in": "16"}, CorruptFile, "'d_in' is '16'"),
        ("sparsify/layers.3", "cfg.json", {"activation": "topp"}, BadInput, "did you mean 'topk'"),
        ("sparsify/layers.3", "cfg.json", {"num_latents": 0, "expansion_factor": 0}, CorruptFile, "expansion_factor"),
        ("sparsify/layers.3.groupmax", "cfg.json", {"k": 7}, BadInput, "7 equal groups"),
        ("llamascopium/relu", "config.json", {"act_fn": "batchtopk"}, BadInput, "'batchtopk'.*not served"),
        ("llamascopium/relu", "config.json", {"norm_activation": "token-wise"}, BadInput, "'token-wise'"),
        ("llamascopium/relu", "config.json", {"use_glu_encoder": True}, NotServed, "gated linear"),
        ("llamascopium/relu", "config.json", {"sae_type": "lorsa"}, BadInput, "'lorsa'"),
    ],
)  # fmt: skip
def test_settings_that_are_not_served_are_named(
    name: str, file: str, settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = copy(name, tmp_path)
    change_settings(folder / file, **settings)
    with pytest.raises(error, match=message):
        read(folder)


def test_a_scale_beside_the_weights_is_used(tmp_path: Path) -> None:
    folder = copy("saelens/standard", tmp_path)
    change_settings(folder / "cfg.json", normalize_activations="expected_average_only_in")
    (folder / "activation_scaler.json").write_text(json.dumps({"scaling_factor": 0.5}))
    golden = load_file(folder / "golden.safetensors")
    dictionary = read(folder)
    with torch.no_grad():
        codes = dictionary.encode(2 * golden["x"])
        torch.testing.assert_close(codes.dense(), golden["codes"], rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(dictionary.decode(codes), 2 * golden["reconstruction"], rtol=2e-5, atol=2e-5)


def test_an_unknown_class_of_dictionary_learning_is_refused(tmp_path: Path) -> None:
    folder = copy("dictionary_learning/topk", tmp_path)
    trainer = json.loads((folder / "config.json").read_text())["trainer"] | {"dict_class": "AutoEncoderTopk"}
    change_settings(folder / "config.json", trainer=trainer)
    with pytest.raises(BadInput, match="did you mean 'AutoEncoderTopK'"):
        read(folder)


class Evil:
    """Would write a file if its pickle ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("kind", ["torch", "plain"])
def test_a_checkpoint_with_code_is_refused_and_nothing_runs(kind: str, tmp_path: Path) -> None:
    folder, ran = copy("dictionary_learning/topk", tmp_path), tmp_path / "ran"
    buffer = io.BytesIO()
    torch.save({"b_dec": Evil(ran)}, buffer) if kind == "torch" else pickle.dump(Evil(ran), buffer, protocol=2)
    (folder / "ae.pt").write_bytes(buffer.getvalue())
    with pytest.raises(CorruptFile, match=r"ae\.pt"):
        read(folder)
    assert not ran.exists()


def test_an_archive_with_objects_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    told, ran = RESTATED["gemma_scope_1"](tmp_path), tmp_path / "ran"
    np.savez(told.path / "params.npz", W_enc=np.array([Evil(ran)], dtype=object))
    with pytest.raises(CorruptFile, match="archive of arrays"):
        read(told.path)
    assert not ran.exists()


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    folder = copy("circuit_tracer/clt_relu", tmp_path)
    (folder / "W_enc_1.safetensors").unlink()
    with pytest.raises(CorruptFile, match="layer 1 is missing"):
        read(folder)


def test_a_file_of_qwen_scope_outside_its_repository_says_what_is_missing(tmp_path: Path) -> None:
    told = RESTATED["qwen_scope"](tmp_path / "a")
    shutil.copy(told.path, tmp_path / "layer6.sae.pt")
    with pytest.raises(BadInput, match="number of active latents"):
        read(tmp_path / "layer6.sae.pt")


def test_nothing_there_and_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder or file"):
        read(tmp_path / "none")
    with pytest.raises(BadInput, match="none of the formats known"):
        detect(tmp_path)
    with pytest.raises(UnknownName, match="did you mean 'sparsify'"):
        read(tmp_path, "sparsifi")
    with pytest.raises(BadInput, match=r"cfg\.json: no such file"):
        read(tmp_path, "saelens")


def test_a_hook_without_a_site_must_be_told(tmp_path: Path) -> None:
    folder = copy("saelens/standard", tmp_path)
    change_settings(folder / "cfg.json", metadata={"hook_name": "blocks.3.hook_mlp_in", "sae_lens_version": "6.54.12"})
    with pytest.raises(BadInput, match=r"read\(path, site="):
        read(folder)
    assert read(folder, site="ln2.3").spec.sites_in == ("ln2.3",)


UNWRITABLE = {
    "poly in saelens": (PolySAE(12, k=3, ranks=(8, 4), order=2), "saelens"),
    "topk transcoder in saelens": (Transcoder(TopK(12, k=3)), "saelens"),
    "relu in sparsify": (ReLU(12), "sparsify"),
    "transcoder in dictionary_learning": (Transcoder(ReLU(12)), "dictionary_learning"),
    "one layer in circuit_tracer": (Transcoder(ReLU(12)), "circuit_tracer"),
    "gemma_scope": (JumpReLU(12), "gemma_scope"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_a_format_cannot_hold_is_refused_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    recipe, format = UNWRITABLE[name]
    with pytest.raises(NotServed):
        write(recipe.build(8), tmp_path / "out", format)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mechanome.dictionaries.formats.saelens.write_json", full)
    with pytest.raises(OSError, match="No space"):
        write(TopK(12, k=3).build(8), tmp_path / "out", "saelens")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", ["mechanome", "saelens", "dictionary_learning"])
def test_a_name_that_is_no_site_is_left_out_for_other_tools(format: str, tmp_path: Path) -> None:
    dictionary = TopK(12, k=3).build(8, sites_in=("mine",))
    write(dictionary, tmp_path / "out", format)
    expected = ("mine",) if format == "mechanome" else ()
    assert read(tmp_path / "out").spec.sites_in == expected


def test_an_existing_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BadInput, match="exists already"):
        write(TopK(12, k=3).build(8), tmp_path / "out")
    assert (tmp_path / "out" / "mine").exists()


@pytest.mark.parametrize("damage", ["version", "spec", "tensor", "nan", "norm"])
def test_our_own_folder_is_checked_too(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write(TopK(12, k=3).build(8), folder)
    content = json.loads((folder / "mechanome.json").read_text())
    if damage == "version":
        change_settings(folder / "mechanome.json", version=99)
    elif damage == "spec":
        change_settings(
            folder / "mechanome.json", spec=content["spec"] | {"width": 13, "settings": {"width": 13, "k": 3}}
        )
    elif damage == "norm":
        (folder / "mechanome.json").write_text(json.dumps({k: v for k, v in content.items() if k != "norm"}))
    else:
        data = bytearray((folder / "weights.safetensors").read_bytes())
        data[-4:] = b"\x00\x00\xc0\x7f"
        (folder / "weights.safetensors").write_bytes(data if damage == "nan" else data[:-8])
    with pytest.raises((CorruptFile, ShapeMismatch, NotFinite)):
        read(folder)


def fitted(seed: int = 0) -> tuple[Any, torch.Tensor]:
    """A dictionary that explains its activations exactly, with what it expects of them."""
    torch.manual_seed(seed)
    dictionary = ReLU(16).build(8, sites_in=("resid_post.3",))
    with torch.no_grad():
        dictionary.W_enc.copy_(torch.cat([torch.eye(8), -torch.eye(8)]))
        dictionary.W_dec.copy_(torch.cat([torch.eye(8), -torch.eye(8)]))
    x = torch.randn(200, 8) + 0.5
    about = {"fvu": 0.02, "mean_norm": float(x.norm(dim=1).mean())}
    dictionary.spec = replace(dictionary.spec, provenance=about)
    return dictionary.eval(), x


def test_activations_that_fit_are_measured() -> None:
    dictionary, x = fitted()
    found = check(dictionary, x)
    assert found.fvu < 1e-6
    assert (found.expected_fvu, found.rows) == (0.02, 200)


@pytest.mark.parametrize("factor", [2.5, 0.3])
def test_norms_that_do_not_fit_are_refused(factor: float) -> None:
    dictionary, x = fitted()
    with pytest.raises(BadInput, match=r"does not fit these activations, which is for resid_post.3: their mean norm"):
        check(dictionary, factor * x)


def test_an_fvu_that_does_not_fit_is_refused() -> None:
    dictionary, x = fitted()
    with torch.no_grad():
        dictionary.W_dec.mul_(0.2)
    with pytest.raises(BadInput, match=r"FVU 0\.\d+, it expects 0\.02"):
        check(dictionary, x)
    dictionary.spec = replace(dictionary.spec, provenance={})
    assert 0.5 < check(dictionary, x).fvu < 1  # nothing was expected, and it is better than the mean
    with torch.no_grad():
        dictionary.W_dec.mul_(-5)
    with pytest.raises(BadInput, match=r"FVU [2-9]\."):
        check(dictionary, x)


def test_reading_checks_the_activations_that_are_given(tmp_path: Path) -> None:
    dictionary, x = fitted()
    write(dictionary, tmp_path / "out")
    read(tmp_path / "out", activations=x)
    with pytest.raises(BadInput, match="check the site"):
        read(tmp_path / "out", activations=x * 9)


def test_a_transcoder_is_checked_against_its_target() -> None:
    dictionary = Transcoder(ReLU(16)).build(8, 4, sites_in=("ln2.1",), sites_out=("mlp_out.1",)).eval()
    x = torch.randn(50, 8)
    with pytest.raises(BadInput, match="pass target="):
        check(dictionary, x)
    with torch.no_grad():
        assert check(dictionary, x, dictionary(x)).fvu < 1e-9


@pytest.mark.parametrize("kind", ["scale", "center", "whiten"])
def test_norms_are_folded_exactly_for_tools_that_have_none(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(400, 8) @ torch.randn(8, 8) + 2, torch.randn(400, 6) * 3 - 1
    norms = {"norm": Affine.estimate(x, kind), "norm_out": Affine.estimate(y, kind)}
    recipe = SkipTranscoder(JumpReLU(20, threshold=0.4))
    dictionary = recipe.assemble(recipe.spec(8, 6), **norms).eval()
    with torch.no_grad():
        for weight in (dictionary.b_enc, dictionary.b_dec, dictionary.W_skip):
            weight.normal_()
        write(dictionary, tmp_path / "out", "saelens")
        other = read(tmp_path / "out")
        codes, same = dictionary.encode(x), other.encode(x)
        assert torch.equal(codes.indices, same.indices)
        torch.testing.assert_close(codes.values, same.values, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dictionary.decode(codes, x), other.decode(same, x), rtol=1e-4, atol=1e-4)
    assert other.norm.kind == "none"


def test_the_table_says_what_is_written() -> None:
    rows = formats_table().records()
    assert [row["format"] for row in rows] == list(FORMATS)
    assert {row["format"] for row in rows if row["written"]} == {
        "mechanome", "saelens", "dictionary_learning", "sparsify", "circuit_tracer",
    }  # fmt: skip
