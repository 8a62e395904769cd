"""Files of other tools compute here what they do there: goldens of the real tools, and restatements of the rest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from restated import RESTATED
from safetensors.torch import load_file

from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats import FORMATS, detect, read, write

FIXTURES = Path(__file__).parent / "fixtures"
GOLDENS = sorted(str(file.parent.relative_to(FIXTURES)) for file in FIXTURES.glob("*/*/golden.safetensors"))
SITES = {"layers.3.expansion": "resid_post.3", "layers.3.groupmax": "resid_post.3"}
pytestmark = pytest.mark.filterwarnings("ignore::mechanome.engine.names.NearMatch")


def site_of(name: str) -> str | None:
    """A site for folders whose names are none."""
    return SITES.get(Path(name).name)


def computed(dictionary: Dictionary, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        codes = dictionary.encode(x)
        return codes.dense(), dictionary.decode(codes, x)


def same(found: tuple[torch.Tensor, torch.Tensor], codes: torch.Tensor, reconstruction: torch.Tensor) -> None:
    """Codes are active at the same places, and all numbers agree to float32."""
    assert torch.equal(found[0] != 0, codes != 0)
    torch.testing.assert_close(found[0], codes, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(found[1], reconstruction, rtol=2e-5, atol=2e-5)


def test_there_are_goldens_of_every_architecture_the_tools_write() -> None:
    tools = [name.partition("/")[0] for name in GOLDENS]
    assert {tool: tools.count(tool) for tool in set(tools)} == {
        "circuit_tracer": 4, "dictionary_learning": 8, "llamascopium": 5, "saelens": 21, "sparsify": 6,
    }  # fmt: skip


@pytest.mark.parametrize("name", GOLDENS)
def test_codes_and_reconstructions_are_those_of_the_tool(name: str) -> None:
    golden = load_file(FIXTURES / name / "golden.safetensors")
    dictionary = read(FIXTURES / name, site=site_of(name))
    assert detect(FIXTURES / name) == name.partition("/")[0]
    same(computed(dictionary, golden["x"]), golden["codes"], golden["reconstruction"])


@pytest.mark.parametrize("name", RESTATED)
def test_codes_and_reconstructions_are_those_of_the_restated_format(name: str, tmp_path: Path) -> None:
    told = RESTATED[name](tmp_path)
    assert detect(told.path) == told.format
    dictionary = read(told.path)
    codes, reconstruction = computed(dictionary, torch.from_numpy(told.x).float())
    assert np.array_equal(codes.numpy() != 0, told.codes != 0)
    assert 2 < (told.codes != 0).sum(1).mean() < told.codes.shape[1] * 0.8  # or nothing was selected
    np.testing.assert_allclose(codes.numpy(), told.codes, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reconstruction.numpy(), told.reconstruction, rtol=1e-4, atol=1e-4)
    assert (dictionary.spec.sites_in, dictionary.spec.sites_out) == (told.sites_in, told.sites_out)


WRITABLE = {
    "saelens": [name for name in GOLDENS if name.startswith("saelens/")],
    "dictionary_learning": [name for name in GOLDENS if name.startswith("dictionary_learning/")],
    "sparsify": [name for name in GOLDENS if name.startswith("sparsify/")],
    "circuit_tracer": [name for name in GOLDENS if name.startswith("circuit_tracer/")],
    "mechanome": GOLDENS,
}


@pytest.mark.parametrize(("format", "name"), [(f, name) for f, names in WRITABLE.items() for name in names])
def test_what_was_read_is_written_and_read_again(format: str, name: str, tmp_path: Path) -> None:
    x = load_file(FIXTURES / name / "golden.safetensors")["x"]
    first = read(FIXTURES / name, site=site_of(name))
    folder = tmp_path / Path(name).name
    write(first, folder, format)
    assert detect(folder) == format
    second = read(folder, site=site_of(name) if format == "sparsify" else None)
    same(computed(second, x), *computed(first, x))
    assert (second.spec.sites_in, second.spec.sites_out) == (first.spec.sites_in, first.spec.sites_out)
    if format == "mechanome":
        assert second.spec == first.spec
        assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("saelens/standard", (("resid_post.3",), ("resid_post.3",))),
        ("saelens/standard_hook_z", (("z.3",), ("z.3",))),
        ("saelens/transcoder", (("ln2.3",), ("mlp_out.3",))),
        ("sparsify/layers.3", (("resid_post.3",), ("resid_post.3",))),
        ("sparsify/layers.3.mlp", (("ln2.3",), ("mlp_out.3",))),
        ("dictionary_learning/topk", (("resid_post.3",), ("resid_post.3",))),
    ],
)
def test_hooks_and_modules_become_sites(name: str, expected: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    spec = read(FIXTURES / name).spec
    assert (spec.sites_in, spec.sites_out) == expected


def test_a_site_that_the_caller_says_overrules_the_file() -> None:
    assert read(FIXTURES / "saelens" / "standard", site="mlp_out.5").spec.sites_in == ("mlp_out.5",)


def test_one_head_is_a_site_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "saelens" / "standard", tmp_path / "head")
    content = json.loads((tmp_path / "head" / "cfg.json").read_text())
    content["metadata"] |= {"hook_name": "blocks.3.attn.hook_z", "hook_head_index": 2}
    (tmp_path / "head" / "cfg.json").write_text(json.dumps(content))
    first = read(tmp_path / "head")
    write(first, tmp_path / "again", "saelens")
    assert first.spec.sites_in == read(tmp_path / "again").spec.sites_in == ("z.3.h2",)
    assert json.loads((tmp_path / "again" / "cfg.json").read_text())["reshape_activations"] == "none"


def test_architecture_and_model_are_kept(tmp_path: Path) -> None:
    dictionary = read(FIXTURES / "dictionary_learning" / "matryoshka")
    assert dictionary.spec.architecture == "matryoshka"
    assert dictionary.spec.settings["groups"] == [12, 12, 24]
    assert dictionary.spec.provenance["model"] == "EleutherAI/pythia-70m-deduped"


def test_configurations_from_before_saelens_6_are_read(tmp_path: Path) -> None:
    """There hooks stood at the top, and TopK was an activation function."""
    source, folder = FIXTURES / "saelens" / "topk", tmp_path / "old"
    shutil.copytree(source, folder)
    new = json.loads((folder / "cfg.json").read_text())
    old = {"d_in": new["d_in"], "d_sae": new["d_sae"], "apply_b_dec_to_input": True, "normalize_activations": False}
    old |= {"hook_name": "blocks.7.hook_resid_pre", "model_name": "gpt2-small", "dtype": "torch.float32"}
    old |= {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": new["k"]}}
    (folder / "cfg.json").write_text(json.dumps(old))
    golden, dictionary = load_file(source / "golden.safetensors"), read(folder)
    same(computed(dictionary, golden["x"]), golden["codes"], golden["reconstruction"])
    assert dictionary.spec.sites_in == ("resid_pre.7",)


def test_one_layer_of_a_set_is_a_transcoder(tmp_path: Path) -> None:
    told = RESTATED["circuit_tracer_plt"](tmp_path)
    d, width = told.x.shape[1] // 2, told.codes.shape[1] // 2
    for layer in range(2):
        dictionary = read(told.path / f"layer_{layer}.safetensors")
        codes, made = computed(dictionary, torch.from_numpy(told.x[:, layer * d :][:, :d]).float())
        np.testing.assert_allclose(codes.numpy(), told.codes[:, layer * width :][:, :width], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(made.numpy(), told.reconstruction[:, layer * d :][:, :d], rtol=1e-4, atol=1e-4)
        assert dictionary.spec.sites_out == (f"mlp_out.{layer}",)


def test_every_format_is_exercised() -> None:
    seen = {name.partition("/")[0] for name in GOLDENS} | {"mechanome"}
    seen |= {"gemma_scope", "gemma_scope_2", "llama_scope", "qwen_scope"}
    assert seen == FORMATS.keys()
