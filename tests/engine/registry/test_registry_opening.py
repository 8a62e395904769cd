"""Folders and hub names: safetensors only, the class they were saved from, nothing random, nothing executed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.errors as hub_errors
import pytest
import torch
from registry_llama import tiny_llama
from registry_wheels import ID
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM, BertModel

from mechanome.core.errors import BadInput, CorruptFile, DownloadFailed, NotServed, UnknownModel
from mechanome.core.files import sha256
from mechanome.engine.registry import ensure, open_folder
from mechanome.engine.registry import hub as hub_module
from mechanome.engine.registry.modules import EfficientNetLite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def set_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def test_a_local_folder_opens_in_float32_with_its_hash(folder):
    module, processor, provenance = open_folder(folder)
    assert type(module).__name__ == "LlamaForCausalLM" and not module.training
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert processor is None
    assert (provenance.id, provenance.source, provenance.license) == (str(folder), "folder", "unknown")
    assert provenance.sha256 == sha256(folder / "model.safetensors")


def test_several_weight_files_hash_as_their_list(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(files) > 1
    _, _, provenance = open_folder(tmp_path / "shards")
    assert provenance.sha256 == hashlib.sha256("\n".join(map(sha256, files)).encode()).hexdigest()


def test_a_folder_with_pickles_only_says_how_to_convert_it(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInput, match=r"pytorch_model\.bin.*save_pretrained"):
        open_folder(folder)


def test_a_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(BadInput, match=r"no config\.json"):
        open_folder(folder)


@pytest.mark.parametrize("cut", [0, 5, 500, 20000])
def test_weights_cut_short_are_corrupt(folder, cut):
    data = (folder / "model.safetensors").read_bytes()
    assert len(data) > 20000
    (folder / "model.safetensors").write_bytes(data[:cut])
    with pytest.raises(CorruptFile, match="safetensors"):
        open_folder(folder)


def test_missing_weights_are_never_filled_with_random_numbers(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptFile, match=r"1 weights of LlamaForCausalLM are not in it \(model\.layers\.1\.mlp\.up"):
        open_folder(folder)


def test_weights_of_another_shape_are_refused(folder):
    set_config(folder, intermediate_size=65)
    with pytest.raises(BadInput, match="cannot open it"):
        open_folder(folder)


def test_a_missing_pooler_is_noted(tmp_path):
    config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    _, _, provenance = open_folder(tmp_path)
    assert provenance.notes == (
        "random weights, because the folder holds none: pooler.dense.bias, pooler.dense.weight",
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    assert open_folder(tmp_path)[2].notes == ()


def test_code_in_a_folder_is_never_run(folder):
    (folder / "modeling_evil.py").write_text("raise SystemExit('executed')")
    set_config(folder, architectures=["EvilModel"], auto_map={"AutoModelForCausalLM": "modeling_evil.EvilModel"})
    with pytest.raises(NotServed, match=r"no class 'EvilModel'.*never run"):
        open_folder(folder)
    set_config(folder, architectures=["AutoTokenizer"])
    with pytest.raises(NotServed, match="AutoTokenizer"):
        open_folder(folder)


def test_an_own_module_opens_with_its_settings(tmp_path):
    settings = {"stages": [[1, 3, 1, 8, 1]], "stem_width": 4, "head_width": 12, "classes": 5}
    model = EfficientNetLite(**settings)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["EfficientNetLite"], "settings": settings}))
    module, processor, _ = open_folder(tmp_path)
    assert processor is None and not module.training
    assert torch.equal(module.classifier.weight, model.classifier.weight)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CorruptFile, match="Missing key"):
        open_folder(tmp_path)


def test_a_copied_registry_folder_keeps_its_name_until_it_is_changed(fake, cache, tmp_path):
    shutil.copytree(ensure(ID, quiet=True), tmp_path / "copy")
    module, _, provenance = open_folder(tmp_path / "copy")
    assert provenance.id == ID and provenance.license == "MIT"
    with torch.no_grad():
        module.model.norm.weight.add_(1)
    module.save_pretrained(tmp_path / "copy")
    changed = open_folder(tmp_path / "copy")[2]
    assert changed.id == str(tmp_path / "copy") and changed.license == "unknown"


@pytest.mark.parametrize("name", ["smolm2", "./nowhere", "~/nowhere", "a/b/c", "../x/y", ""])
def test_a_name_that_is_nothing_is_refused(name):
    with pytest.raises(UnknownModel, match="no registry id, no folder and no hub id"):
        open_folder(name)


def test_a_registry_id_is_opened_by_id_alone(fake, cache, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert open_folder(ID)[2].id == ID


# --- the hub --------------------------------------------------------------------------------------------------------


def test_a_hub_model_is_fetched_as_data_and_named_by_commit(folder, monkeypatch):
    asked = {}

    def download(id: str, **options: object) -> str:
        asked.update(options, id=id)
        return str(folder)

    monkeypatch.setattr(hub_module, "snapshot_download", download)
    monkeypatch.delenv("MECHANOME_OFFLINE", raising=False)
    _, _, provenance = open_folder("someone/some-model")
    assert provenance.id == f"someone/some-model@{folder.name}"
    assert provenance.source == "https://huggingface.co/someone/some-model"
    assert asked["id"] == "someone/some-model" and asked["local_files_only"] is False
    assert not any(pattern.endswith((".bin", ".py", ".pt")) for pattern in asked["allow_patterns"])


ANSWER = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (hub_errors.RepositoryNotFoundError("no", response=ANSWER), UnknownModel, "none of this name"),
        (hub_errors.GatedRepoError("no", response=ANSWER), BadInput, "terms must be accepted.*auth login"),
        (hub_errors.LocalEntryNotFoundError("no network"), DownloadFailed, "no network.*copy its folder"),
        (hub_errors.HfHubHTTPError("server down", response=ANSWER), DownloadFailed, "server down"),
        (OSError("connection reset"), DownloadFailed, "connection reset"),
    ],
)
def test_hub_failures_are_named(failure, kind, says, monkeypatch):
    def download(id: str, **options: object) -> str:
        raise failure

    monkeypatch.setattr(hub_module, "snapshot_download", download)
    with pytest.raises(kind, match=says):
        open_folder("someone/some-model")


def test_offline_the_hub_is_not_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("MECHANOME_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DownloadFailed, match="switched off"):
        open_folder("someone/some-model")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt2", "'openai-community/gpt2'"),
        ("Bert-base-uncased", "'google-bert/Bert-base-uncased'"),
        ("pythia-70m", "'EleutherAI/pythia-70m'"),
        ("Qwen2.5-0.5B", "'Qwen/Qwen2.5-0.5B'"),
    ],
)
def test_the_spelling_of_the_hub_is_suggested(name, said):
    with pytest.raises(UnknownModel, match="on the hub it would be") as caught:
        open_folder(name)
    assert said in caught.value.fix


@pytest.mark.parametrize("name", ["smollm", "nosuch-7b", "gpt2 medium", "./gpt2"])
def test_what_is_no_name_of_a_known_family_has_no_spelling_on_the_hub(name):
    with pytest.raises(UnknownModel) as caught:
        open_folder(name)
    assert "on the hub" not in caught.value.fix and "mechanome models" in caught.value.fix
